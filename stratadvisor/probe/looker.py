"""Runs sub-probes one after another against one deadline, and writes down what each came to."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Mapping
from typing import Any

from stratadvisor.errors import UsageError
from stratadvisor.probe import PROBES
from stratadvisor.probe.crew import Answer, Crew
from stratadvisor.schema.profile import Observation

Progress = Callable[[str, float | None], None]
QUICK_SHARE = 0.15
"""Part of each measurement's time budget that a quick probe spends."""
LEAST_SECONDS = 1.0
"""A sub-probe is left out when less than this is left."""
_BUDGET_SHARE = 0.25
"""No measurement aims at more than this part of the time that is left."""


def _check(names: tuple[str, ...], option: str) -> None:
    for name in names:
        if name not in PROBES:
            near = difflib.get_close_matches(name, PROBES, n=1)
            raise UsageError(
                f"{option} names {name!r}, which is no sub-probe",
                hint=f"did you mean {near[0]}?" if near else "there are: " + ", ".join(PROBES),
            )


def selection(only: tuple[str, ...], skip: tuple[str, ...]) -> tuple[str, ...]:
    """Return the sub-probes to run, in run order: those asked for with all they start from, or all but the skipped.

    Raises:
        UsageError: a name that is none.

    """
    _check(only, "--only")
    _check(skip, "--skip")
    wanted = set(only or PROBES)
    while True:
        more = {needed for name in wanted for needed in PROBES[name].requires} - wanted
        if not more:
            break
        wanted |= more
    return tuple(name for name in PROBES if name in wanted and name not in skip)


class Looker:
    """State of one probe run."""

    def __init__(
        self,
        names: tuple[str, ...],
        time_limit_seconds: float,
        *,
        quick: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self._names = names
        self._limit = time_limit_seconds
        self._end = time.monotonic() + time_limit_seconds
        self._quick = quick
        self._progress = progress
        self.observations: list[Observation] = []
        self.reasons: dict[str, str] = {
            name: "left out on request" if name in PROBES and name not in names else "not tried" for name in PROBES
        }
        """Why a sub-probe gave nothing, for the readings that stay unknown."""

    @property
    def left_seconds(self) -> float:
        """Time until the deadline."""
        return self._end - time.monotonic()

    def wanted(self, name: str) -> bool:
        """Whether the sub-probe was selected."""
        return name in self._names

    def note(self, name: str, status: str, reason: str = "", seconds: float = 0.0) -> None:
        """Write an observation."""
        self.reasons[name] = reason
        self.observations.append(
            Observation.model_validate(
                {"probe": name, "status": status, "reason": reason, "duration_seconds": round(seconds, 3)}
            )
        )

    def look(
        self,
        name: str,
        crew: Crew,
        settings: Mapping[int, Mapping[str, Any]],
        *,
        labels: Mapping[int, str] | None = None,
        in_turn: bool = False,
    ) -> dict[int, Any]:
        """Run a sub-probe on the given members, all at once or in turn, and return the values of those that answered.

        An empty result means that it was not wanted, left out, or came to nothing; the observation says why.
        """
        if not self.wanted(name):
            return {}
        probe = PROBES[name]
        if self._progress is not None:
            self._progress(probe.title, self._names.index(name) / len(self._names))
        if self.left_seconds < LEAST_SECONDS:
            self.note(name, "skipped", f"left out: the time limit of {self._limit:g} s was used up")
            return {}
        extra: dict[str, Any] = {}
        if probe.budget_seconds:
            budget = probe.budget_seconds * (QUICK_SHARE if self._quick else 1.0)
            extra = {"budget_seconds": min(budget, self.left_seconds * _BUDGET_SHARE), "quick": self._quick}
        begin = time.monotonic()
        answers: dict[int, Answer] = {}
        for group in [(member,) for member in settings] if in_turn else [tuple(settings)]:
            limit = min(probe.limit_seconds - (time.monotonic() - begin), self.left_seconds)
            if limit <= 0:
                answers |= {m: Answer(status="timed_out", reason="no time was left for it") for m in group}
                continue
            wanted = {m: {**settings[m], **extra} for m in group}
            answers |= crew.ask(probe.target, wanted, limit, together=probe.together)
        self._judge(name, answers, labels or {}, time.monotonic() - begin)
        return {member: answer.value for member, answer in answers.items() if answer.status == "ok"}

    def _judge(self, name: str, answers: Mapping[int, Answer], labels: Mapping[int, str], seconds: float) -> None:
        """Write the one observation that sums up the members' answers."""
        bad = {member: answer for member, answer in answers.items() if answer.status != "ok"}
        if not bad:
            self.note(name, "ok", "", seconds)
            return
        worst = next(iter(bad.values()))
        reasons = {answer.reason for answer in bad.values()}
        if len(bad) == len(answers) and len(reasons) == 1:
            text = worst.reason
        else:
            text = "; ".join(f"{labels.get(member, f'rank {member}')}: {a.reason}" for member, a in bad.items())
        self.note(name, worst.status, text, seconds)

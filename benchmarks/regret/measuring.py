"""Measure the clusters: probe, choose, run everything to the loss, in interleaved order."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import lab
from benchmarks.regret import plans, probing, records, running
from benchmarks.regret.clusters import PHASE_SECONDS, Case
from benchmarks.regret.neighbours import Neighbours
from benchmarks.regret.tasks import Task, text
from stratadvisor import store

FIRST_LIMIT_SECONDS = 40.0
"""Of a run before any other has reached the loss."""
TIMES_THE_BEST = 2.5
"""A run that takes longer than this times the best so far is ended: it will not win."""
NOT_AGAIN = 1.6
"""What took longer than this times the best is not repeated, unless it is the recommendation or a yardstick."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where results go, and how much is measured."""

    tables: Path
    work: Path
    commit: str
    repeats: int = 2
    until: float = float("inf")
    """``time.monotonic()`` at which to stop."""
    short: bool = False
    """Probe quickly, and run only what has a role."""

    @property
    def runs(self) -> Path:
        """One line for each run."""
        return self.tables / "runs.csv"

    @property
    def choices(self) -> Path:
        """What was chosen."""
        return self.tables / "choices.csv"


def say(words: str) -> None:
    """Tell how far it is."""
    print(words, file=sys.stderr, flush=True)


def ticker(cluster: lab.Cluster, case: Case) -> Callable[[], None]:
    """Return what is called while things run: it changes the last host's speed where the case says so."""
    if case.slows_to is None:
        return lambda: None
    last, shares = cluster.spec.hosts[-1].name, (case.cpu[-1], case.slows_to)
    now = [-1]

    def tick() -> None:
        phase = int(time.monotonic() / PHASE_SECONDS) % 2
        if phase != now[0]:
            now[0] = phase
            cluster.set_cpu(last, shares[phase])

    return tick


def measure(case: Case, tasks: Sequence[Task], settings: Settings) -> None:
    """Measure what is missing of one cluster."""
    folder = settings.work / case.name
    folder.mkdir(parents=True, exist_ok=True)
    data = settings.work / "text"
    if not data.exists():
        data.write_bytes(text())
    with lab.cluster(case.spec) as cluster:
        tick = ticker(cluster, case)
        tick()
        path = folder / "cluster.json"
        if not path.exists():
            begin = time.monotonic()
            probing.probe(cluster, folder, quick=settings.short, tick=tick)
            say(f"{case.name}: probed in {time.monotonic() - begin:.0f} s")
        profile = store.read_profile(path)
        for task in tasks:
            found = plans.choices(profile, plans.workload(task, settings.work / "models"))
            if settings.short:
                found = [choice for choice in found if choice.roles]
            _note_choices(case, task, found, settings)
            for repeat in range(1, settings.repeats + 1):
                for choice in found[repeat - 1 :] + found[: repeat - 1]:
                    if time.monotonic() > settings.until:
                        return
                    _run_if_missing(cluster, case, task, choice, repeat, data, settings, tick)


def _note_choices(case: Case, task: Task, found: list[plans.Choice], settings: Settings) -> None:
    """Write what was chosen; what an earlier version chose stays a rival, without its roles."""
    keys = {choice.key for choice in found}
    kept = []
    for line in records.read(settings.choices):
        if (line["cluster"], line["task"]) != (case.name, task.name):
            kept.append(line)
        elif line["key"] not in keys:
            kept.append({**line, "roles": ""})
    for choice in found:
        predicted = choice.plan.predicted
        planned = task.total_steps
        kept.append(
            {
                "commit": settings.commit,
                "cluster": case.name,
                "task": task.name,
                "key": choice.key,
                "label": choice.label,
                "strategy": choice.plan.strategy,
                "roles": " ".join(sorted(choice.roles)),
                "predicted_step_seconds": f"{predicted.step_seconds.likely:.5f}",
                "predicted_run_seconds": f"{predicted.run_seconds.likely:.3f}",
                "predicted_run_steps": str(predicted.run_steps),
                "extra_steps": f"{predicted.run_steps / planned - 1:.3f}",
            }
        )
    records.write(settings.choices, records.CHOICE_FIELDS, kept)


def _run_if_missing(
    cluster: lab.Cluster,
    case: Case,
    task: Task,
    choice: plans.Choice,
    repeat: int,
    data: Path,
    settings: Settings,
    tick: Callable[[], None],
) -> None:
    done = [r for r in records.read(settings.runs) if (r["cluster"], r["task"]) == (case.name, task.name)]
    own = [r for r in done if r["key"] == choice.key]
    if not choice.roles and any(r["label"] == choice.label and r["key"] != choice.key for r in done):
        return  # an earlier version's differs in a detail and has been run
    if any(int(r["repeat"]) == repeat or r["reason"] in ("too slow", "not reached") for r in own):
        return
    best = min((float(r["seconds"]) for r in done if r["seconds"]), default=None)
    slow = best is not None and any(float(r["seconds"]) > NOT_AGAIN * best for r in own if r["seconds"])
    if slow and not choice.roles:
        return
    neighbours = Neighbours()
    outcome = running.run(
        cluster,
        choice.config,
        choice.hostnames,
        data=data,
        folder=settings.work / case.name / "run",
        target_loss=task.target_loss,
        total_steps=task.total_steps,
        limit_seconds=FIRST_LIMIT_SECONDS if best is None else max(5.0, TIMES_THE_BEST * best),
        tick=tick,
    )
    records.append(
        settings.runs,
        records.RUN_FIELDS,
        {
            "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "commit": settings.commit,
            "cluster": case.name,
            "task": task.name,
            "key": choice.key,
            "label": choice.label,
            "repeat": repeat,
            "seconds": "" if outcome.seconds is None else f"{outcome.seconds:.3f}",
            "steps": outcome.steps,
            "step_seconds": f"{outcome.step_seconds:.5f}",
            "last_loss": f"{outcome.last_loss:.4f}",
            "reason": outcome.reason,
            "others": f"{neighbours.share():.3f}",
        },
    )
    took = outcome.reason if outcome.seconds is None else f"{outcome.seconds:.2f} s, {outcome.steps} steps"
    roles = f" [{' '.join(sorted(choice.roles))}]" if choice.roles else ""
    say(f"{case.name} {task.name} {choice.label}{roles} ({repeat}): {took}")
    if outcome.said:
        say(f"    {outcome.said}")

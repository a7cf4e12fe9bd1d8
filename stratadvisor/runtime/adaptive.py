"""What to change while training, from measured times: decisions only, made alike on every rank from the same figures.

Nothing is decided on one look: a proposal must come back in several windows in a row, and the limits for going
somewhere and for coming back lie apart, so that noise changes nothing and every change can be undone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

PATIENCE = 3
"""Windows in a row that must propose the same."""
URGENT_PATIENCE = 2
"""The same where the figures are far beyond the limit."""
URGENT_FACTOR = 1.5
"""Far beyond: this many times the share from which ranks meet less often, or the gain from which shares change."""
SETTLING = 1
"""Windows that are not looked at after a change."""
BALANCE_GAIN = 1.15
"""Shares change when the slowest rank's time falls by this factor at least."""
LEAVE_SHARE = 0.30
"""Share of the step spent on exposed communication from which ranks meet less often."""
RETURN_SHARE = 0.10
"""Share that meeting in every step would cost, below which they do so again."""
WANTED_SHARE = 0.20
"""Share that communication should have after a change: meeting more rarely teaches less and saves at most this much."""
INTERVAL_FACTOR = 2.0
"""The interval changes when the wanted one differs by this factor at least."""
DATA_SHARE = 0.10
"""Share of the step spent waiting for data from which the loader gets more workers."""
DATA_GAIN = 0.8
"""More workers stay when they bring the wait below this share of what it was."""
MAX_INTERVAL = 128


@dataclass(frozen=True, kw_only=True)
class Regime:
    """How the ranks work together; the first one is the plan's, and every change can be undone."""

    shares: tuple[int, ...]
    """Sequences of each rank in a step."""
    interval_steps: int = 0
    """Local steps between meetings; 0: gradients are averaged in every step."""
    accumulation: int = 1
    """Global batch over the plan's."""
    loader_workers: int = 0


@dataclass(frozen=True, kw_only=True)
class Window:
    """What the ranks measured over some steps of one regime."""

    own_seconds: tuple[float, ...]
    """Of each rank in a step, neither waiting for data nor for others."""
    communication_seconds: float
    """Of one exchange, on the rank that waited least: without waiting for slower ranks."""
    data_wait_seconds: float = 0.0
    """Of a step, on the rank that waited most."""
    critical_samples: float | None = None
    """Sequences from which a larger batch teaches little more (the gradient noise scale); None: not measured."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a decision has to keep within."""

    max_loader_workers: int = 0
    max_interval_steps: int = MAX_INTERVAL
    max_accumulation: int = 16


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change and why."""

    kind: str
    """Proposals of one kind are the same for ``PATIENCE``."""
    regime: Regime
    reason: str
    urgent: bool = False
    """Whether the figures are far beyond the limit."""


def divided(total: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Return whole parts of ``total`` in proportion to weights: largest remainder, at least one each."""
    free = total - len(weights)
    exact = [free * weight / sum(weights) for weight in weights]
    found = [1 + math.floor(value) for value in exact]
    order = sorted(range(len(exact)), key=lambda r: (math.floor(exact[r]) - exact[r], r))
    for rank in order[: total - sum(found)]:
        found[rank] += 1
    return tuple(found)


def balanced_shares(shares: Sequence[int], own_seconds: Sequence[float]) -> tuple[int, ...]:
    """Return shares with the same sum in proportion to the speeds seen."""
    speeds = [share / max(seconds, 1e-9) for share, seconds in zip(shares, own_seconds, strict=True)]
    return divided(sum(shares), speeds)


def rebalance(regime: Regime, window: Window) -> Change | None:
    """Move samples from slow ranks to fast ones, when that shortens the step clearly."""
    if len(regime.shares) < 2:
        return None
    found = balanced_shares(regime.shares, window.own_seconds)
    now = max(window.own_seconds)
    after = max(t * new / old for t, new, old in zip(window.own_seconds, found, regime.shares, strict=True))
    if found == regime.shares or now < BALANCE_GAIN * after:
        return None
    slowest = window.own_seconds.index(now)
    return Change(
        kind=f"balance:{slowest}",
        urgent=now >= URGENT_FACTOR * BALANCE_GAIN * after,
        regime=replace(regime, shares=found),
        reason=(
            f"rank {slowest} needs {now:.3g} s, the fastest {min(window.own_seconds):.3g} s:"
            f" shares {_listed(regime.shares)} -> {_listed(found)}"
        ),
    )


def meet(regime: Regime, window: Window, limits: Limits) -> Change | None:
    """Meet less or more often, by what communication costs; a larger batch first, where it still teaches."""
    compute, exchange = max(window.own_seconds), window.communication_seconds
    share = exchange / max(compute + exchange, 1e-9)
    # exchange / (factor * compute + exchange) = WANTED_SHARE
    factor = exchange * (1 - WANTED_SHARE) / (WANTED_SHARE * max(compute, 1e-9))
    if regime.interval_steps:
        if share < RETURN_SHARE:
            reason = f"an exchange takes {exchange:.3g} s, {share:.0%} of a step: every step averages gradients again"
            return Change(kind="synchronous", regime=replace(regime, interval_steps=0), reason=reason)
        wanted = max(2, min(limits.max_interval_steps, math.ceil(factor)))
        if max(wanted / regime.interval_steps, regime.interval_steps / wanted) < INTERVAL_FACTOR:
            return None
        reason = (
            f"an exchange takes {exchange:.3g} s, a step {compute:.3g} s: interval {regime.interval_steps} -> {wanted}"
        )
        kind = "interval up" if wanted > regime.interval_steps else "interval down"
        return Change(kind=kind, regime=replace(regime, interval_steps=wanted), reason=reason)
    if share > LEAVE_SHARE:
        return _meet_less(regime, window, limits, share, factor)
    if regime.accumulation > 1:
        return _smaller_batch(regime, window, exchange / max(compute / 2 + exchange, 1e-9))
    return None


def _meet_less(regime: Regime, window: Window, limits: Limits, share: float, factor: float) -> Change:
    waits = f"communication is {share:.0%} of a step"
    batch = sum(regime.shares)
    times = 1 << math.ceil(math.log2(max(2.0, factor)))
    critical = window.critical_samples
    if critical is not None and regime.accumulation * times <= limits.max_accumulation and batch * times <= critical:
        larger = replace(
            regime, shares=tuple(times * s for s in regime.shares), accumulation=times * regime.accumulation
        )
        reason = f"{waits}, the critical batch is {critical:.0f}: batch {batch} -> {batch * times}"
        return Change(kind="batch up", regime=larger, reason=reason, urgent=share > URGENT_FACTOR * LEAVE_SHARE)
    wanted = max(2, min(limits.max_interval_steps, math.ceil(factor)))
    known = "is not known" if critical is None else f"is {critical:.0f}"
    local = replace(
        regime,
        interval_steps=wanted,
        accumulation=1,
        shares=_shrunk(regime.shares, regime.accumulation),
    )
    reason = f"{waits}, the critical batch {known} and the batch {batch}: local steps, meeting every {wanted}"
    return Change(kind="local", regime=local, reason=reason, urgent=share > URGENT_FACTOR * LEAVE_SHARE)


def _smaller_batch(regime: Regime, window: Window, share_at_half: float) -> Change | None:
    batch, critical = sum(regime.shares), window.critical_samples
    smaller = replace(regime, shares=_shrunk(regime.shares, 2), accumulation=regime.accumulation // 2)
    if critical is not None and batch > 2 * critical:  # twice: where a batch was raised it was below
        reason = f"the critical batch is {critical:.0f}: batch {batch} -> {sum(smaller.shares)}"
        return Change(kind="batch down", regime=smaller, reason=reason)
    if share_at_half < RETURN_SHARE:
        reason = f"communication would be {share_at_half:.0%} of a step: batch {batch} -> {sum(smaller.shares)}"
        return Change(kind="batch down", regime=smaller, reason=reason)
    return None


def _shrunk(shares: tuple[int, ...], times: int) -> tuple[int, ...]:
    """Return shares whose sum is ``times`` smaller, in the same proportion."""
    return divided(sum(shares) // times, shares) if times > 1 else shares


def _listed(shares: Sequence[int]) -> str:
    return "/".join(map(str, shares[:8])) + ("/..." if len(shares) > 8 else "")


class Controller:
    """Turns windows into changes; the same windows give the same changes on every rank."""

    def __init__(self, regime: Regime, limits: Limits) -> None:
        self.regime, self.limits = regime, limits
        self._streak: list[Window] = []
        self._kind = ""
        self._skip = SETTLING
        self._workers_before: tuple[int, float] | None = None
        """Loader workers and the wait for data before the last try of more."""
        self._data_given_up = False

    def observe(self, window: Window) -> Change | None:
        """Return the change to make now, if any; it counts as made."""
        if self._skip:
            self._skip -= 1
            return None
        proposal = self._propose(window)
        if proposal is None or proposal.kind != self._kind:
            self._streak = []
            self._kind = "" if proposal is None else proposal.kind
        if proposal is None:
            return None
        self._streak.append(window)
        if len(self._streak) < (URGENT_PATIENCE if proposal.urgent else PATIENCE):
            return None
        doubted = proposal.kind.startswith("balance") and rebalance(self.regime, _cautious(self._streak)) is None
        decided = None if doubted else self._propose(_mean(self._streak))
        self._streak, self._kind = [], ""
        if decided is None:
            return None
        self._note_workers(decided, window)
        self.regime, self._skip = decided.regime, SETTLING
        return decided

    def _propose(self, window: Window) -> Change | None:
        return rebalance(self.regime, window) or meet(self.regime, window, self.limits) or self._loader(window)

    def _loader(self, window: Window) -> Change | None:
        """Try more loader workers on a wait for data; take them back where they did not help."""
        step = max(window.own_seconds) + window.data_wait_seconds
        workers, waits = self.regime.loader_workers, window.data_wait_seconds
        if self._workers_before is not None:
            before, waited = self._workers_before
            if waits > DATA_GAIN * waited:
                reason = (
                    f"{workers} loader workers still wait {waits:.3g} s for data: {before} again, the source is slow"
                )
                return Change(kind="workers back", regime=replace(self.regime, loader_workers=before), reason=reason)
        if self._data_given_up or waits < DATA_SHARE * step or workers >= self.limits.max_loader_workers:
            return None
        more = min(self.limits.max_loader_workers, max(1, 2 * workers))
        reason = f"waiting for data is {waits / step:.0%} of a step: loader workers {workers} -> {more}"
        return Change(kind="workers", regime=replace(self.regime, loader_workers=more), reason=reason)

    def _note_workers(self, change: Change, window: Window) -> None:
        if change.kind == "workers":
            self._workers_before = (self.regime.loader_workers, window.data_wait_seconds)
        elif change.kind == "workers back":
            self._workers_before, self._data_given_up = None, True


def _mean(windows: Sequence[Window]) -> Window:
    """Return the mean of windows of one regime; of the critical batch the newest that is known."""
    count = len(windows)
    known = [w.critical_samples for w in windows if w.critical_samples is not None]
    return Window(
        own_seconds=tuple(sum(column) / count for column in zip(*(w.own_seconds for w in windows), strict=True)),
        communication_seconds=sum(w.communication_seconds for w in windows) / count,
        data_wait_seconds=sum(w.data_wait_seconds for w in windows) / count,
        critical_samples=known[-1] if known else None,
    )


def _cautious(windows: Sequence[Window]) -> Window:
    """Return the least that the windows say of a difference: the slowest rank at its best, others at their worst."""
    columns = list(zip(*(w.own_seconds for w in windows), strict=True))
    slowest = max(range(len(columns)), key=lambda rank: sum(columns[rank]))
    own = tuple(min(column) if rank == slowest else max(column) for rank, column in enumerate(columns))
    return replace(windows[-1], own_seconds=own)


class NoiseScale:
    """The simple gradient noise scale tr(S) / |G|^2 in sequences (arXiv:1812.06162, appendix A.1).

    From the squared norms of each rank's mean gradient over b_r sequences and of the mean over all B; both are
    unbiased, and their moving averages are divided only when asked for.
    """

    def __init__(self, decay: float = 0.9) -> None:
        self._decay, self._noise, self._signal, self._weight = decay, 0.0, 0.0, 0.0

    def add(self, own_squares: Sequence[float], shares: Sequence[int], mean_square: float) -> None:
        """Note one step: |g_r|^2 of every rank, its sequences, and |G|^2 of the mean gradient."""
        batch = sum(shares)
        small = sum(1 / share for share in shares) / len(shares)
        gap = small - 1 / batch
        values = [*own_squares, mean_square]
        if len(shares) < 2 or gap <= 0 or not all(map(math.isfinite, values)):
            return
        noise = (sum(own_squares) / len(shares) - mean_square) / gap
        signal = mean_square - noise / batch
        keep = self._decay
        self._noise, self._signal = keep * self._noise + noise, keep * self._signal + signal
        self._weight = keep * self._weight + 1

    @property
    def samples(self) -> float | None:
        """The noise scale; None before enough steps, or while the signal drowns in the noise."""
        if self._weight < 3 or self._signal <= 0:
            return None
        return max(0.0, self._noise / self._signal)

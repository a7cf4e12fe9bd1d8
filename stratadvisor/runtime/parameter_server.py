"""The server of asynchronous SGD: applies gradients as they come, compensates their delay, never exceeds the bound.

With local steps a push is the change of several steps of its worker, and what is counted is steps.

Pure threads and tensors, no communication: workers are threads that call ``first`` and ``push``. One that is lost
``leave``s; whoever takes its place comes by ``join``.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, kw_only=True)
class Compensation:
    """DC-ASGD (arXiv:1609.08326): ``g + lambda g g (w - w_read)``, the first-order change of g since it was computed.

    Adaptive (DC-ASGD-a): lambda divided by the root of a running mean square of g, element by element.
    """

    strength: float = 0.04
    adaptive: bool = False
    decay: float = 0.95
    epsilon: float = 1e-7

    def apply(
        self, gradient: torch.Tensor, now: torch.Tensor, read: torch.Tensor, mean_square: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the compensated gradient; updates ``mean_square`` in place when adaptive."""
        if self.strength == 0:
            return gradient
        square = gradient * gradient
        if not self.adaptive or mean_square is None:
            return gradient + self.strength * square * (now - read)
        mean_square.mul_(self.decay).add_(square, alpha=1 - self.decay)
        return gradient + self.strength * square * (now - read) / (mean_square + self.epsilon).sqrt()


@dataclass(frozen=True, kw_only=True)
class Push:
    """A gradient (mean over its tokens) or the change of some local steps, and what the worker says about making it."""

    worker: int
    gradient: torch.Tensor
    rows: torch.Tensor
    """(steps, telemetry.FIELDS); tokens at index 1, the wish to stop last."""
    generation: int = 0
    """What ``join`` gave; a push of an earlier holder of the place does not count."""
    staleness: int = -1
    """Updates applied between reading the weights and applying this gradient; set by the server."""

    @property
    def tokens(self) -> float:
        """Tokens that count in the loss."""
        return float(self.rows[:, 1].sum())

    @property
    def steps(self) -> int:
        """Steps of the worker in it."""
        return len(self.rows)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a worker gets back: weights to go on from, or the order to stop."""

    weights: torch.Tensor
    stop: bool
    steps: int = 1
    """Local steps to push the change of."""
    round: float = 0.0
    """Rounds done when the weights were read: where the learning rate stands."""


@dataclass(frozen=True)
class Answer:
    """A reply and how many steps of this worker's place have been applied: where its data stands."""

    reply: Reply
    steps: int
    save: bool = False
    """Whether the next push may be in a checkpoint, so that what only the worker has must be written down with it."""


@dataclass(kw_only=True)
class Phases:
    """When workers wait for each other: in the first and the last rounds (a round: one step per worker)."""

    bound: int
    warmup_rounds: float = 0.0
    finish_rounds: float = 0.0
    last_round: float = math.inf

    def bound_at(self, round_: float) -> int:
        """Return the largest staleness allowed after ``round_`` rounds; 0 is synchronous."""
        if round_ < self.warmup_rounds or round_ >= self.last_round - self.finish_rounds:
            return 0
        return self.bound


def _one_step(_: int) -> int:
    return 1


@dataclass
class ParameterServer:
    """Weights, one version per update.

    A gradient whose application would make any other gradient under way older than the bound is held back; gradients
    that have reached the bound are applied together, as one update with their token-weighted mean. With the bound 0
    that is synchronous training.
    """

    weights: torch.Tensor
    num_workers: int
    phases: Phases
    compensation: Compensation
    step: Callable[[torch.Tensor, float, float, int], None]
    """Applies (gradient, round, factor of the learning rate, pushes it is the mean of) to ``weights`` in place."""
    on_applied: Callable[[list[Push], int], None]
    """Called with the pushes of an update and its bound, the lock held."""
    staleness_aware: bool = False
    """Divide the learning rate of an update by the staleness of its gradients (arXiv:1511.05950)."""
    local_steps: Callable[[int], int] = _one_step
    """How many steps a worker is to do before it pushes."""
    applied: int = 0
    """Steps of workers applied, over all runs; without local steps that is pushes."""
    version: int = 0
    stopping: bool = False
    mean_square: torch.Tensor | None = None
    _read_version: dict[int, int] = field(default_factory=dict)
    _read_weights: dict[int, torch.Tensor] = field(default_factory=dict)
    _in_flight: dict[int, int] = field(default_factory=dict)
    """Worker -> steps it was given to do."""
    _held: dict[int, Push] = field(default_factory=dict)
    _replies: dict[int, Reply] = field(default_factory=dict)
    _generation: dict[int, int] = field(default_factory=dict)
    _gone: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Count what is handed out from what was applied before."""
        self._changed = threading.Condition()
        self._issued = self.applied
        self._snapshot: tuple[int, torch.Tensor] = (-1, self.weights)
        if self.compensation.adaptive and self.mean_square is None:
            self.mean_square = torch.zeros_like(self.weights)

    @property
    def round(self) -> float:
        """Rounds done."""
        return self.applied / self.num_workers

    def restore(self, applied: int, version: int, mean_square: torch.Tensor | None) -> None:
        """Take up the counts of an earlier run; before ``start``."""
        self.applied = self._issued = applied
        self.version = version
        self.mean_square = mean_square

    def start(self) -> None:
        """Hand the first weights to all workers at once, so that none is ahead because it came first."""
        with self._changed:
            for worker in range(self.num_workers):
                self._release(worker)

    def first(self, worker: int) -> Reply:
        """Return a worker's first weights."""
        with self._changed:
            return self._replies.pop(worker)

    def join(self, worker: int) -> tuple[Reply, int]:
        """Let a worker take a place, also one whose holder is not known to be lost yet; return (weights, generation).

        Later pushes of an earlier holder are turned away with the order to stop.
        """
        with self._changed:
            self._forget(worker)
            self._gone.discard(worker)
            generation = self._generation.get(worker, 0) + 1
            self._generation[worker] = generation
            self._release(worker)
            self._apply_what_may_be()
            return self._replies.pop(worker), generation

    def free_place(self) -> int | None:
        """Return a place whose worker is gone, None when there is none."""
        with self._changed:
            return min(self._gone, default=None)

    def reserve(self, worker: int) -> None:
        """Keep a free place for somebody who is about to join."""
        with self._changed:
            self._gone.discard(worker)

    def give_back(self, worker: int) -> None:
        """Make a place free again that was reserved for nothing."""
        with self._changed:
            if worker not in self._in_flight and worker not in self._held:
                self._gone.add(worker)

    def push(self, push: Push) -> Reply:
        """Take a gradient; return when the worker may go on."""
        with self._changed:
            if not self._holds(push.worker, push.generation):
                return self._stop()
            self.stopping = self.stopping or bool(push.rows[-1, -1])
            self._issued += push.steps - self._in_flight.pop(push.worker, push.steps)  # one asked to stop does fewer
            self._held[push.worker] = push
            self._apply_what_may_be()
            while push.worker not in self._replies:
                self._changed.wait()
                if not self._holds(push.worker, push.generation):
                    return self._stop()
            return self._replies.pop(push.worker)

    def leave(self, worker: int, generation: int = 0) -> bool:
        """Go on without a worker that is gone; return whether it still held its place."""
        with self._changed:
            if not self._holds(worker, generation):
                return False
            self._forget(worker)
            self._gone.add(worker)
            self._generation[worker] = generation + 1
            self._apply_what_may_be()
            return True

    def _holds(self, worker: int, generation: int) -> bool:
        return self._generation.get(worker, 0) == generation

    def _forget(self, worker: int) -> None:
        """Drop what a worker has not finished; another one will be asked for as many gradients more."""
        self._issued -= self._in_flight.pop(worker, 0)
        held = self._held.pop(worker, None)
        self._issued -= 0 if held is None else held.steps
        self._read_version.pop(worker, None)
        self._read_weights.pop(worker, None)
        self._replies.pop(worker, None)

    def _age(self, worker: int) -> int:
        return self.version - self._read_version[worker]

    def _apply_what_may_be(self) -> None:
        while self._held:
            bound = self.phases.bound_at(self.round)
            if any(self._age(worker) >= bound for worker in self._in_flight):
                break  # one more update would make that gradient too old
            due = [worker for worker in self._held if self._age(worker) >= bound]
            self._apply(due or [next(iter(self._held))], bound)
        self._changed.notify_all()

    def _apply(self, workers: list[int], bound: int) -> None:
        pushes = [self._held.pop(worker) for worker in workers]
        tokens = sum(push.tokens for push in pushes)
        total = torch.zeros_like(self.weights)
        for push in pushes:
            read = self._read_weights.pop(push.worker)
            gradient = self.compensation.apply(push.gradient, self.weights, read, self.mean_square)
            total.add_(gradient, alpha=push.tokens / tokens)
        done = [
            Push(worker=p.worker, gradient=p.gradient[:0], rows=p.rows, staleness=self._age(p.worker)) for p in pushes
        ]
        staleness = sum(push.staleness for push in done) / len(done)
        self.step(total, self.round, 1 / max(1.0, staleness) if self.staleness_aware else 1.0, len(pushes))
        self.version += 1
        self.applied += sum(push.steps for push in pushes)
        for worker in workers:
            self._release(worker)
        self.on_applied(done, bound)

    def _stop(self) -> Reply:
        return Reply(weights=self.weights[:0], stop=True)

    def _release(self, worker: int) -> None:
        """Hand the present weights to a worker, or the order to stop when enough gradients are under way."""
        left = self.phases.last_round * self.num_workers - self._issued
        if self.stopping or left <= 0:
            self._replies[worker] = self._stop()
            return
        if self._snapshot[0] != self.version:
            self._snapshot = (self.version, self.weights.clone())
        # near the end nobody takes what is left of the others' steps, or ranks in lockstep would not end together
        fair = max(1.0, -((self.round - self.phases.last_round) // 1))
        steps = int(min(self.local_steps(worker), left, fair))
        self._issued += steps
        self._in_flight[worker] = steps
        self._read_version[worker], self._read_weights[worker] = self._snapshot
        self._replies[worker] = Reply(weights=self._snapshot[1], stop=False, steps=steps, round=self.round)

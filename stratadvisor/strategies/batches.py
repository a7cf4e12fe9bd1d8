"""Divide a global batch among devices: equal shares, shares by speed, micro-batches. All integers, all exact."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

MAX_MICRO_BATCH = 256
"""Larger micro-batches no longer raise efficiency; they only take memory."""
_PERMUTED_CLASSES = 4
"""Up to so many classes every order of solving is tried (24 orders)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """``count`` alike devices that share a batch with others."""

    count: int
    sequences_per_second: float
    overhead_seconds: float = 0.0
    """Fixed time of a step that does not depend on the share."""
    cap: int | None = None
    """Largest share one device can take."""

    def seconds(self, share: int) -> float:
        """Return the time of one device's share."""
        return self.overhead_seconds + share / self.sequences_per_second


def divisors(number: int) -> list[int]:
    """Return all divisors in rising order."""
    low = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return low + [number // d for d in reversed(low) if d * d != number]


def micro_batches(batch_per_device: int) -> list[int]:
    """Return micro-batch sizes that divide a device's batch, rising; few where there are many.

    A size m needs batch / m accumulation steps, so that micro-batch x steps is the batch exactly. Divisors that are
    powers of two, and odd ones at least 1.4 times the one before, describe the trade well enough.
    """
    chosen: list[int] = []
    for size in divisors(batch_per_device):
        power_of_two = size & (size - 1) == 0
        if size <= MAX_MICRO_BATCH and (power_of_two or not chosen or size >= 1.4 * chosen[-1]):
            chosen.append(size)
    return chosen


def accumulation_steps(batch_per_device: int) -> list[int]:
    """Return numbers of micro-batches for shares that differ by class: powers of two up to the share itself."""
    steps = [2**k for k in range(batch_per_device.bit_length()) if 2**k < batch_per_device]
    return [*steps, batch_per_device]


def solve_shares(global_batch_size: int, workers: Sequence[Worker]) -> tuple[int, ...] | None:
    """Return each class's sequences per device so that all finish as near together as whole numbers allow.

    The shares, times the devices, sum to the global batch exactly; each is at least 1 and at most its cap. None when
    no such numbers exist: fewer sequences than devices, caps too small, or a batch that the device counts cannot form.
    Ideal shares: b_i = v_i (T - o_i), T = (G + sum v_i o_i) / sum v_i, all in turn over the devices.
    """
    counts = [w.count for w in workers]
    if global_batch_size < sum(counts) or global_batch_size % math.gcd(*counts):
        return None
    limits = [w.cap if w.cap is not None else global_batch_size for w in workers]
    if (
        any(limit < 1 for limit in limits)
        or sum(c * x for c, x in zip(counts, limits, strict=True)) < global_batch_size
    ):
        return None
    ideal = _fill(global_batch_size, workers, limits)
    indices = range(len(workers))
    if len(workers) <= _PERMUTED_CLASSES:
        orders = [tuple(order) for order in permutations(indices)]
    else:  # the class with the most devices absorbs what is left over: it costs each of them least
        orders = [(*(i for i in indices if i != last), last) for last in indices]
    best: tuple[float, tuple[int, ...]] | None = None
    for order in orders:
        shares = _round(global_batch_size, order, counts, limits, ideal)
        if shares is None:
            continue
        improved = _improve(shares, workers, limits)
        found = (_makespan(improved, workers), improved)
        if best is None or found < best:
            best = found
    return None if best is None else best[1]


def _makespan(shares: Sequence[int], workers: Sequence[Worker]) -> float:
    return max(w.seconds(b) for w, b in zip(workers, shares, strict=True))


def _fill(total: int, workers: Sequence[Worker], limits: Sequence[int]) -> list[float]:
    """Return real-valued shares: classes at their limits, the rest finishing together."""
    fixed: dict[int, float] = {}
    while True:
        free = [i for i in range(len(workers)) if i not in fixed]
        left = total - sum(workers[i].count * share for i, share in fixed.items())
        speed = sum(workers[i].count * workers[i].sequences_per_second for i in free)
        work = sum(workers[i].count * workers[i].sequences_per_second * workers[i].overhead_seconds for i in free)
        finish = (left + work) / speed if free else 0.0
        wanted = {i: workers[i].sequences_per_second * (finish - workers[i].overhead_seconds) for i in free}
        over = {i: float(limits[i]) for i in free if wanted[i] > limits[i]}
        under = {i: 1.0 for i in free if wanted[i] < 1.0} if not over else {}
        if not over and not under:
            return [fixed.get(i, wanted.get(i, 1.0)) for i in range(len(workers))]
        fixed |= over or under


def _round(
    total: int, order: Sequence[int], counts: Sequence[int], limits: Sequence[int], ideal: Sequence[float]
) -> tuple[int, ...] | None:
    """Return whole shares near the ideal ones: each leaves a rest that the classes after it can form."""
    shares = [0] * len(order)
    rest = total
    for position, i in enumerate(order[:-1]):
        later = order[position + 1 :]
        unit = math.gcd(*(counts[j] for j in later))
        smallest = sum(counts[j] for j in later)
        largest = sum(counts[j] * limits[j] for j in later)
        shared = math.gcd(counts[i], unit)  # divides the rest: that of the last class, or the batch
        step = unit // shared
        first = rest // shared * pow(counts[i] // shared, -1, step) % step if step > 1 else 0
        low = max(1, -((largest - rest) // counts[i])) if largest < rest else 1
        high = min(limits[i], (rest - smallest) // counts[i])
        near = first + step * round((ideal[i] - first) / step)
        near = max(near, first + step * math.ceil((low - first) / step))
        near = min(near, first + step * math.floor((high - first) / step))
        if not low <= near <= high:
            return None
        shares[i] = near
        rest -= counts[i] * near
    shares[order[-1]] = rest // counts[order[-1]]  # without a rest and within its limit, by the steps before
    return tuple(shares)


def _improve(shares: tuple[int, ...], workers: Sequence[Worker], limits: Sequence[int]) -> tuple[int, ...]:
    """Move sequences from the class that finishes last to another while that makes the step shorter."""
    current = list(shares)
    for _ in range(64):
        slowest = max(range(len(workers)), key=lambda i: workers[i].seconds(current[i]))
        before = workers[slowest].seconds(current[slowest])
        best: tuple[float, int, int, int] | None = None
        for other in range(len(workers)):
            if other == slowest:
                continue
            common = math.gcd(workers[slowest].count, workers[other].count)
            less = workers[other].count // common
            more = workers[slowest].count // common
            if current[slowest] - less < 1 or current[other] + more > limits[other]:
                continue
            after = max(
                workers[slowest].seconds(current[slowest] - less), workers[other].seconds(current[other] + more)
            )
            if after < before * (1 - 1e-9) and (best is None or after < best[0]):
                best = (after, other, less, more)
        if best is None:
            break
        _, other, less, more = best
        current[slowest] -= less
        current[other] += more
    return tuple(current)

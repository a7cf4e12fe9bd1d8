"""Latency and bandwidth from timings over message sizes: seconds = alpha + beta * bytes.

Sizes span decades, so relative errors are minimised, and points that lie off (another process woke up) lose weight:
iteratively reweighted least squares with Huber's weights (Huber 1964, k = 1.345 standard deviations).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_HUBER_K = 1.345
_ROUNDS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class AlphaBeta:
    """The fitted line."""

    latency_seconds: float
    """alpha, never negative."""
    seconds_per_byte: float
    """beta, never negative."""
    median_relative_error: float
    """Typical distance of a point from the line, as a fraction of the line."""
    num_points: int

    @property
    def bytes_per_second(self) -> float | None:
        """1/beta; None when time does not grow with size."""
        return 1 / self.seconds_per_byte if self.seconds_per_byte > 0 else None

    def seconds(self, message_bytes: float) -> float:
        """Return the time that the line gives."""
        return self.latency_seconds + self.seconds_per_byte * message_bytes


def _weighted_line(points: Sequence[tuple[float, float]], weights: Sequence[float]) -> tuple[float, float]:
    """Return the non-negative (alpha, beta) with the least weighted squares."""
    total = sum(weights)
    mean_size = sum(w * size for w, (size, _) in zip(weights, points, strict=True)) / total
    mean_time = sum(w * time for w, (_, time) in zip(weights, points, strict=True)) / total
    spread = sum(w * (size - mean_size) ** 2 for w, (size, _) in zip(weights, points, strict=True))
    joint = sum(w * (size - mean_size) * (time - mean_time) for w, (size, time) in zip(weights, points, strict=True))
    beta = joint / spread if spread > 0 else 0.0
    alpha = mean_time - beta * mean_size
    if beta <= 0:
        return mean_time, 0.0
    if alpha < 0:
        squares = sum(w * size * size for w, (size, _) in zip(weights, points, strict=True))
        return 0.0, sum(w * size * time for w, (size, time) in zip(weights, points, strict=True)) / squares
    return alpha, beta


def fit_alpha_beta(points: Sequence[tuple[float, float]]) -> AlphaBeta:
    """Fit (message bytes, seconds) pairs.

    Raises:
        ValueError: fewer than two different sizes, or a time that is not positive.

    """
    if len({size for size, _ in points}) < 2:
        raise ValueError("a line needs at least two different message sizes")
    if any(time <= 0 or size < 0 for size, time in points):
        raise ValueError("sizes must not be negative and times must be positive")
    relative = [1 / time**2 for _, time in points]
    weights = list(relative)
    alpha, beta = _weighted_line(points, weights)
    for _ in range(_ROUNDS):
        errors = [abs(time - alpha - beta * size) / time for size, time in points]
        scale = 1.4826 * statistics.median(errors)
        if scale < 1e-12:
            break
        weights = [
            base * min(1.0, _HUBER_K * scale / error) if error > 0 else base
            for base, error in zip(relative, errors, strict=True)
        ]
        before = (alpha, beta)
        alpha, beta = _weighted_line(points, weights)
        if abs(alpha - before[0]) <= 1e-9 * abs(alpha) and abs(beta - before[1]) <= 1e-9 * abs(beta):
            break
    distances = [abs(time - alpha - beta * size) / max(alpha + beta * size, 1e-30) for size, time in points]
    return AlphaBeta(
        latency_seconds=alpha,
        seconds_per_byte=beta,
        median_relative_error=statistics.median(distances),
        num_points=len(points),
    )


def bus_factor(world_size: int) -> float:
    """Return bus over algorithm bandwidth of an all-reduce, 2(n-1)/n (nccl-tests, doc/PERFORMANCE.md)."""
    return 2 * (world_size - 1) / world_size

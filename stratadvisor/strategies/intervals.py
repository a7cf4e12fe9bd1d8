"""How many steps replicas go on their own before they meet: from the cost of meeting, not from a table."""

from __future__ import annotations

import math

EXCHANGE_SHARE = 0.05
"""Share of the time that exchanges may take: H >= T_exchange / (share * T_step). Our choice."""


def solved_interval(exchange_seconds: float, step_seconds: float, *, low: int, high: int) -> int:
    """Return the local steps between exchanges that keep them under ``EXCHANGE_SHARE`` of the time, within bounds."""
    if step_seconds <= 0:
        return low
    wanted = math.ceil(exchange_seconds / (EXCHANGE_SHARE * step_seconds) * (1 - 1e-9))
    return min(max(wanted, low), high)


def intervals(solved: int, usual: tuple[int, ...], *, longest: int) -> list[int]:
    """Return the solved interval and the usual ones, rising, none longer than ``longest``."""
    return sorted({min(h, longest) for h in (solved, *usual)})

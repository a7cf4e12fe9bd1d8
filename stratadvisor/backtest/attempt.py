"""Express a row or say in one sentence why not; the checks that every kind of row passes first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from stratadvisor.backtest.frameworks import completed
from stratadvisor.backtest.layouts import NotExpressibleError, check_lengths, precision_of, strategy_known
from stratadvisor.backtest.rows import Row
from stratadvisor.schema.layout import MixedPrecision

Made = TypeVar("Made")


def attempt(make: Callable[[Row], Made], row: Row) -> Made | str:
    """Return what ``make`` makes of the row, its silent cells filled, or one sentence saying why it cannot."""
    try:
        return make(completed(row))
    except NotExpressibleError as reason:
        return str(reason)
    except ValueError as problem:
        return f"contradicts itself: {str(problem).splitlines()[0]}"


def vetted_precision(row: Row) -> MixedPrecision:
    """Return the row's precision.

    Raises:
        NotExpressibleError: a source in doubt, lengths that contradict each other, an unknown strategy or precision.

    """
    if row.text("quality") == "X":
        raise NotExpressibleError("the source itself is in doubt")
    check_lengths(row)
    precision = precision_of(row)
    strategy_known(row)
    return precision

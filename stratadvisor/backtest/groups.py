"""By what runs are grouped: names of ``--by``."""

from __future__ import annotations

from stratadvisor.backtest.frameworks import framework_of
from stratadvisor.backtest.rows import COLUMNS, Row
from stratadvisor.errors import UsageError

_SHORT = {"gpu": "gpu_model", "model": "model_name", "gpus": "n_gpus", "checkpointing": "activation_ckpt"}
_COMPUTED = ("source", "framework")
DEFAULT = "gpu,strategy"


def parse(by: str) -> tuple[str, ...]:
    """Return the names of ``gpu,strategy``.

    Raises:
        UsageError: a name that is no column.

    """
    names = tuple(name.strip() for name in by.split(",") if name.strip())
    for name in names:
        if name not in _COMPUTED and _SHORT.get(name, name) not in COLUMNS:
            raise UsageError(
                f"runs cannot be grouped by {name!r}",
                hint=f"short names: {', '.join((*_SHORT, *_COMPUTED))}; any column works as well",
            )
    if not names:
        raise UsageError("--by names nothing to group by", hint=f"for example --by {DEFAULT}")
    return names


def group_of(row: Row, names: tuple[str, ...]) -> str:
    """Return the group of a run: its values, divided by commas."""
    return ", ".join(_value(row, name) for name in names)


def _value(row: Row, name: str) -> str:
    if name == "source":
        return row.source
    if name == "framework":
        return framework_of(row).name
    return row.text(_SHORT.get(name, name)) or "not stated"

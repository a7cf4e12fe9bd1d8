"""A configuration and the plan made from it, side by side."""

from __future__ import annotations

from rich.text import Text

from stratadvisor.lint.start import UNSAID, Start, changed_keys, compare
from stratadvisor.report.console import console, heading, safe, wrapped
from stratadvisor.schema.plan import Plan

MAX_KEYS = 60


def show_start(start: Start, plan: Plan, emitted: str | None) -> None:
    """Print what the plan changes; ``emitted`` is the plan's own DeepSpeed file, where it has one."""
    out = console()
    out.print(heading(f"against {start.path}"))
    rows = compare(start, plan)
    width = max(len(name) for name, _, _ in rows)
    column = max(len(there) for _, there, _ in rows)
    for name, there, here in rows:
        changed = there not in (here, UNSAID)
        mark = "*" if changed else " "
        out.print(Text(safe(f"  {mark} {name:<{width}}  {there:<{column}}  {here}"), style="bold" if changed else ""))
    if start.errors:
        wrapped(
            out, f"{start.path} has {start.errors} errors of its own: stratadvisor check shows them", style="yellow"
        )
    if emitted is None or start.kind != "deepspeed":
        return
    lines = changed_keys(start, emitted)
    out.print(heading("keys" if lines else "keys: none changed"))
    for line in lines[:MAX_KEYS]:
        out.print(Text(safe(f"  {line}"), style="red" if line.startswith("-") else "green"))
    if len(lines) > MAX_KEYS:
        wrapped(out, f"and {len(lines) - MAX_KEYS} more lines")

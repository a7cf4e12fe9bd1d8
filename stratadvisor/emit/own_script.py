"""A plan for a training script of the user's own."""

from __future__ import annotations

import ast
import os
from pathlib import Path

from stratadvisor.emit.check import parse_python
from stratadvisor.errors import UsageError
from stratadvisor.schema.plan import Plan

RUNTIME_NAMES = ("stratadvisor_runtime", "stratadvisor.runtime")


def with_script(plan: Plan, script: Path, bundle: Path) -> tuple[Plan, str]:
    """Return the plan with the script's path, relative to the bundle's folder, and what there is to say about it.

    Raises:
        UsageError: the script is missing, unreadable or no Python.

    """
    try:
        tree = parse_python(script.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"--script: {script} does not exist") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(f"--script: {script} cannot be read: {problem}") from None
    except (SyntaxError, ValueError) as problem:
        raise UsageError(f"--script: {script} is not Python: {problem}") from None
    try:
        path = os.path.relpath(script.resolve(), bundle.resolve())
    except ValueError:  # another drive
        path = str(script.resolve())
    said = ""
    if not _uses_the_runtime(tree):
        said = (
            f"{script} does not import {RUNTIME_NAMES[0]}: it will be started as planned, but batch shares, precision,"
            " sharding and exchange are then up to it; docs/runtime.md shows the three lines that hand them over"
        )
    return plan.model_copy(update={"settings": {**plan.settings, "script": path}}), said


def _uses_the_runtime(tree: ast.Module) -> bool:
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        if any(name == root or name.startswith(root + ".") for name in names for root in RUNTIME_NAMES):
            return True
    return False

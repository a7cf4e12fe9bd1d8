"""Ask a child process what a user's module has: their code, and torch, stay out of this process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from stratadvisor.errors import ModelError
from stratadvisor.schema.workload import ModelShape

TIMEOUT_SECONDS = 600.0
_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_HINT = (
    "write --model package.module:factory; the factory takes no arguments and returns a torch module,"
    " or a module and example inputs"
)


def count_module(target: str, *, timeout_seconds: float = TIMEOUT_SECONDS) -> ModelShape:
    """Return the counted totals of the module that ``package.module:factory`` makes.

    The factory is called on the meta device, where tensors have no storage; if it cannot run there, on the CPU. It
    returns a module, or a module and example inputs (a tensor, a tuple or a dictionary of them), whose first
    dimension is the batch. Without example inputs a usual input is tried, and ``source`` says which.

    Raises:
        ModelError: the target cannot be imported, fails, takes too long, or is no module with parameters.

    """
    if not _TARGET.fullmatch(target):
        raise ModelError(f"{target[:80]!r} is not of the form package.module:factory", hint=_HINT)
    found = _ask_child(target, timeout_seconds)
    if "error" in found:
        raise ModelError(f"{target}: {found['error']}", hint=_HINT)
    return ModelShape(
        name=target,
        source=str(found["source"]),
        family="module",
        num_parameters=int(found["num_parameters"]),
        num_active_parameters=int(found["num_parameters"]),
        flops_per_item=found["flops_per_item"],
        saved_bytes_per_item=found["saved_bytes_per_item"],
        factory=target,
    )


def _ask_child(target: str, timeout_seconds: float) -> dict[str, Any]:
    """Return what the child wrote; it writes a file, since the user's code may print."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-m", "stratadvisor.models_meta.child", target, str(result)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)}
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=timeout_seconds, check=False
            )
        except subprocess.TimeoutExpired:
            raise ModelError(
                f"{target} was not built and counted within {timeout_seconds:.0f} s",
                hint="give example inputs of batch 1, or the size with --model-size",
            ) from None
        if result.is_file():
            data = json.loads(result.read_text(encoding="utf-8"))
            assert isinstance(data, dict)
            return data
        last = done.stderr.strip().splitlines()[-1:] or [f"it ended with code {done.returncode}"]
        return {"error": f"counting failed: {last[0][:300]}"}

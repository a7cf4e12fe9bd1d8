"""The child process: build a module on the meta device, run it forward once, write down what was counted."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from stratadvisor.runtime.foreign import usual_input

LARGEST_ON_CPU = 500_000_000
"""Parameters above which a forward pass on the CPU is not tried."""


class CountingError(Exception):
    """One sentence for the user."""


def load(target: str) -> Callable[[], Any]:
    """Return the factory ``package.module:name``."""
    module_name, _, name = target.partition(":")
    try:
        factory = getattr(importlib.import_module(module_name), name)
    except ModuleNotFoundError as problem:
        raise CountingError(f"there is no module {problem.name!r} on the import path") from None
    except AttributeError:
        raise CountingError(f"{module_name} has no attribute {name!r}") from None
    except Exception as problem:
        raise CountingError(f"importing {module_name} failed: {_line(problem)}") from None
    if not callable(factory):
        raise CountingError(f"{name} is not callable")
    return factory  # type: ignore[no-any-return]


def make(factory: Callable[[], Any]) -> tuple[nn.Module, Any]:
    """Return (module, example inputs or None), built on the meta device where that works."""
    try:
        with torch.device("meta"):
            made = factory()
    except Exception:
        try:
            made = factory()
        except Exception as problem:
            raise CountingError(f"the factory failed: {_line(problem)}") from None
    module, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(module, nn.Module):
        raise CountingError(f"the factory returned a {type(module).__name__}, not a torch module")
    if not any(True for _ in module.parameters()):
        raise CountingError("the module has no parameters")
    return module, inputs


def _moved(value: Any, device: str) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device) if not (value.is_meta and device != "meta") else torch.zeros_like(value, device=device)
    if isinstance(value, dict):
        return {key: _moved(item, device) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(_moved(item, device) for item in value)
    return value


def _first_tensor(value: Any) -> torch.Tensor | None:
    if isinstance(value, torch.Tensor):
        return value
    items = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else ()
    return next((found for item in items if (found := _first_tensor(item)) is not None), None)


def run_forward(module: nn.Module, inputs: Any) -> tuple[float, float]:
    """Return (FLOPs, bytes that autograd keeps beside parameters, as if in fp32) of one forward pass."""
    # torch hands out the same object for a storage as long as it is referred to, so identity tells storages apart
    own_storages = [tensor.untyped_storage() for tensor in (*module.parameters(), *module.buffers())]
    own = set(map(id, own_storages))
    kept: dict[int, tuple[Any, float]] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if id(storage) not in own:
            size = tensor.element_size()
            grown = 4 / size if tensor.is_floating_point() and size < 4 else 1.0
            kept[id(storage)] = (storage, storage.nbytes() * grown)
        return tensor

    counter = FlopCounterMode(display=False)
    with counter, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        if isinstance(inputs, dict):
            output = module(**inputs)
        elif isinstance(inputs, tuple):
            output = module(*inputs)
        else:
            output = module(inputs)
    del output
    return float(counter.get_total_flops()), sum(size for _, size in kept.values())


def count(target: str) -> dict[str, Any]:
    """Return what was counted, in base units; None where a forward pass was not possible, with the reason in source."""
    module, inputs = make(load(target))
    module.train()
    parameters = sum(p.numel() for p in module.parameters())
    found: dict[str, Any] = {"num_parameters": parameters, "flops_per_item": None, "saved_bytes_per_item": None}
    assumed = inputs is None
    if assumed:
        inputs = usual_input(module)
    first = _first_tensor(_moved(inputs, "meta"))
    if first is None or first.ndim == 0:
        return {**found, "source": f"parameters counted from {target}; no example inputs to run it with"}
    shape = "x".join(str(edge) for edge in first.shape)
    problems = []
    for device in ("meta", "cpu"):
        if device == "cpu" and parameters > LARGEST_ON_CPU:
            break
        try:
            placed = module.to("meta") if device == "meta" else _on_cpu(target, module)
            flops, saved = run_forward(placed, _moved(inputs, device))
        except Exception as problem:
            problems.append(_line(problem))
            continue
        items = first.shape[0]
        how = f"{'a usual' if assumed else 'its example'} input of {shape}"
        return {
            **found,
            "flops_per_item": flops / items,
            "saved_bytes_per_item": saved / items,
            "source": f"counted from {target} on the {device} device with {how}",
        }
    return {**found, "source": f"parameters counted from {target}; it did not run forward: {problems[0]}"}


def _on_cpu(target: str, module: nn.Module) -> nn.Module:
    """Return the module with storage: made again when it lost it."""
    if any(p.is_meta for p in module.parameters()):
        made = load(target)()
        module = made[0] if isinstance(made, tuple) else made
    return module.train()


def _line(problem: Exception) -> str:
    text = (str(problem).strip().splitlines() or [""])[0]
    return f"{type(problem).__name__}: {text}"[:300]


def main() -> int:
    """Count ``argv[1]`` and write JSON to ``argv[2]``."""
    target, result = sys.argv[1], Path(sys.argv[2])
    try:
        found = count(target)
    except CountingError as problem:
        found = {"error": str(problem)}
    result.write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

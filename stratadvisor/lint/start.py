"""A configuration that exists as the starting point of a recommendation, and what the recommendation changes in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stratadvisor.lint.detect import detect
from stratadvisor.lint.finding import Kind, dotted
from stratadvisor.lint.layout import SHARDING, Setting, setting_of
from stratadvisor.lint.reader import read_config
from stratadvisor.lint.run import check_file
from stratadvisor.lint.subject import whole
from stratadvisor.schema.plan import Plan

UNSAID = "not said"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a file says that a workload can take over."""

    path: Path
    kind: Kind
    data: dict[Any, Any]
    setting: Setting
    global_batch_size: int | None
    """Sequences per optimizer step; None where the file does not decide it."""
    precision: str | None
    optimizer: str | None
    errors: int
    """Findings of the severity error."""


def starting_point(path: Path, *, num_devices: int) -> Start:
    """Return what a configuration sets on a number of devices.

    Raises:
        UsageError: the file cannot be read, or nothing says whose it is.

    """
    data = read_config(path).data
    kind = detect(data, str(path))
    setting = setting_of(kind, data, num_devices)
    total = whole(data.get("train_batch_size")) if kind == "deepspeed" else None
    if total is None and setting.micro_batch_size is not None and kind in ("deepspeed", "transformers"):
        total = setting.micro_batch_size * setting.gradient_accumulation_steps * num_devices
    return Start(
        path=path,
        kind=kind,
        data=data,
        setting=setting,
        global_batch_size=total if total is not None and total >= 1 else None,
        precision=None if setting.precision is None else setting.precision.removesuffix("_pure"),
        optimizer=setting.optimizer,
        errors=check_file(path, world_size=num_devices).count("error"),
    )


def compare(start: Start, plan: Plan) -> tuple[tuple[str, str, str], ...]:
    """Return (setting, in the file, in the plan) of everything a file and a plan both decide."""
    here = start.setting
    micro = sorted({g.micro_batch_size for g in plan.groups})
    steps = sorted({g.gradient_accumulation_steps for g in plan.groups})
    batch = start.global_batch_size
    return (
        ("divided", _divided(here.sharding), _divided(plan.memory.sharding)),
        ("micro batch", _said(here.micro_batch_size), " and ".join(map(str, micro))),
        ("accumulation", str(here.gradient_accumulation_steps), " and ".join(map(str, steps))),
        ("global batch", _said(batch), str(plan.batch.global_batch_size)),
        ("precision", _said(here.precision), plan.precision),
        ("optimizer", _said(here.optimizer), plan.workload.optimizer),
        ("activation checkpointing", _said(here.activation_checkpointing), plan.memory.activation_checkpointing),
        ("optimizer offload", here.optimizer_offload, plan.memory.optimizer_offload),
        ("parameter offload", here.parameter_offload, plan.memory.parameter_offload),
    )


def _said(value: object) -> str:
    return UNSAID if value is None else str(value)


def _divided(sharding: str) -> str:
    names = ("nothing", "states (ZeRO 1)", "states, gradients (ZeRO 2)", "states, gradients, parameters (ZeRO 3)")
    return names[SHARDING.index(sharding)] if sharding in SHARDING else sharding


def changed_keys(start: Start, emitted: str) -> tuple[str, ...]:
    """Return the keys that differ between a DeepSpeed file and an emitted one: "- old", "+ new", in order of keys."""
    old, new = dict(_flat(start.data)), dict(_flat(json.loads(emitted)))
    lines: list[str] = []
    for key in sorted(old.keys() | new.keys()):
        if key in old and key in new and _same(old[key], new[key]):
            continue
        lines += [f"- {key} = {json.dumps(old[key])}"] if key in old else []
        lines += [f"+ {key} = {json.dumps(new[key])}"] if key in new else []
    return tuple(lines)


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _flat(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(inner, (*path, str(key)))
    else:
        yield dotted(path), value

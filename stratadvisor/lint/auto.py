""" "auto" in a DeepSpeed file: filled by Trainer, Accelerate and Lightning, a plain text for everybody else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stratadvisor.lint.known import known
from stratadvisor.lint.subject import AUTO, Subject

OWN_AUTO = frozenset(
    {
        "zero_optimization.zenflow.select_strategy",
        "zero_optimization.zenflow.select_interval",
        "zero_optimization.zenflow.update_interval",
        "data_types.keep_in_fp32_modules",
        "pipeline.stages",
    }
)
"""Keys whose "auto" DeepSpeed itself understands."""
ACCELERATE_FILLS = frozenset(
    {
        "zero_optimization.stage",
        "zero_optimization.offload_optimizer.device",
        "zero_optimization.offload_optimizer.nvme_path",
        "zero_optimization.offload_param.device",
        "zero_optimization.offload_param.nvme_path",
        "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    }
)
"""DeepSpeedPlugin.fill_match of accelerate 1.15.0, beyond what the Trainer fills."""
BATCH = frozenset({"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"})


def autos(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of every "auto"."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from autos(inner, (*path, str(key)))
    elif value == AUTO:
        yield path


def check_auto(subject: Subject) -> None:
    """Report "auto" by who reads the file."""
    found = [path for path in autos(subject.data) if ".".join(path) not in OWN_AUTO]
    if not found:
        return
    filled = known("transformers").filled_in_deepspeed
    if subject.loader in ("accelerate", "lightning", "unknown"):
        filled |= ACCELERATE_FILLS
    if subject.loader == "none":
        for path in found:
            what = "is compared with numbers" if ".".join(path) in BATCH else "is dropped or taken as a text"
            subject.report("DS213", path, f'"auto" {what} by plain DeepSpeed', "a value")
        return
    for path in found:
        if ".".join(path) not in filled:
            subject.report(
                "DS212",
                path,
                f'nothing fills "auto" in {path[-1]}; DeepSpeed\'s default takes its place',
                "a value, or delete it",
            )
    if subject.loader == "unknown":
        subject.report(
            "DS211",
            found[0],
            f'"auto" in {len(found)} places: right for Trainer and Accelerate, wrong for a plain deepspeed.initialize',
            "--loader none checks it for a plain script, --loader transformers for the Trainer",
        )

"""Which framework a file is for, from its keys."""

from __future__ import annotations

from typing import Any

from stratadvisor.errors import UsageError
from stratadvisor.lint.finding import Kind
from stratadvisor.lint.known import KINDS, changes, known
from stratadvisor.lint.lightning_rules import trainer_path

TELLING: dict[Kind, frozenset[str]] = {
    "deepspeed": frozenset(
        {"zero_optimization", "train_micro_batch_size_per_gpu", "zero_allow_untested_optimizer", "steps_per_print"}
    ),
    "accelerate": frozenset(
        {"distributed_type", "compute_environment", "machine_rank", "num_machines", "downcast_bf16"}
    ),
    "lightning": frozenset({"trainer", "devices", "accumulate_grad_batches", "gradient_clip_val", "max_epochs"}),
    "transformers": frozenset(
        {"per_device_train_batch_size", "output_dir", "learning_rate", "num_train_epochs", "evaluation_strategy"}
    ),
}
"""Keys that only one of them has; each counts as three."""
LEAST = 2
"""A single word that happens to be an argument's name says nothing."""
FOREIGN = {"Axolotl": ("base_model", "micro_batch_size"), "LLaMA-Factory": ("model_name_or_path", "finetuning_type")}
"""Programs around the Trainer with file formats of their own, told by keys that their files always have."""
MANY, FEWEST = 8, 0.25
"""A file of at least MANY keys must have FEWEST of them in common with its kind: our own documents have not."""


def detect(data: dict[Any, Any], name: str) -> Kind:
    """Return the kind of a configuration.

    Raises:
        UsageError: nothing in the file says which one it is, or two kinds fit equally well.

    """
    scores = {kind: _score(kind, data) for kind in KINDS}
    best = max(scores.values())
    winners = [kind for kind in KINDS if scores[kind] == best]
    if best < LEAST or len(winners) > 1:
        what = (
            f"could be for {' or '.join(winners)}"
            if best >= LEAST
            else f"has {'too few keys' if best else 'no key'} of DeepSpeed, Accelerate, Lightning or the Trainer"
        )
        raise UsageError(f"{name} {what}", hint=f"--kind says which: {', '.join(KINDS)}")
    if winners[0] == "transformers":
        for reader, marks in FOREIGN.items():
            if all(mark in data for mark in marks):
                raise UsageError(
                    f"{name} looks like a file for {reader}, whose keys are its own",
                    hint="--kind transformers compares it with TrainingArguments all the same",
                )
    if not trainer_path(data) and len(data) >= MANY and _recognised(winners[0], data) < FEWEST * len(data):
        raise UsageError(
            f"{name} has few keys of {winners[0]} and many of something else",
            hint=f"--kind checks it all the same: {', '.join(KINDS)}",
        )
    return winners[0]


def _recognised(kind: Kind, data: dict[Any, Any]) -> int:
    names = known(kind).sections[""] | {path for path in changes(kind) if "." not in path}
    return sum(key in names for key in data)


def _score(kind: Kind, data: dict[Any, Any]) -> int:
    if kind == "lightning" and trainer_path(data):
        return 3 * len(TELLING[kind]) + len(data)
    names = known(kind).sections[""] | {path for path in changes(kind) if "." not in path}
    return sum((3 if key in TELLING[kind] else 1) for key in data if key in names or key in TELLING[kind])

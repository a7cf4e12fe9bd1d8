"""What a branch of the flowchart may set, and what walking the flowchart returns."""

from __future__ import annotations

import re
from typing import Literal

from stratadvisor.schema.base import Document
from stratadvisor.schema.plan import Decision

Scalar = str | int | float | bool

FAMILIES = (
    "single",
    "synchronous",
    "uneven_synchronous",
    "hierarchical",
    "local_sgd",
    "asynchronous",
    "federated",
)
"""synchronous: ddp, fsdp2, hsdp, zero*, tp_fsdp2, megatron_3d; uneven_synchronous: the same with shares by speed;
hierarchical: exact inside a node, delayed or periodic across; local_sgd: DiLoCo; asynchronous: parameter server with
delay compensation; federated: nodes whose data may not leave them meet by weights."""

SETTABLE: dict[str, tuple[Literal["text", "boolean", "number"], tuple[str, ...]]] = {
    "family": ("text", FAMILIES),
    "precision": ("text", ("fp32", "bf16", "fp16", "bf16_pure")),
    "offload_allowed": ("boolean", ()),
    "pin_memory": ("boolean", ()),
    "checkpointing_allowed": ("boolean", ()),
    "minimum_sharding": ("text", ("none", "optimizer", "gradients", "parameters")),
    "model_parallel_allowed": ("boolean", ()),
    "compression": ("text", ("none", "bf16", "fp16", "sign")),
    "data_loader_workers": ("number", ()),
    "compile_model": ("boolean", ()),
}
"""Key -> type and allowed texts ("" for any). ``environment.NAME`` (text) may be set as well."""

ENVIRONMENT_PREFIX = "environment."

LOADS_CODE = re.compile(
    r"(?:LD|DYLD)_.*|PYTHON.*|PATH|BASH_ENV|ENV|IFS|SHELLOPTS|BASHOPTS|PS4|HOME|TMPDIR|GCONV_PATH|CC|CXX|CUDA_HOME"
    r"|.*(?:PLUGIN|INJECTION|PRELOAD|CONF_FILE).*"
)
"""Variables that name code to load or files to run: a rule of a stranger must not set them (PYTHONPATH, LD_PRELOAD,
NCCL_NET_PLUGIN, CUDA_INJECTION64_PATH). A user sets them outside."""


class RuleOutcome(Document):
    """The path through the flowchart and what it sets."""

    decisions: tuple[Decision, ...]
    settings: dict[str, Scalar]
    """Keys of SETTABLE and environment.*; a later branch wins over an earlier one."""
    warnings: tuple[str, ...] = ()
    ruleset_digest: str = ""

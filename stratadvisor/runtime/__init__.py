"""The training side: what a bundle carries. Torch and the standard library only, relative imports only.

A bundle holds a copy of the files that its engine needs, as the folder ``stratadvisor_runtime``.
"""

from __future__ import annotations

_CORE = (
    "__init__.py",
    "checkpoint.py",
    "clock.py",
    "config.py",
    "data.py",
    "distributed.py",
    "energy.py",
    "engine.py",
    "foreign.py",
    "integrity.py",
    "loader.py",
    "lora.py",
    "loop.py",
    "model.py",
    "optimizer.py",
    "program.py",
    "randomness.py",
    "sampler.py",
    "shards.py",
    "telemetry.py",
    "tensorboard.py",
    "transport.py",
)

MODULES_BY_ENGINE: dict[str, tuple[str, ...]] = {
    "single": _CORE,
    "ddp": (*_CORE, "compression.py", "ddp.py"),
    "fsdp2": (*_CORE, "fsdp.py"),
    "hsdp": (*_CORE, "fsdp.py"),
    "tp_fsdp2": (*_CORE, "fsdp.py", "tensor_parallel.py"),
    "hierarchical": (
        *_CORE,
        "compression.py",
        "ddp.py",
        "hierarchical.py",
        "local.py",
        "node_replicas.py",
        "overlap.py",
    ),
    "deepspeed": (*_CORE, "deepspeed_engine.py"),
    "diloco": (*_CORE, "compression.py", "diloco.py", "int8.py", "local.py", "overlap.py", "torchft_engine.py"),
    "diloco_nodes": (
        *_CORE,
        "compression.py",
        "ddp.py",
        "diloco.py",
        "diloco_nodes.py",
        "int8.py",
        "local.py",
        "node_replicas.py",
        "overlap.py",
        "torchft_engine.py",
    ),
    "adaptive": (
        *_CORE,
        "adaptive.py",
        "adaptive_engine.py",
        "compression.py",
        "ddp.py",
        "diloco.py",
        "int8.py",
        "local.py",
        "overlap.py",
        "torchft_engine.py",
    ),
    "async_sgd": (
        *_CORE,
        "async_server.py",
        "async_sgd.py",
        "compression.py",
        "delayed_nesterov.py",
        "local.py",
        "overlap.py",
        "own_state.py",
        "parameter_server.py",
    ),
}
"""Engine of train_config.json -> files of this folder that its bundle carries."""

FOR_OTHER_FRAMEWORKS = ("federated.py", "library.py")
"""Files that no engine needs: programs of a target import them."""

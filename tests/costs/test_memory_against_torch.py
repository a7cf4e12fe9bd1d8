"""The model states, activations and scores that torch's own tracker counts for the runtime's transformer.

Fake tensors on the CPU and a fake process group: no memory is used and nothing is computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from stratadvisor.costs.memory import estimate
from stratadvisor.runtime.config import ModelConfig
from stratadvisor.runtime.model import Transformer
from stratadvisor.schema.layout import Layout
from stratadvisor.schema.workload import ModelShape

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker  # noqa: E402
from torch.distributed._tools.mem_tracker import MemTracker  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

RANKS = 8
COUNTED = ("parameters", "gradients", "optimizer_states", "activations", "logits", "gathered_units")


@pytest.fixture(scope="module")
def mesh() -> Iterator[Any]:
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield init_device_mesh("cpu", (RANKS,))
    dist.destroy_process_group()


def make_shape(**changes: Any) -> ModelShape:
    values: dict[str, Any] = {
        "name": "small",
        "num_parameters": 1,
        "num_active_parameters": 1,
        "num_layers": 8,
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "ffn_hidden_size": 2816,
        "vocab_size": 8192,
    }
    values.update(changes)
    model = Transformer(ModelConfig(**_config(values)))
    return ModelShape(**{**values, "num_parameters": sum(p.numel() for p in model.parameters())})


def _config(values: dict[str, Any]) -> dict[str, Any]:
    known = ModelConfig.__dataclass_fields__
    return {key: value for key, value in values.items() if key in known}


def tracked_peak(shape: ModelShape, layout: Layout, mesh: Any) -> dict[str, float]:
    """Return the peak of the second step (the first makes the optimizer states), in bytes by kind."""
    model_config = ModelConfig(**_config(shape.model_dump()))
    half = layout.precision != "fp32"
    with FakeTensorMode():
        model = Transformer(model_config, layout.activation_checkpointing)
        if layout.engine == "fsdp2":
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
            options = {"mesh": mesh, "mp_policy": policy if half else MixedPrecisionPolicy()}
            for layer in model.layers:
                fully_shard(layer, **options)
            fully_shard(model, **options)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        autocast = half and layout.engine == "torch"
        tokens = torch.zeros(layout.micro_batch_size, layout.sequence_length, dtype=torch.int64)

        def step() -> None:
            for _ in range(layout.gradient_accumulation_steps):
                with torch.autocast("cpu", dtype=torch.bfloat16) if autocast else nullcontext():
                    loss = model(tokens, tokens)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        step()
        tracker = FSDPMemTracker(model, optimizer) if layout.engine == "fsdp2" else MemTracker()
        if layout.engine != "fsdp2":
            tracker.track_external(model, optimizer)
        with tracker:
            step()
        found = tracker.get_tracker_snapshot("peak")
    return {str(getattr(kind, "value", kind)): float(value) for kind, value in found[torch.device("cpu")].items()}

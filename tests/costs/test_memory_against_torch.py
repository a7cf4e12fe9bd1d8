"""The model states, activations and scores that torch's own tracker counts for the runtime's transformer.

Fake tensors on the CPU and a fake process group: no memory is used and nothing is computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from stratadvisor.costs.activations import layer_bytes
from stratadvisor.costs.memory import estimate
from stratadvisor.costs.parameters import count_parameters
from stratadvisor.costs.states import recipe
from stratadvisor.runtime.config import ModelConfig
from stratadvisor.runtime.lora import add_adapters
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
        "num_layers": 3,
        "hidden_size": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "ffn_hidden_size": 1408,
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


GPT: dict[str, Any] = {
    "gated_mlp": False,
    "learned_positions": True,
    "norm_bias": True,
    "attention_bias": True,
    "mlp_bias": True,
    "num_key_value_heads": 8,
    "ffn_hidden_size": 2048,
    "max_sequence_length": 2048,
    "tied_embeddings": True,
}
FSDP2: dict[str, Any] = {"engine": "fsdp2", "sharding": "parameters", "data_parallel_shard_degree": RANKS}
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("llama, one device, bf16, no checkpointing", {}, {"precision": "bf16"}),
    ("llama, one device, bf16, full", {}, {"precision": "bf16", "activation_checkpointing": "full"}),
    ("llama, FSDP2, bf16, no checkpointing", {}, {**FSDP2}),
    ("llama, FSDP2, bf16, selective", {}, {**FSDP2, "activation_checkpointing": "selective"}),
    ("llama, FSDP2, fp32, full", {}, {**FSDP2, "precision": "fp32", "activation_checkpointing": "full"}),
    ("llama, one device, bf16, small vocabulary", {"vocab_size": 256}, {"activation_checkpointing": "full"}),
    ("gpt, one device, bf16, selective", GPT, {"activation_checkpointing": "selective"}),
    ("gpt, FSDP2, bf16, no checkpointing", GPT, {**FSDP2}),
]


@pytest.mark.parametrize(("changes", "layout"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_states_activations_and_scores_agree_with_the_tracker_of_torch(
    changes: dict[str, Any], layout: dict[str, Any], mesh: Any
) -> None:
    shape = make_shape(**changes)
    plan = Layout(**{"sequence_length": 1024, "micro_batch_size": 4, "precision": "bf16", **layout})
    terms = estimate(shape, plan, device_kind="cpu", ranks_per_node=1).terms_bytes
    assert sum(terms[name] for name in COUNTED) == pytest.approx(tracked_peak(shape, plan, mesh)["Total"], rel=0.05)


def saved_bytes(shape: ModelShape, rank: int, sequences: int, length: int) -> int:
    """Return what autograd keeps of a frozen 16-bit model with adapters, beside its parameters."""
    model = Transformer(ModelConfig(**_config(shape.model_dump())), "none")
    add_adapters(model, SimpleNamespace(method="lora", lora_rank=rank))  # type: ignore[arg-type]  # all it reads
    for name, parameter in model.named_parameters():
        if ".base." in name:
            parameter.data = parameter.data.to(torch.bfloat16)  # as the engine does, so that no cast is kept
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, Any] = {}

    def keep(tensor: Any) -> Any:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    tokens = torch.zeros(sequences, length, dtype=torch.int64)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), torch.autocast("cpu", torch.bfloat16):
        model(tokens, tokens)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize("changes", [{"num_key_value_heads": 8}, GPT], ids=["llama", "gpt"])
def test_a_layer_with_adapters_keeps_what_autograd_keeps(changes: dict[str, Any]) -> None:
    two, four = (make_shape(**{"vocab_size": 256, **changes, "num_layers": layers}) for layers in (2, 4))
    plan = Layout(sequence_length=256, micro_batch_size=2, precision="bf16", method="lora", lora_rank=4)
    measured = (saved_bytes(four, 4, 2, 256) - saved_bytes(two, 4, 2, 256)) / 2 / 512
    adapters = 2 * count_parameters(two).adapter_edges_per_layer * 4 / 512  # cast to 16 bit: no activations
    counted = layer_bytes(two, plan, recipe(plan, count_parameters(two))).full
    assert counted == pytest.approx(measured - adapters, rel=0.05)

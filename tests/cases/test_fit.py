"""Cases O-01 to O-08: does it fit the devices?"""

from __future__ import annotations

import pytest
from case_support import (
    ADAM,
    ADAM_STATES,
    FULL_OFFLOAD,
    GIB,
    declare,
    divided,
    needs,
    plan_for,
    shape_of,
    states_bytes,
    stays,
)

from stratadvisor.errors import NoFeasiblePlanError, UsageError

A100 = "A100-80GB-SXM"
TRAIN = {"gradient_accumulation_steps": 2, "activation_checkpointing": "full"}
ZERO2 = {"engine": "deepspeed", "sharding": "gradients"}
ZERO3 = {"engine": "deepspeed", "sharding": "parameters"}


def refusal(*where, **work) -> str:
    with pytest.raises(NoFeasiblePlanError) as refused:
        plan_for(*where, **work)
    return f"{refused.value} {refused.value.hint}"


def gib(parameters: float, bytes_each: float, ranks: int = 1) -> float:
    return parameters * bytes_each / ranks / GIB


def test_o01() -> None:
    """7B on one A100: 16 bytes per parameter are 100 GiB; a smaller batch cannot help."""
    seven = shape_of("7B").num_parameters
    assert gib(seven, ADAM) > 80
    assert states_bytes(needs("7B", engine="torch", **TRAIN)) / GIB == pytest.approx(gib(seven, ADAM), rel=0.04)
    said = refusal(declare(f"1x{A100}", host_gib=64), "7B")
    assert gib(seven, ADAM_STATES) > 64
    assert "64 GiB host memory" in said
    assert "batch" not in said.split("what would fit")[1]
    assert plan_for(declare(f"1x{A100}", host_gib=256), "7B").memory.optimizer_offload == "cpu"
    assert gib(seven, ADAM, 2) < 0.95 * 80
    two = plan_for(declare(f"2x{A100}", host_gib=64), "7B")
    assert divided(two)


def test_o02() -> None:
    """7B in full on a desktop: the host is too small for offload, and the card is held by something else."""
    seven = shape_of("7B").num_parameters
    desktop = 'device = { memory = "24576MiB", memory_free = "900MiB" }'
    said = refusal(declare("1x3090", host_gib=64, more=desktop), "7B")
    assert gib(seven, ADAM_STATES) > 64
    assert gib(seven, FULL_OFFLOAD) > 64
    assert "64 GiB host memory" in said
    assert "900 MiB free" in said
    assert f"{(24576 - 900) / 1024:.1f} GiB" in said  # what holds the card
    free = declare("1x3090", host_gib=64)
    assert "--method lora" in refusal(free, "7B")
    assert stays(plan_for(free, "7B", method="qlora"))


def test_o03() -> None:
    """7B on 4 x 40 GB: 25 GiB of states each, so no offload; stage 2 is too tight."""
    seven = shape_of("7B").num_parameters
    usable = 39.4 * GIB
    assert ADAM * seven / 4 < 0.7 * usable
    plan = plan_for(declare("4xA100-40GB-SXM", host_gib=256), "7B", sequence_length=512)
    assert divided(plan)
    assert plan.groups[0].micro_batch_size >= 2
    others = {a.strategy: a for a in plan.alternatives}
    assert plan.strategy in ("fsdp2", "zero3") or others["fsdp2"].feasible
    assert not others["zero2"].feasible
    room = {"sequence_length": 512, "data_parallel_shard_degree": 4, **TRAIN}
    assert needs("7B", **ZERO2, **room).peak_bytes.high > 0.95 * usable
    assert needs("7B", **ZERO3, **room).peak_bytes.high < 0.95 * usable


def test_o04() -> None:
    """70B on 8 x 80 GB: the optimizer decides. 16 bytes are 138 GB a card, 6 are 51.7 GB, as a maintainer measured."""
    seventy = shape_of("70B").num_parameters
    assert gib(seventy, ADAM, 8) > 80
    assert gib(seventy, ADAM_STATES) < 1000  # and yet gradients and pinned copies come on top
    said = refusal(declare(f"8x{A100}", host_gib=1000), "70B")
    assert "1000 GiB host memory" in said
    assert "--optimizer adamw8bit --precision bf16_pure" in said
    assert "fp32 copy" in said  # the price
    plan = plan_for(declare(f"8x{A100}", host_gib=1000), "70B", optimizer="adamw8bit", precision="bf16_pure")
    assert stays(plan)
    terms = plan.groups[0].memory_terms_bytes
    held = terms["parameters"] + terms["gradients"] + terms["optimizer_states"]
    assert held == pytest.approx(6 * seventy / 8, rel=0.04)
    assert plan_for(declare(f"8x{A100}", host_gib=2000), "70B").memory.optimizer_offload == "cpu"


def test_o05() -> None:
    """LoRA 7B at 4096 tokens on 24 GB: 34 s h L bytes of activations, unless they are computed again."""
    activations = 34 * 4096 * 4096 * 32
    assert activations + 2 * shape_of("llama-2-7b").num_parameters > 24 * GIB
    lora = {"method": "lora", "lora_rank": 8, "sequence_length": 4096}
    plain = needs("llama-2-7b", **lora)
    assert plain.terms_bytes["activations"] >= activations
    assert plain.peak_bytes.low > 24 * GIB
    plan = plan_for(declare("1x3090", host_gib=64), "llama-2-7b", **lora)
    assert stays(plan)
    assert plan.memory.activation_checkpointing != "none"


def test_o06() -> None:
    """32k tokens x 152064 scores x 10 bytes: 49.8 GB at once, whatever is sharded or moved away."""
    scores = 32768 * 152064
    sharded = needs(
        "qwen2.5-7b",
        **{**ZERO3, **TRAIN, "method": "lora", "sequence_length": 32768, "data_parallel_shard_degree": 8},
    )
    offloaded = needs(
        "qwen2.5-7b",
        **{**ZERO3, **TRAIN, "method": "lora", "sequence_length": 32768, "data_parallel_shard_degree": 8},
        parameter_offload="cpu",
        optimizer_offload="cpu",
    )
    for found in (sharded, offloaded):
        assert 10 * scores <= found.terms_bytes["logits"] <= 12.5 * scores
    where = declare(f"8x{A100}", host_gib=512)
    try:
        long = plan_for(where, "qwen2.5-7b", method="lora", sequence_length=32768)
    except NoFeasiblePlanError as refused:
        assert "chunked or fused cross-entropy" in str(refused)
        assert "--seq-len" in (refused.hint or "")
        assert "offload" not in (refused.hint or "")
    else:  # only where several devices share a sequence or its vocabulary
        assert long.parallelism.tensor_parallel_degree * long.parallelism.context_parallel_degree > 1
    assert stays(plan_for(where, "qwen2.5-7b", method="lora", sequence_length=8192))


def test_o07() -> None:
    """40 heads and 16 devices: what divides heads divides 40; 16 does not, 8 does."""
    shape = shape_of("qwen2.5-14b")
    assert (shape.num_attention_heads, shape.num_key_value_heads) == (40, 8)
    valid = [d for d in range(1, 17) if shape.num_attention_heads % d == 0]
    assert 16 not in valid
    plan = plan_for(declare(f"8x{A100}", nodes=2, network="200Gb/s"), shape, sequence_length=65536)
    heads = plan.parallelism.tensor_parallel_degree * plan.parallelism.context_parallel_degree
    assert plan.parallelism.tensor_parallel_degree in valid
    assert heads != 16
    assert plan.parallelism.world_size % heads == 0
    assert heads > 1  # one device cannot hold 65536 tokens


def test_o08() -> None:
    """One device: there is nobody to divide with, so a stage alone changes nothing."""
    where = declare(f"1x{A100}", host_gib=512)
    plan = plan_for(where, "7B")
    assert plan.memory.zero_stage == 0 or plan.memory.optimizer_offload == "cpu"
    alone, divided = (states_bytes(needs("7B", **ZERO3, **TRAIN, data_parallel_shard_degree=n)) for n in (1, 8))
    assert alone == pytest.approx(8 * divided)
    with pytest.raises(UsageError, match="no effect"):
        plan_for(where, "7B", strategy="zero3")

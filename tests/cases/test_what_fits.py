"""Trouble that people reported with memory, and the answer that would have helped them.

Figures in the cases' arithmetic: GB = 1e9 bytes, P parameters, N ranks; mixed-precision Adam holds 16 bytes per
parameter, 12 of them optimizer states (arXiv:1910.02054, section 3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest

from stratadvisor import pipeline
from stratadvisor.costs.buffers import zero_bucket_elements
from stratadvisor.costs.memory import estimate
from stratadvisor.derive import declared
from stratadvisor.errors import NoFeasiblePlanError
from stratadvisor.schema.layout import Layout, MemoryEstimate
from stratadvisor.schema.plan import Plan
from stratadvisor.schema.profile import ClusterProfile
from stratadvisor.schema.workload import ModelShape
from stratadvisor.units import GIB

A100, A100_40, V100, T4, DESKTOP = (
    'gpus = "{}xA100-80GB-SXM"',
    'gpus = "{}xA100-40GB-SXM"',
    'gpus = "{}xV100-32GB-SXM"\ndevice = {{ memory = "32508MiB" }}',
    'gpus = "{}xT4"\ndevice = {{ memory = "15109MiB" }}',
    'gpus = "{}x3090"',
)
OLD_CARD = 'gpus = "{}x1080 Ti"\ndevice = {{ name = "GTX 1080 Ti", memory = "11GiB", fp32 = "11.3TFLOP/s" }}'
FULL_CARD = 'gpus = "{}x3090"\ndevice = {{ memory = "24576MiB", memory_free = "900MiB" }}'


@dataclass(frozen=True)
class Machine:
    kind: str
    devices: int
    host_gib: int
    nodes: int = 1

    @property
    def text(self) -> str:
        network = 'inter_node = "200Gb/s"\n' if self.nodes > 1 else ""
        about = f'count = {self.nodes}\nhost_memory = "{self.host_gib}GiB"\n'
        return f"{network}[[node]]\n{about}{self.kind.format(self.devices)}\n"


@dataclass(frozen=True)
class Case:
    name: str
    machine: Machine
    model: str
    """A size or a name of the catalog."""
    work: dict[str, Any] = field(default_factory=dict)
    right: Callable[[Plan], bool] | None = None
    """None: nothing fits."""
    says: tuple[str, ...] = ()
    """Parts of the refusal and its hint."""


def size_or_name(model: str) -> ModelShape:
    if model[0].isdigit():
        return pipeline.resolve_model(model_size=model, model=None)
    return pipeline.resolve_model(model_size=None, model=model)


@pytest.fixture
def profile_of(tmp_path) -> Callable[[Machine], ClusterProfile]:
    def read(machine: Machine) -> ClusterProfile:
        path = tmp_path / "cluster.toml"
        path.write_text(machine.text, encoding="utf-8")
        return declared.read_cluster_file(path)

    return read


def stays(plan: Plan) -> bool:
    """Whether nothing is offloaded."""
    return plan.memory.optimizer_offload == plan.memory.parameter_offload == "none"


def offloads(plan: Plan) -> bool:
    return plan.memory.optimizer_offload == "cpu"


def together(plan: Plan) -> int:
    """Devices that work on the same sequences."""
    degrees = plan.parallelism
    return degrees.tensor_parallel_degree * degrees.pipeline_parallel_degree * degrees.context_parallel_degree


def sharded(plan: Plan) -> bool:
    """Whether weights are divided, by data-parallel shards or by layers' parts."""
    divided = plan.memory.sharding == "parameters" and plan.parallelism.data_parallel_shard_degree > 1
    return stays(plan) and (divided or together(plan) > 1)


def whole_copies(plan: Plan) -> bool:
    """Whether every device keeps all weights."""
    return stays(plan) and plan.memory.sharding != "parameters"


def marginal(plan: Plan) -> bool:
    return any("marginal" in warning for warning in plan.warnings)


CASES = (
    # 6.74e9 x 16 = 100.4 GiB of states > 80; the optimizer's 12 bytes alone are 75 GiB > 64 GiB of host memory
    Case("7B on one A100, small host", Machine(A100, 1, 64), "7B", says=("64 GiB host memory", "--method lora")),
    Case("7B on one A100, large host", Machine(A100, 1, 256), "7B", right=offloads),
    Case("7B on two A100", Machine(A100, 2, 64), "7B", right=sharded),  # 50.2 GiB each
    Case("7B on one A100: stages need ranks", Machine(A100, 1, 512), "7B", right=offloads),
    # 18 bytes per parameter on the host are 113 GiB
    Case("7B on a desktop card", Machine(DESKTOP, 1, 64), "7B", says=("64 GiB host memory", "--method lora")),
    Case("7B on a desktop card in use", Machine(FULL_CARD, 1, 64), "7B", says=("900 MiB free", "23.1 GiB")),
    Case("QLoRA 7B on a desktop card", Machine(DESKTOP, 1, 64), "7B", {"method": "qlora"}, stays),
    # 107.8 GB / 4 = 25.1 GiB of 40
    Case("7B on four 40 GB cards", Machine(A100_40, 4, 256), "7B", {"sequence_length": 512}, sharded),
    # 69.0e9 x 16 / 8 = 128.5 GiB; 12 bytes on the host are 771 GiB before buffers, 20 with gradients and pinning 1285
    Case("70B on eight A100, 1000 GiB", Machine(A100, 8, 1000), "70B", says=("1000 GiB host memory",)),
    Case("70B on eight A100, 2000 GiB", Machine(A100, 8, 2000), "70B", right=offloads),
    Case("70B on eight A100, 248 GiB", Machine(A100, 8, 248), "70B", says=("248 GiB host memory", "--method lora")),
    # 16 P / 16 = 64 GiB
    Case("70B on sixteen A100", Machine(A100, 8, 248, nodes=2), "70B", right=sharded),
    # 72.7e9 x 16 / 32 = 33.9 GiB
    Case("72B on 32 A100", Machine(A100, 8, 1000, nodes=4), "72B", right=sharded),
    # 34 s h L = 18.3 GB of activations beside 13.5 GB of weights > 25.8 GB
    Case(
        "LoRA 7B at 4k on a desktop card",
        Machine(DESKTOP, 1, 64),
        "llama-2-7b",
        {"method": "lora", "lora_rank": 8, "sequence_length": 4096},
        lambda plan: stays(plan) and plan.memory.activation_checkpointing != "none",
    ),
    # more than 10 bytes per score whatever the sharding: 49.8 GB
    Case(
        "32k tokens, a vocabulary of 152064",
        Machine(A100, 8, 512),
        "qwen2.5-7b",
        {"method": "lora", "sequence_length": 32768},
        says=("--seq-len",),
    ),
    Case(
        "8k tokens, a vocabulary of 152064",
        Machine(A100, 8, 512),
        "qwen2.5-7b",
        {"method": "lora", "sequence_length": 8192},
        stays,
    ),
    # 80 GB optimizer states
    Case("6.7B with a 31 GiB host", Machine(DESKTOP, 1, 31), "6.7B", says=("31 GiB host memory",)),
    # a frozen base of 80 GB, divided by 8
    Case("LoRA 40B on eight A100", Machine(A100, 8, 1000), "40B", {"method": "lora"}, sharded),
    # 12.4 GB fit 24 GiB; 1.3e9 x 16 x 1.25 = 24.2 GiB do not, and 19.4 GiB exceed the card
    Case("774M, 16 GB card and 24 GiB host", Machine(T4, 1, 24), "774M", right=lambda plan: True),
    # 11.5 GiB of states on the card: without accumulation there is room for the rest
    Case("774M, one sequence a step", Machine(T4, 1, 24), "774M", {"global_batch_size": 1}, stays),
    Case("1.3B, 16 GB card and 24 GiB host", Machine(T4, 1, 24), "1.3B", says=("24 GiB host memory",)),
    # 23.0 GiB of states on a card of 24: the optimizer's 17 GiB go to the host
    Case("1.5B on a desktop card", Machine(DESKTOP, 1, 50), "1.5B", right=offloads),
    # 13.0e9 x 16 / 8 = 24.2 of 31.7 GiB
    Case(
        "13B on eight V100",
        Machine(V100, 8, 512),
        "13B",
        {"sequence_length": 2048},
        lambda plan: sharded(plan) and plan.precision == "fp16",
    ),
    Case(
        "LoRA 3B on Turing",
        Machine('gpus = "{}xQuadro RTX 8000"', 1, 128),
        "3B",
        {"method": "lora"},
        lambda plan: stays(plan) and plan.precision == "fp16",
    ),
    # neither 16-bit format: 4 + 4 + 8 bytes per parameter
    Case(
        "350M on Pascal",
        Machine(OLD_CARD, 4, 64),
        "350M",
        right=lambda plan: plan.strategy == "ddp" and plan.precision == "fp32" and stays(plan),
    ),
    # 16 x 0.11e9 = 1.8 GB: nothing to divide
    Case("110M on four small cards", Machine(T4, 4, 64), "110M", right=lambda plan: plan.strategy == "ddp"),
    # 4-bit weights of about 7.3 GB on every card; ZeRO-3 cannot gather bitsandbytes' storage
    Case("QLoRA 13B on four desktop cards", Machine(DESKTOP, 4, 128), "13B", {"method": "qlora"}, whole_copies),
    # 93.4 GB of frozen base do not fit each card
    Case("LoRA Mixtral on eight A100", Machine(A100, 8, 512), "mixtral-8x7b", {"method": "lora"}, sharded),
    # 46.7e9 x 16 / 8 = 93.4 GB > 80 GiB; on the host 12 bytes are 522 GiB
    Case("Mixtral, 500 GiB host", Machine(A100, 8, 500), "mixtral-8x7b", says=("500 GiB host memory",)),
    Case("Mixtral, 1000 GiB host", Machine(A100, 8, 1000), "mixtral-8x7b", right=offloads),
    Case("Mixtral on sixteen A100", Machine(A100, 8, 500, nodes=2), "mixtral-8x7b", right=sharded),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_reported_trouble_gets_the_right_answer(case: Case, profile_of) -> None:
    workload = pipeline.make_workload(size_or_name(case.model), **case.work)
    profile = profile_of(case.machine)
    if case.right is None:
        with pytest.raises(NoFeasiblePlanError) as refused:
            pipeline.recommend(profile, workload)
        text = f"{refused.value} {refused.value.hint}"
        assert all(part in text for part in case.says), text
        assert "offload" not in (refused.value.hint or "")
        assert "batch" not in (refused.value.hint or "")  # a smaller one cannot help: it is 1 already
        return
    plan = pipeline.recommend(profile, workload).plan
    assert case.right(plan), f"{plan.strategy}: {plan.variant}, {plan.memory}, {plan.warnings}"
    group = plan.groups[0]
    assert group.memory_available_bytes is not None
    assert group.memory_peak_bytes.high <= group.memory_available_bytes
    assert offloads(plan) == (plan.strategy == "zero_offload")
    if offloads(plan):
        assert group.host_bytes_per_rank * group.devices_per_node <= case.machine.host_gib * GIB


def test_13b_divided_by_eight_v100_alone_is_tight(profile_of) -> None:
    """24.2 GiB of states on 31.7: ZeRO-3 fits with one checkpointed sequence at a time, and the plan says how close."""
    workload = pipeline.make_workload(size_or_name("13B"), sequence_length=2048)
    plan = pipeline.recommend(profile_of(Machine(V100, 8, 512)), workload, strategy="zero3").plan
    assert (plan.strategy, plan.precision, plan.batch.micro_batch_size) == ("zero3", "fp16", 1)
    assert sharded(plan)
    assert plan.memory.activation_checkpointing == "full"
    assert marginal(plan)


@cache
def known(model: str) -> ModelShape:
    return size_or_name(model)


def needs(model: str, **layout: Any) -> MemoryEstimate:
    return estimate(known(model), Layout(**layout), device_kind="cuda", ranks_per_node=8)


def states(found: MemoryEstimate) -> float:
    return sum(found.terms_bytes[term] for term in ("parameters", "gradients", "optimizer_states"))


ZERO2, ZERO3 = ({"engine": "deepspeed", "sharding": stage} for stage in ("gradients", "parameters"))
TEXT = {"gradient_accumulation_steps": 2, "activation_checkpointing": "full"}


@pytest.mark.parametrize(
    ("model", "ranks", "layout", "gigabytes"),
    [
        ("7B", 1, {"engine": "torch"}, 107.8),
        ("7B", 2, ZERO3, 53.9),
        ("7B", 4, ZERO3, 26.95),
        ("70B", 8, ZERO3, 138.0),
        ("70B", 16, ZERO3, 69.0),
        ("72B", 32, ZERO3, 36.4),
        ("13B", 8, ZERO3, 26.0),
        ("mixtral-8x7b", 8, ZERO3, 93.4),
        ("mixtral-8x7b", 16, ZERO3, 46.7),
        ("1.3B", 1, {"engine": "torch"}, 20.8),
        # weights and gradients in 16 bit, 8-bit moments: 6 bytes per parameter, as torchtune's maintainers measured
        (
            "70B",
            8,
            {"engine": "fsdp2", "sharding": "parameters", "precision": "bf16_pure", "optimizer": "adamw8bit"},
            51.7,
        ),
    ],
)
def test_states_are_those_of_the_case(model: str, ranks: int, layout: dict[str, Any], gigabytes: float) -> None:
    found = needs(model, **{"precision": "bf16", **layout, **TEXT}, data_parallel_shard_degree=ranks)
    assert states(found) == pytest.approx(gigabytes * 1e9, rel=0.04)  # the size is a round number


def test_stage_2_is_too_tight_where_stage_3_is_not() -> None:
    # 2 P + 14 P / 4 = 37 GB and buckets on cards of 39.4 GiB that can be used
    room = {"precision": "bf16", "sequence_length": 512, "data_parallel_shard_degree": 4, **TEXT}
    assert needs("7B", **ZERO2, **room).peak_bytes.high > 0.95 * 39.4 * GIB
    assert needs("7B", **ZERO3, **room).peak_bytes.high < 0.95 * 39.4 * GIB


def test_without_checkpointing_activations_do_not_fit_a_desktop_card() -> None:
    lora = {"method": "lora", "lora_rank": 8, "sequence_length": 4096, "precision": "bf16"}
    plain = needs("llama-2-7b", **lora)
    assert plain.terms_bytes["activations"] >= 34 * 4096 * 4096 * 32
    assert plain.peak_bytes.low > 24 * GIB


@pytest.mark.parametrize("length", [8192, 32768])
def test_scores_cost_ten_to_twelve_bytes_each_whatever_is_sharded(length: int) -> None:
    # 16-bit scores, an fp32 copy and its gradient: 10; eager PyTorch has the log-probabilities as well: 12
    at = {"method": "lora", "sequence_length": length, "precision": "bf16", "activation_checkpointing": "full"}
    found = [
        needs("qwen2.5-7b", **at, engine="ddp", data_parallel_replicate_degree=8).terms_bytes["logits"],
        needs("qwen2.5-7b", **at, **ZERO3, data_parallel_shard_degree=8).terms_bytes["logits"],
        needs("qwen2.5-7b", **at, **ZERO3, parameter_offload="cpu", data_parallel_shard_degree=8).terms_bytes["logits"],
    ]
    for logits in found:
        assert 10 * length * 152064 <= logits <= 12.5 * length * 152064


def test_a_4_bit_base_takes_about_seven_gigabytes_and_a_whole_mixture_more_than_a_card() -> None:
    base = needs("13B", method="qlora", precision="bf16", activation_checkpointing="full").terms_bytes["parameters"]
    assert base == pytest.approx(7.3e9, rel=0.10)
    whole = needs("mixtral-8x7b", method="lora", precision="bf16", engine="ddp", activation_checkpointing="full")
    assert whole.terms_bytes["parameters"] >= 93.4e9 * 0.99 > 79 * GIB


def test_buckets_are_small_beside_small_models() -> None:
    assert zero_bucket_elements(0.11e9) <= 5e7  # DeepSpeed's 5e8 would take 3 GB of a card of 15
    assert zero_bucket_elements(0.774e9) <= 1e8


def test_freed_blocks_never_decide_whether_a_model_fits() -> None:
    # the caching allocator gives them back before it fails (docs "CUDA semantics", memory management)
    layout = Layout(
        engine="deepspeed",
        sharding="optimizer",
        data_parallel_shard_degree=2,
        micro_batch_size=4,
        precision="fp16",
        **TEXT,
    )
    roomy, tight = (
        estimate(known("1.3B"), layout, device_kind="cuda", ranks_per_node=2, device_memory_bytes=memory)
        for memory in (None, 22 * GIB)
    )
    assert roomy.peak_bytes.high > 22 * GIB >= tight.peak_bytes.high
    assert tight.peak_bytes.likely < roomy.peak_bytes.likely


@pytest.mark.parametrize(("batch", "devices"), [(256, 8), (4, 8), (6, 4)])
def test_the_batch_is_the_sum_over_devices_and_never_zero_on_any(batch: int, devices: int, profile_of) -> None:
    workload = pipeline.make_workload(known("1B"), global_batch_size=batch)
    plan = pipeline.recommend(profile_of(Machine(A100, devices, 256)), workload).plan
    assert plan.batch.global_batch_size == batch
    assert sum(g.num_nodes * g.devices_per_node * g.batch_per_device for g in plan.groups) == batch * together(plan)
    assert all(g.batch_per_device >= 1 and g.micro_batch_size >= 1 for g in plan.groups)
    assert plan.parallelism.world_size <= min(batch * together(plan), devices)

"""Documents prove what they say: numbers that do not belong together are refused, and a sentence says why."""

from __future__ import annotations

from typing import Any

import pytest
from plan_examples import examples
from pydantic import TypeAdapter, ValidationError

from stratadvisor.schema.base import LARGEST, Amount, Rate, Reading, measured
from stratadvisor.schema.layout import Span
from stratadvisor.schema.plan import Parallelism, Plan
from stratadvisor.schema.profile import DeviceProfile, NodeProfile

PLAN = examples()["ddp_cpu"].model_dump(mode="json")


def changed(**changes: Any) -> dict[str, Any]:
    return {**PLAN, **changes}


def test_degrees_multiply_to_the_world_size() -> None:
    degrees = {"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 3, "tensor_parallel_degree": 4}
    assert Parallelism(world_size=2 * 3 * 4, **degrees).model_parallel_degree == 4
    with pytest.raises(ValidationError, match="2 x 3 x 4 x 1 x 1 = 24, not the world size 25"):
        Parallelism(world_size=25, **degrees)


def test_expert_ranks_divide_the_data_and_context_ranks() -> None:
    # 16 devices, every two of them tensor parallel: 8 ranks among which experts can lie
    for experts in (1, 2, 4, 8):
        Parallelism(
            world_size=16, data_parallel_shard_degree=8, tensor_parallel_degree=2, expert_parallel_degree=experts
        )
    for experts in (3, 16):
        with pytest.raises(ValidationError, match=f"{experts} expert ranks do not divide the 8"):
            Parallelism(
                world_size=16, data_parallel_shard_degree=8, tensor_parallel_degree=2, expert_parallel_degree=experts
            )


def test_pieces_of_a_stage_need_stages() -> None:
    assert Parallelism(world_size=2, pipeline_parallel_degree=2, virtual_pipeline_chunks=2)
    with pytest.raises(ValidationError, match="2 virtual chunks need a pipeline"):
        Parallelism(world_size=2, tensor_parallel_degree=2, virtual_pipeline_chunks=2)


def test_a_devices_sequences_fit_into_its_micro_batches() -> None:
    group = PLAN["groups"][0]
    most = group["micro_batch_size"] * group["gradient_accumulation_steps"]
    with pytest.raises(ValidationError, match=f"{most + 1} sequences do not fit"):
        Plan.model_validate(changed(groups=[{**group, "batch_per_device": most + 1}]))


def test_groups_are_the_whole_world_and_their_shares_the_global_batch() -> None:
    assert Plan.model_validate(PLAN).model_dump(mode="json") == PLAN
    (group,) = PLAN["groups"]
    world = group["num_nodes"] * group["devices_per_node"]
    assert PLAN["parallelism"]["world_size"] == world
    with pytest.raises(ValidationError, match=f"the groups have {2 * world} devices, the world size is {world}"):
        Plan.model_validate(changed(groups=[{**group, "num_nodes": 2 * group["num_nodes"]}]))
    batch = PLAN["batch"]
    total = world * group["batch_per_device"]
    assert batch["global_batch_size"] == total
    with pytest.raises(ValidationError, match=f"shares sum to {total}, the global batch is {total + 1}"):
        Plan.model_validate(changed(batch={**batch, "global_batch_size": total + 1}))


def test_a_value_has_an_origin_and_an_unknown_has_none() -> None:
    assert Reading.model_validate(3).origin == "declared"
    for wrong in ({"value": 3.0, "origin": "unknown"}, {"value": None, "origin": "measured"}):
        with pytest.raises(ValidationError, match="a reading without a value"):
            Reading.model_validate(wrong)


@pytest.mark.parametrize(
    ("kind", "possible", "impossible"),
    [
        (Amount, (0.0, 1e-15, 1.0, LARGEST), (-1.0, 1e-16, 1.1 * LARGEST)),
        # a rate of nothing is an unknown in disguise
        (Rate, (1e-6, 1.0, LARGEST), (0.0, -1.0, 9e-7, 1.1 * LARGEST)),
    ],
)
def test_amounts_and_rates_that_cannot_be_are_refused(
    kind: Any, possible: tuple[float, ...], impossible: tuple[float, ...]
) -> None:
    adapter: TypeAdapter[Reading] = TypeAdapter(kind)
    assert [adapter.validate_python(measured(v)).value for v in possible] == list(possible)
    for value in impossible:
        with pytest.raises(ValidationError, match="is not a possible"):
            adapter.validate_python(measured(value))


def test_a_node_lists_each_device_once() -> None:
    devices = tuple(DeviceProfile(index=i, kind="cuda", name="card") for i in (0, 1))
    assert len(NodeProfile(hostname="a", devices=devices).devices) == 2
    with pytest.raises(ValidationError, match="'a' lists a device index twice"):
        NodeProfile(hostname="a", devices=(*devices, devices[0]))


def test_a_span_is_in_order() -> None:
    assert Span(low=1.0, likely=1.0, high=2.0)
    for wrong in ((2.0, 1.0, 3.0), (1.0, 3.0, 2.0), (1.0, float("nan"), 2.0)):
        with pytest.raises(ValueError, match="span out of order"):
            Span(low=wrong[0], likely=wrong[1], high=wrong[2])

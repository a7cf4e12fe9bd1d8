"""What a rank gets of a processor: the same processor that multiplies more slowly has less time for everything."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planning_clusters import cluster, gpu, nodes

from stratadvisor.costs.processors import slowness
from stratadvisor.derive.cluster import _with_processor_shares
from stratadvisor.schema.cluster import NodeClass


def host(rate: float | None, name: str = "a processor", kind: str = "cpu") -> NodeClass:
    found = nodes(gpu("A100-80GB"), count=1, per_node=1)
    measured = {} if rate is None else {"fp32": rate}
    device = replace(found.device, name=name, kind=kind, measured_flops_per_second=measured)  # type: ignore[arg-type]
    return replace(found, device=device)


def test_the_same_processor_at_half_the_rate_has_half_of_its_time() -> None:
    found = _with_processor_shares((host(4e10), host(2e10), host(3e10, name="another"), host(None)))
    assert [c.processor_share for c in found] == [1.0, 0.5, 1.0, 1.0]
    assert [slowness(c) for c in found] == [1.0, 2.0, 1.0, 1.0]


def test_cards_have_hosts_that_nobody_measured_so() -> None:
    assert [c.processor_share for c in _with_processor_shares((host(4e13, kind="cuda"), host(2e13, kind="cuda")))] == [
        1,
        1,
    ]


@pytest.mark.parametrize(
    ("cores", "share", "times"), [(8.0, 1.0, 1.0), (4.0, 1.0, 2.0), (4.0, 0.25, 4.0), (0.0, 1.0, 100)]
)
def test_the_smaller_of_quota_and_measured_share_counts(cores: float, share: float, times: float) -> None:
    eight = nodes(gpu("A100-80GB"), count=1, per_node=8)
    assert slowness(replace(eight, cpu_cores=cores, processor_share=share)) == pytest.approx(times)


def test_launching_takes_longer_there() -> None:
    from stratadvisor.catalog.sizes import shape_for_size
    from stratadvisor.schema.workload import Workload
    from stratadvisor.strategies.ddp import DDP

    whole = cluster(nodes(gpu("A100-80GB"), count=1, per_node=8))
    slow = replace(whole, classes=tuple(replace(c, processor_share=0.5) for c in whole.classes))
    workload = Workload(model=shape_for_size(350e6), global_batch_size=64)
    first, second = (next(iter(DDP.candidates(where, workload))).time.terms_seconds for where in (whole, slow))
    assert second["launch"] == pytest.approx(2 * first["launch"])
    assert second["matmul"] == first["matmul"]

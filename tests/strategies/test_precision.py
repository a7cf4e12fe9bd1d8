from __future__ import annotations

from planning_clusters import cluster, cpu, gpu, nodes

from stratadvisor.catalog.sizes import shape_for_size
from stratadvisor.schema.workload import Workload
from stratadvisor.strategies.precision import choose_precision

AUTO = Workload(model=shape_for_size(1e9))
A100, V100 = nodes(gpu("A100-80GB")), nodes(gpu("V100-32GB"))


def asked(precision: str) -> Workload:
    return AUTO.model_copy(update={"precision": precision})


def test_bf16_where_every_device_has_it() -> None:
    assert choose_precision(cluster(A100), AUTO) == ("bf16", "")


def test_one_volta_makes_it_fp16_for_all() -> None:
    assert choose_precision(cluster(A100, V100, between=1e9), AUTO) == ("fp16", "")


def test_a_cpu_takes_fp32_unless_bf16_was_measured_faster() -> None:
    assert choose_precision(cluster(nodes(cpu(), per_node=2), backend="gloo"), AUTO)[0] == "fp32"
    slow, fast = cpu(fp32=5e10, bf16=2e10), cpu(fp32=5e10, bf16=2e11)
    assert choose_precision(cluster(nodes(slow, per_node=2), backend="gloo"), AUTO)[0] == "fp32"
    assert choose_precision(cluster(nodes(fast, per_node=2), backend="gloo"), AUTO)[0] == "bf16"


def test_what_the_user_asks_for_is_kept_and_what_stands_against_it_named() -> None:
    precision, problem = choose_precision(cluster(V100), asked("bf16"))
    assert precision == "bf16"
    assert problem == "V100-32GB has no bf16 matrix units"
    assert choose_precision(cluster(V100), asked("fp16")) == ("fp16", "")
    assert choose_precision(cluster(V100), asked("fp32")) == ("fp32", "")

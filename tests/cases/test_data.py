"""Case O-68: devices that wait for pictures."""

from __future__ import annotations

from case_support import declare, plan_for

from stratadvisor.schema.workload import ModelShape

RESNET = ModelShape(
    name="ResNet-50",
    source="arXiv:1512.03385: 25.6M parameters, 4.1 GFLOPs forward at 224 x 224 (multiply and add counted as two: 8.2)",
    family="module",
    num_parameters=25_600_000,
    num_active_parameters=25_600_000,
    flops_per_item=8.2e9,
    saved_bytes_per_item=90e6,
    factory="torchvision.models:resnet50",
)


def test_o68() -> None:
    """8 GPUs and 16 cores: at 10 ms a picture a core makes 100 a second, a light network eats thousands."""
    cores, devices, item = 16, 8, 0.010
    host = f'cpu_cores = {cores}\ndata_item = "{item * 1000:g}ms"\nshared_memory = "64GiB"'
    where = declare("8xA100-80GB-SXM", more=host)
    plan = plan_for(where, RESNET, global_batch_size=2048, strategy="ddp")
    assert plan.data_loader_workers <= cores // devices
    made = cores / item
    eaten = plan.batch.global_batch_size / plan.predicted.step_seconds.low
    assert eaten > made
    assert any("more cores than there are" in w for w in plan.warnings)
    free = plan_for(where, RESNET, global_batch_size=2048)
    assert free.strategy in ("ddp", "single")  # nothing to divide
    fed = declare("8xA100-80GB-SXM", more='cpu_cores = 16\ndata_item = "1us"\nshared_memory = "64GiB"')
    assert not any("more cores" in w for w in plan_for(fed, RESNET, global_batch_size=2048).warnings)

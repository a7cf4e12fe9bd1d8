"""The number format of matrix products that every device of a job can take."""

from __future__ import annotations

from stratadvisor.schema.cluster import Cluster, Device
from stratadvisor.schema.layout import MixedPrecision
from stratadvisor.schema.workload import Workload


def choose_precision(cluster: Cluster, workload: Workload) -> tuple[MixedPrecision, str]:
    """Return the precision and, where a device cannot take the one asked for, why.

    bf16 where every device has it on matrix units, else fp16 (with loss scaling, and not for models that overflow in
    it), else fp32. A CPU takes fp32 unless
    bf16 was measured to be faster there.
    """
    devices = [c.device for c in cluster.classes]
    if workload.precision != "auto":
        units = workload.precision.removesuffix("_pure")
        lacking = [d.name for d in devices if not _takes(d, units)]
        problem = f"{lacking[0]} has no {units} matrix units" if lacking else ""
        return workload.precision, problem
    if any(d.kind == "cpu" for d in devices):
        return ("bf16" if all(_bf16_is_faster(d) for d in devices) else "fp32"), ""
    for precision in ("bf16", "fp16"):
        overflows = precision == "fp16" and workload.model.fp16_overflows
        if not overflows and all(precision in d.supports for d in devices):
            return precision, ""
    return "fp32", ""


def _takes(device: Device, precision: str) -> bool:
    """Whether it can; a GPU that no catalog and no driver describes gets the benefit of the doubt."""
    undescribed = device.kind != "cpu" and device.catalog_key is None and device.compute_capability is None
    return precision == "fp32" or precision in device.supports or undescribed


def _bf16_is_faster(device: Device) -> bool:
    if device.kind != "cpu":
        return "bf16" in device.supports
    rates = device.measured_flops_per_second
    return rates.get("bf16", 0.0) > rates.get("fp32", float("inf"))

"""Facts about number formats that every device can take."""

from __future__ import annotations

from collections.abc import Iterator

from stratadvisor.derive.context import Context, known, spec, unknown
from stratadvisor.schema.cluster import Device
from stratadvisor.schema.facts import Fact

SPECS = (
    spec(
        "precision.bf16_everywhere",
        "boolean",
        "",
        "whether every device has bf16 matrix units (a CPU: measured faster than fp32)",
    ),
    spec("precision.fp16_everywhere", "boolean", "", "whether every device has fp16 matrix units (never a CPU)"),
    spec("precision.asked_everywhere", "boolean", "", "whether every device has the precision that the user asked for"),
)


def derive(context: Context) -> Iterator[Fact]:
    """Yield the facts of ``SPECS``."""
    devices = [c.device for c in context.cluster.classes]
    bf16, fp16 = _everywhere(devices, "bf16"), _everywhere(devices, "fp16")
    yield bf16
    yield fp16
    name, asked = "precision.asked_everywhere", context.workload.precision
    if asked == "auto":
        yield unknown(name, "no precision was asked for")
    elif asked == "fp32":
        yield known(name, True, "declared", "fp32 runs everywhere")
    else:
        fact = fp16 if asked == "fp16" else bf16
        yield fact.model_copy(update={"name": name})


def _everywhere(devices: list[Device], precision: str) -> Fact:
    name = f"precision.{precision}_everywhere"
    if not devices:
        return unknown(name, "there is no usable device")
    lacking = [d.name for d in devices if _takes(d, precision) is False]
    if lacking:
        return known(name, False, "catalog", f"not on {lacking[0]}")
    undescribed = [d.name for d in devices if _takes(d, precision) is None]
    if undescribed:
        return unknown(name, f"neither the catalog nor the driver says what {undescribed[0]} can")
    return known(name, True, "catalog")


def _takes(device: Device, precision: str) -> bool | None:
    if device.kind == "cpu":
        rates = device.measured_flops_per_second
        return precision == "bf16" and rates.get("bf16", 0.0) > rates.get("fp32", float("inf"))
    if precision in device.supports:
        return True
    described = device.catalog_key is not None or device.compute_capability is not None
    return False if described else None

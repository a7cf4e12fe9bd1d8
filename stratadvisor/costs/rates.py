"""What a device sustains: products by shape, attention, memory traffic, kernel launches."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

from stratadvisor.catalog import devices as device_catalog
from stratadvisor.costs import constants as fitted
from stratadvisor.costs.memo import Memo
from stratadvisor.schema.cluster import Device
from stratadvisor.schema.layout import MixedPrecision

GRAPHICS_CAPABILITIES = ((8, 6), (8, 9))
ASSUMED_GPU_FLOPS = 2.0e13
ASSUMED_CPU_FLOPS = 5.0e10
ASSUMED_GPU_MEMORY_BANDWIDTH = 3.0e11
ASSUMED_CPU_MEMORY_BANDWIDTH = 1.0e10


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Sustained rates of a device in one number format."""

    peak_flops_per_second: float
    """What ``efficiency`` is a share of: the dense peak, or the measured rate where there is no peak."""
    efficiency: float
    """Share of it that large products reach in training."""
    memory_bytes_per_second: float
    launch_seconds: float
    """Of the host, for one kernel; its other work takes longer in the same proportion, ``host_slowness``."""
    element_bytes: int
    cpu: bool
    by_edge: tuple[tuple[float, float], ...] = ()
    """(log edge, rate) of measured square products, rising; a CPU's or a GPU's."""
    host_slowness: float = 1.0
    turned_share: float = 1.0
    """Rate of products whose operands do not lie along rows, as backward ones do not, against that of forward ones."""
    attention_gain: float = 1.0
    """By what fused attention's rate is higher than its share of this rate of products: neither a power limit nor a
    program that is not tuned slows it."""
    architecture: str = ""
    core_flops_per_second: float = 0.0
    """fp32 products of a CPU: what its other work is compared with."""
    basis: str = "catalog"
    """measured, catalog or assumed: what the product rate rests on."""
    assumptions: tuple[str, ...] = ()

    @property
    def sustained_flops_per_second(self) -> float:
        """Rate of large products."""
        return self.peak_flops_per_second * self.efficiency


_RATES: Memo[Rates] = Memo(4096)


def compute_format(precision: MixedPrecision, device: Device) -> str:
    """Return the number format that products run in: 16 bit falls back to fp32 where the units do not take it."""
    wanted = {"fp32": "fp32", "bf16": "bf16", "bf16_pure": "bf16", "fp16": "fp16"}[precision]
    known = device.supports | set(device.measured_flops_per_second)
    if wanted in known or device.kind == "cpu":
        return wanted
    return "fp32"


def device_rates(device: Device, precision: MixedPrecision) -> Rates:
    """Return the sustained rates of ``device``; a measured rate goes before the catalog, which goes before a guess."""
    return _RATES.get((device,), precision, lambda: _device_rates(device, precision))


def _device_rates(device: Device, precision: MixedPrecision) -> Rates:
    cpu = device.kind == "cpu"
    number_format = compute_format(precision, device)
    element = 4 if precision == "fp32" else 2
    assumptions: list[str] = []
    measured = device.measured_flops_per_second.get(number_format)
    if measured is None and cpu and number_format != "fp32":
        measured = device.measured_flops_per_second.get("fp32")
    peak = device.peak_flops_per_second.get(number_format)
    if cpu:
        peak, efficiency, basis = _cpu_peak(device, measured, assumptions)
    else:
        peak, efficiency, basis = _gpu_peak(device, number_format, peak, measured, assumptions)
    bandwidth = device.memory_bandwidth_bytes_per_second
    if bandwidth is None:
        bandwidth = ASSUMED_CPU_MEMORY_BANDWIDTH if cpu else ASSUMED_GPU_MEMORY_BANDWIDTH
        assumptions.append(f"the memory bandwidth of {device.name} is unknown; {bandwidth / 1e9:.0f} GB/s is assumed")
    if device.origins.get("memory_bandwidth_bytes_per_second") != "measured":
        bandwidth *= fitted.MEMORY_BANDWIDTH_SHARE
    table = device.matmul_by_size.get(number_format) or (device.matmul_by_size.get("fp32") if cpu else None) or {}
    by_edge = _rising(table)
    slowness = fitted.GRACE_SLOWNESS if (device.catalog_key or "").startswith(fitted.GRACE_DEVICES) else 1.0
    return Rates(
        peak_flops_per_second=peak,
        efficiency=efficiency,
        memory_bytes_per_second=bandwidth,
        launch_seconds=fitted.CPU_OPERATION_SECONDS if cpu else fitted.KERNEL_LAUNCH_SECONDS * slowness,
        host_slowness=slowness,
        element_bytes=element,
        turned_share=_turned_share(device, number_format),
        attention_gain=1.0 / _power_share(device, number_format) if basis == "catalog" else 1.0,
        architecture=device.architecture,
        cpu=cpu,
        by_edge=by_edge if cpu else (),
        core_flops_per_second=_core_speed(device, peak) if cpu else 0.0,
        basis=basis,
        assumptions=tuple(assumptions),
    )


def _rising(table: dict[int, float]) -> tuple[tuple[float, float], ...]:
    """Return (log edge, best rate up to that edge): a larger product is slower only when something disturbed it."""
    best = 0.0
    points = []
    for edge, rate in sorted(table.items()):
        best = max(best, rate)
        if edge > 0 and best > 0:
            points.append((math.log(edge), best))
    return tuple(points)


def _core_speed(device: Device, peak: float) -> float:
    """Return the best fp32 rate known."""
    known = device.measured_flops_per_second.get("fp32")
    return peak if known is None else max([known, *device.matmul_by_size.get("fp32", {}).values()])


def _cpu_peak(device: Device, measured: float | None, assumptions: list[str]) -> tuple[float, float, str]:
    if measured is not None:
        return measured, fitted.CPU_SUSTAINED_SHARE, "measured"
    assumptions.append(f"the speed of {device.name} was not measured; {ASSUMED_CPU_FLOPS / 1e9:.0f} GFLOP/s is assumed")
    return ASSUMED_CPU_FLOPS, 1.0, "assumed"


def _gpu_peak(
    device: Device, number_format: str, peak: float | None, measured: float | None, assumptions: list[str]
) -> tuple[float, float, str]:
    if measured is not None:
        base = max(peak or 0.0, measured)
        return base, measured / base * fitted.SUSTAINED_SHARE, "measured"
    graphics = device.architecture == "ampere" and device.compute_capability == (8, 6)
    generation = "ampere graphics" if graphics else device.architecture
    table = fitted.MATMUL_EFFICIENCY.get(generation, fitted.MATMUL_EFFICIENCY["unknown"])
    efficiency = table.get("tf32" if _in_tf32(device, number_format) else number_format, table["half"])
    if peak is None:
        other = max(device.measured_flops_per_second.values(), default=None)
        known = device.peak_flops_per_second.get("fp32")
        guess = other or known or ASSUMED_GPU_FLOPS
        assumptions.append(f"no {number_format} rate is known for {device.name}; {guess / 1e12:.0f} TFLOP/s is assumed")
        return guess, efficiency, "assumed"
    return peak, efficiency * _power_share(device, number_format), "catalog"


def _in_tf32(device: Device, number_format: str) -> bool:
    """Whether fp32 products run on matrix units: the device is given their rate for both."""
    peaks = device.peak_flops_per_second
    return number_format == "fp32" and "tf32" in peaks and peaks.get("fp32") == peaks["tf32"]


def _turned_share(device: Device, number_format: str) -> float:
    formats = fitted.ROW_MAJOR_FORMATS.get(device.architecture, frozenset())
    kind = "tf32" if _in_tf32(device, number_format) else number_format
    return fitted.ROW_MAJOR_SHARE if kind in formats else 1.0


def _power_share(device: Device, number_format: str) -> float:
    """Return the clock's share where power limits it: a limit under the published one, or a chip with little power."""
    spec = device_catalog.lookup(device.catalog_key or device.name)
    if spec is None:
        return 1.0
    watts = spec.power_watts if device.power_watts is None else min(device.power_watts, spec.power_watts)
    return float((watts / spec.power_watts * _density(spec, number_format)) ** fitted.POWER_EXPONENT)


def _density(spec: device_catalog.DeviceSpec, number_format: str) -> float:
    """Return the published power against what 16-bit products need at the full clock, at most 1.

    On graphics chips their full rate is four times that of fp32; where it is less, the units are not all in use.
    """
    needed = fitted.GRAPHICS_WATTS_PER_FLOPS.get(spec.architecture)
    rate = spec.peak_flops_per_second.get("bf16")
    if (
        needed is None
        or rate is None
        or number_format == "fp32"
        or spec.compute_capability not in GRAPHICS_CAPABILITIES
    ):
        return 1.0
    if rate < 3 * spec.peak_flops_per_second["fp32"]:
        return 1.0
    return min(1.0, spec.power_watts / (rate * needed))


def _interpolate(table: tuple[tuple[float, float], ...], log_edge: float) -> float:
    if log_edge <= table[0][0]:
        # below the smallest measured edge the rate falls in proportion to the edge: fixed costs dominate
        return table[0][1] * math.exp(log_edge - table[0][0])
    if log_edge >= table[-1][0]:
        return table[-1][1]
    i = bisect_left(table, (log_edge, 0.0))
    (x0, y0), (x1, y1) = table[i - 1], table[i]
    return y0 + (y1 - y0) * (log_edge - x0) / (x1 - x0)


def depth_share(rates: Rates, depth: float) -> float:
    """Return the share of its rate that a product reaches whose sums have ``depth`` terms."""
    faster = rates.peak_flops_per_second / fitted.HALF_DEPTH_FLOPS
    return float(depth / (depth + fitted.HALF_DEPTH * faster**fitted.HALF_DEPTH_EXPONENT))


def product_seconds(rates: Rates, rows: float, out_width: float, in_width: float, *, turned: bool = False) -> float:
    """Return the time of one rows x in_width times in_width x out_width product; ``turned``: of a backward pass."""
    flops = 2.0 * rows * out_width * in_width
    if flops <= 0:
        return 0.0
    if rates.by_edge:
        smallest = min(rows, out_width, in_width)
        edge = math.log(max(1.0, min((rows * out_width * in_width) ** (1 / 3), 4.0 * smallest)))
        rate = _interpolate(rates.by_edge, edge) * fitted.CPU_SUSTAINED_SHARE
    else:
        # the pipeline of a tile fills once per depth; a part of the last round of tiles leaves units idle
        shape = depth_share(rates, in_width)
        outputs = rows * out_width
        shape *= outputs / (outputs + fitted.HALF_OUTPUTS)
        if out_width % fitted.ALIGNED_ELEMENTS or in_width % fitted.ALIGNED_ELEMENTS:
            shape *= fitted.MISALIGNED_SHARE
        rate = rates.peak_flops_per_second * rates.efficiency * shape * (rates.turned_share if turned else 1.0)
    moved = rates.element_bytes * (rows * out_width + rows * in_width + out_width * in_width)
    return max(flops / rate, moved / rates.memory_bytes_per_second)

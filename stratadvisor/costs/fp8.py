"""Products in 8 bit: whose they are, how fast, and what quantising their operands takes.

Only the linear layers run in fp8, forward and backward; attention, norms, the router of a mixture and the output
projection stay in 16 bit (Transformer Engine and torchao, whose usual filters leave the last one out), and so do master
weights, gradients and optimizer states.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from stratadvisor.costs import constants as fitted
from stratadvisor.costs.flops import Product, layer_products
from stratadvisor.costs.rates import Rates
from stratadvisor.schema.cluster import Device
from stratadvisor.schema.layout import Fp8Scaling, Layout
from stratadvisor.schema.workload import ModelShape

OLDEST_CAPABILITY = (8, 9)
"""Ada: the first with fp8 matrix instructions (PTX ISA, mma.sync with .e4m3)."""
BLOCK_CAPABILITY = (10, 0)
"""Blackwell: the first whose matrix units take a scale for every 32 elements (MXFP8, OCP MX specification 1.0)."""


def fp8_refusal(device: Device, scaling: Fp8Scaling) -> str:
    """Return why the linear layers cannot run in fp8 on a device, in one clause; empty when they can."""
    if scaling == "none":
        return ""
    if "fp8" not in device.supports | set(device.measured_flops_per_second):
        return f"{device.name} has no fp8 matrix units"
    capability = device.compute_capability
    if device.kind == "cuda" and capability is not None:
        if capability < OLDEST_CAPABILITY:
            return f"{device.name} has no fp8 matrix units"
        if scaling == "block" and capability < BLOCK_CAPABILITY:
            return f"the matrix units of {device.name} take no block scales (MXFP8)"
    return ""


def fp8_rates(rates: Rates, device: Device) -> Rates:
    """Return the rates of fp8 products, given those of 16-bit ones on the device as the engine reaches them.

    A measured fp8 rate counts as 16-bit ones do; the catalog's peak is reached less well than the 16-bit one, by the
    ratio that published benchmarks of large products show.
    """
    measured = device.measured_flops_per_second.get("fp8")
    peak = device.peak_flops_per_second.get("fp8")
    if measured is not None:
        base = max(peak or 0.0, measured)
        return replace(
            rates,
            peak_flops_per_second=base,
            efficiency=measured / base * fitted.SUSTAINED_SHARE,
            element_bytes=1,
            by_edge=(),
        )
    if peak is None:
        return rates
    share = fitted.FP8_EFFICIENCY_SHARE.get(device.architecture, fitted.FP8_EFFICIENCY_SHARE["unknown"])
    return replace(rates, peak_flops_per_second=peak, efficiency=rates.efficiency * share, element_bytes=1)


def runs_in_fp8(product: Product, layout: Layout) -> bool:
    """Whether a product of a layer does."""
    return layout.fp8_scaling != "none" and not product.router


@dataclass(frozen=True, slots=True)
class Quantised:
    """Bytes moved through memory to quantise the operands of a layer's products, per micro-batch."""

    forward: float
    backward: float


def quantising_bytes(layout: Layout, *, inputs: float, gradients: float, weights: float) -> Quantised:
    """Return the bytes that casts of a layer's products move.

    Args:
        layout: its engine decides who quantises, ``fp8_scaling`` how.
        inputs: elements that enter the products of a micro-batch.
        gradients: elements of the gradients of their outputs.
        weights: elements of the weights.

    Transformer Engine writes every operand twice in one pass over its 16-bit values, as it is and transposed, since
    Hopper's fp8 instructions multiply along rows only; scales of the tensor itself need a pass for its maximum first.
    It quantises weights once a step. torchao keeps 16-bit inputs for backward and quantises again there; weights are
    quantised before they are gathered and copied into the other order for backward.
    """
    if layout.fp8_scaling == "none":
        return Quantised(0.0, 0.0)
    maximum = 2.0 if layout.fp8_scaling == "tensor" else 0.0
    if layout.engine == "megatron":
        each = maximum + 4.0
        return Quantised(each * inputs, each * gradients)
    once = maximum + 3.0
    transposed = 2.0
    return Quantised(once * inputs, (once + transposed) * (inputs + gradients) + transposed * weights)


def linear_weights(shape: ModelShape) -> float:
    """Return the weights of all products that may run in fp8, of the whole model."""
    return sum(
        layers * sum(float(p.out_width * p.in_width * p.count) for p in products if not p.router)
        for products, layers in layer_products(shape)
    )


def weights_seconds(shape: ModelShape, layout: Layout, rates: Rates) -> float:
    """Return what quantising the weights takes once a step: each engine's rank does its own part."""
    if layout.fp8_scaling == "none":
        return 0.0
    held = linear_weights(shape) / (layout.tensor_parallel_degree * layout.pipeline_parallel_degree)
    held /= layout.expert_parallel_degree if shape.num_experts else 1
    if layout.sharding == "parameters":
        held /= layout.data_parallel_shard_degree
    each = 4.0 + (2.0 if layout.fp8_scaling == "tensor" else 0.0)
    return held * each / rates.memory_bytes_per_second

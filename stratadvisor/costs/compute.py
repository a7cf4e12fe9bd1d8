"""Time one device computes on one micro-batch: forward, backward, recomputation.

Products and fused attention run at their own efficiencies, element-wise work at memory bandwidth; where the host
cannot launch kernels as fast as the device finishes them, the launches set the pace. Communication is added elsewhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from stratadvisor.costs import constants as fitted
from stratadvisor.costs import fp8
from stratadvisor.costs.flops import Product, attention_share, layer_products
from stratadvisor.costs.memo import Memo
from stratadvisor.costs.rates import Rates, depth_share, device_rates, product_seconds
from stratadvisor.schema.cluster import Device
from stratadvisor.schema.layout import Layout
from stratadvisor.schema.workload import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeTime:
    """Seconds of one micro-batch on one device (on the slowest pipeline stage, when there are several)."""

    forward_seconds: float
    backward_seconds: float
    recompute_seconds: float
    terms_seconds: dict[str, float]
    """matmul, attention, memory_bound, recompute, launch; they add up to the total."""

    @property
    def total_seconds(self) -> float:
        """Forward, backward and recomputation."""
        return self.forward_seconds + self.backward_seconds + self.recompute_seconds


@dataclass(slots=True)
class _Parts:
    """Forward and backward seconds by kind of work, and kernels launched forward."""

    matmul: float = 0.0
    matmul_backward: float = 0.0
    attention: float = 0.0
    attention_backward: float = 0.0
    memory: float = 0.0
    memory_backward: float = 0.0
    last: float = 0.0
    """Part of ``matmul``: the product whose output only the next layer reads."""
    kernels: float = 0.0

    def add(self, other: _Parts, times: float) -> None:
        self.matmul += times * other.matmul
        self.matmul_backward += times * other.matmul_backward
        self.attention += times * other.attention
        self.attention_backward += times * other.attention_backward
        self.memory += times * other.memory
        self.memory_backward += times * other.memory_backward
        self.last += times * other.last
        self.kernels += times * other.kernels


_RECOMPUTE_ALL = ("megatron", "deepspeed")
"""Engines with a checkpoint function of their own, which runs the whole layer again."""
_TIMES: Memo[ComputeTime] = Memo()


def micro_batch_seconds(shape: ModelShape, layout: Layout, device: Device, micro_batch_size: int) -> ComputeTime:
    """Return the time of one micro-batch of ``micro_batch_size`` sequences per data-parallel rank."""
    key = (
        micro_batch_size,
        layout.sequence_length,
        layout.tensor_parallel_degree,
        layout.pipeline_parallel_degree,
        layout.context_parallel_degree,
        layout.expert_parallel_degree,
        layout.sequence_parallel,
        layout.precision,
        layout.fp8_scaling,
        layout.activation_checkpointing,
        layout.method,
        layout.lora_rank,
        layout.flash_attention,
        layout.flash_generation,
        layout.python_norms,
        layout.tuned_kernels,
        layout.dropout,
        layout.compiled,
        layout.engine,
        layout.sharding,
        layout.data_parallel_shard_degree > 1,
    )
    return _TIMES.get((shape, device), key, lambda: _compute(shape, layout, device, micro_batch_size))


_LAYOUT_RATES: Memo[Rates] = Memo(4096)


def tuned(layout: Layout) -> bool:
    """Whether its products and attention are Transformer Engine's."""
    return layout.engine == "megatron" or layout.tuned_kernels


def layout_rates(layout: Layout, device: Device) -> Rates:
    """Return the device's rates as the engine of ``layout`` reaches them."""
    return _LAYOUT_RATES.get((device,), (layout.precision, tuned(layout)), lambda: _layout_rates(layout, device))


def _layout_rates(layout: Layout, device: Device) -> Rates:
    rates = device_rates(device, layout.precision)
    if tuned(layout) or rates.basis != "catalog":  # a measured rate was measured with PyTorch
        return rates
    share = fitted.EAGER_PRODUCT_SHARE.get(device.architecture, 1.0)
    return replace(rates, efficiency=rates.efficiency * share, attention_gain=rates.attention_gain / share)


def _flash_shares(layout: Layout, architecture: str) -> tuple[float, float]:
    """Return fused attention's rates, forward and backward, against large products in a tuned program."""
    newer = fitted.OLDER_ATTENTION_SHARE.get(architecture)
    if tuned(layout) and newer is not None:
        return fitted.CUDNN_SHARES
    old = layout.flash_generation == 1 or architecture not in fitted.FLASH2_ARCHITECTURES
    forward, backward = fitted.FLASH1_SHARES if old else fitted.FLASH2_SHARES
    lost = 1.0 if newer is None else newer[0 if old else 1]
    if not old:
        lost *= layout.sequence_length / (layout.sequence_length + fitted.FLASH2_HALF_LENGTH)
    return forward * lost, backward * lost


def _checkpoint_host_seconds(layout: Layout) -> float:
    megatron = layout.engine == "megatron"
    return fitted.MEGATRON_CHECKPOINT_HOST_SECONDS if megatron else fitted.CHECKPOINT_HOST_SECONDS


def _compute(shape: ModelShape, layout: Layout, device: Device, micro_batch_size: int) -> ComputeTime:
    rates = layout_rates(layout, device)
    if not shape.is_transformer:
        return _module(shape, layout, rates, micro_batch_size)
    tokens = micro_batch_size * layout.sequence_length / layout.context_parallel_degree
    stages = layout.pipeline_parallel_degree
    linear = rates if layout.fp8_scaling == "none" else fp8.fp8_rates(rates, device)
    layers = _Parts()
    for products, count in layer_products(shape):
        layer = _layer(shape, layout, rates, linear, tokens, micro_batch_size, products)
        layers.add(layer, count / stages)
    head = _head(shape, layout, rates, tokens)
    whole = _Parts()
    whole.add(layers, 1.0)
    whole.add(head, 1.0 if stages == 1 else 0.0)
    _add_weight_casts(whole, shape, layout, rates)
    recompute = _recomputation(layers, layout)
    again = 0.0
    if layout.activation_checkpointing == "full":
        here = shape.num_layers / stages
        again = layers.kernels * rates.launch_seconds + _divided_host_seconds(layout, here, rates) / 3
        again += 0.0 if rates.cpu else here * _checkpoint_host_seconds(layout) * rates.host_slowness
    return _assemble(whole, recompute, again, rates, _engine_host_seconds(layout, shape.num_layers / stages, rates))


def _engine_host_seconds(layout: Layout, layers: float, rates: Rates) -> float:
    """Return what the engine's own Python takes for a micro-batch."""
    share = 1.0 if rates.cpu else fitted.GPU_HOST_SHARE * rates.host_slowness
    divided = _divided_host_seconds(layout, layers, rates)
    if layout.data_parallel_shard_degree == 1 or layout.sharding != "parameters":
        return divided
    per_layer = fitted.ENGINE_HOST_SECONDS_PER_LAYER.get(
        "zero3" if layout.engine == "deepspeed" else layout.engine, 0.0
    )
    return divided + layers * per_layer * share


def _divided_host_seconds(layout: Layout, layers: float, rates: Rates) -> float:
    """Return what PyTorch's own tensor parallelism takes in Python for a micro-batch, a third of it forward."""
    if layout.engine not in ("ddp", "fsdp2") or layout.tensor_parallel_degree == 1 or layout.compiled:
        return 0.0
    share = 1.0 if rates.cpu else fitted.GPU_HOST_SHARE * rates.host_slowness
    operations = 1.0 if layout.method == "full" else fitted.ADAPTED_LINEAR_OPERATIONS
    return layers * fitted.DTENSOR_HOST_SECONDS_PER_LAYER * operations * share


def _assemble(whole: _Parts, recompute: float, again: float, rates: Rates, engine: float = 0.0) -> ComputeTime:
    """Return the time.

    Args:
        whole: device time by kind of work.
        recompute: device time of the recomputation.
        again: host time of launching the recomputation.
        rates: of the device.
        engine: host time of the engine, a third of it forward.

    """
    forward = whole.matmul + whole.attention + whole.memory
    backward = whole.matmul_backward + whole.attention_backward + whole.memory_backward
    launches = whole.kernels * rates.launch_seconds
    if rates.cpu:  # nothing runs ahead of a CPU: dispatch adds to the work
        wait_forward = launches + engine / 3
        wait_backward = launches * fitted.BACKWARD_KERNELS + engine * 2 / 3
        wait_again = again
    else:
        wait_forward = max(0.0, launches + engine / 3 - forward)
        wait_backward = max(0.0, launches * fitted.BACKWARD_KERNELS + engine * 2 / 3 - backward)
        wait_again = max(0.0, again - recompute)
    return ComputeTime(
        forward_seconds=forward + wait_forward,
        backward_seconds=backward + wait_backward,
        recompute_seconds=recompute + wait_again,
        terms_seconds={
            "matmul": whole.matmul + whole.matmul_backward,
            "attention": whole.attention + whole.attention_backward,
            "memory_bound": whole.memory + whole.memory_backward,
            "recompute": recompute,
            "launch": wait_forward + wait_backward + wait_again,
        },
    )


def _layer(
    shape: ModelShape,
    layout: Layout,
    rates: Rates,
    linear: Rates,
    tokens: float,
    micro_batch_size: int,
    products: tuple[Product, ...],
) -> _Parts:
    parts = _Parts()
    tensor = layout.tensor_parallel_degree
    trains_weights = layout.method == "full"
    adapter_bytes = 0.0
    weight_elements = 0.0
    ffn_width = 0.0
    quantised = [0.0, 0.0, 0.0]
    for product in products:
        out_width = product.out_width / tensor if product.column_parallel else product.out_width
        in_width = product.in_width if product.column_parallel else product.in_width / tensor
        count: float = product.count
        rows = tokens * product.tokens_share
        if product.tokens_share < 1.0:  # experts are spread over the expert-parallel ranks, which pool their tokens
            count = product.count / layout.expert_parallel_degree
            rows = rows * layout.expert_parallel_degree
        speed = linear if fp8.runs_in_fp8(product, layout) else rates
        forward = count * product_seconds(speed, rows, out_width, in_width)
        parts.matmul += forward
        if product.mlp and not product.column_parallel:
            parts.last += forward
        parts.matmul_backward += count * product_seconds(speed, rows, in_width, out_width, turned=True)
        if trains_weights:
            weight = product_seconds(speed, out_width, in_width, rows, turned=True)
            parts.matmul_backward += count * weight * fitted.WEIGHT_GRADIENT_SLOWDOWN
        weight_elements += count * out_width * in_width
        adapter_bytes += count * rows * (out_width + in_width) * rates.element_bytes
        if product.mlp and not product.column_parallel:
            ffn_width += product.count * product.in_width * product.tokens_share
        if speed is linear:
            shared = 2 if product.mlp and product.column_parallel and shape.gated_mlp else 1  # gate and up read one
            quantised[0] += count / shared * rows * in_width
            quantised[1] += count * rows * out_width
            quantised[2] += count * out_width * in_width
    _attention(parts, shape, layout, rates, micro_batch_size)
    _elementwise(parts, shape, layout, rates, tokens, ffn_width)
    parts.kernels = _kernels_per_layer(layout)
    _quantise(parts, layout, rates, quantised)
    if not trains_weights:
        # two thin products and an addition beside every weight: each passes over the input and the output
        parts.memory += adapter_bytes * 2 / rates.memory_bytes_per_second
        parts.memory_backward += adapter_bytes * 3 / rates.memory_bytes_per_second
        parts.kernels += 4 * sum(p.count for p in products)
    if layout.method == "qlora":
        unpack = weight_elements * fitted.UNPACK_BYTES / rates.memory_bytes_per_second
        parts.memory += unpack
        parts.memory_backward += unpack
        parts.kernels += 2 * sum(p.count for p in products)
    return parts


def _quantise(parts: _Parts, layout: Layout, rates: Rates, elements: list[float]) -> None:
    if layout.fp8_scaling == "none":
        return
    inputs, gradients, weights = elements
    moved = fp8.quantising_bytes(layout, inputs=inputs, gradients=gradients, weights=weights)
    parts.memory += moved.forward / rates.memory_bytes_per_second
    parts.memory_backward += moved.backward / rates.memory_bytes_per_second
    parts.kernels += fitted.FP8_KERNELS


def _kernels_per_layer(layout: Layout) -> float:
    if layout.engine == "megatron":
        kernels = fitted.MEGATRON_KERNELS_PER_LAYER
    else:
        kernels = fitted.COMPILED_KERNELS_PER_LAYER if layout.compiled else fitted.EAGER_KERNELS_PER_LAYER
    return kernels + (fitted.TENSOR_PARALLEL_KERNELS if layout.tensor_parallel_degree > 1 else 0.0)


def _attention(parts: _Parts, shape: ModelShape, layout: Layout, rates: Rates, micro_batch_size: int) -> None:
    length = layout.sequence_length
    width = shape.attention_width / layout.tensor_parallel_degree
    heads = shape.num_attention_heads / layout.tensor_parallel_degree
    pairs = micro_batch_size * float(length) * length / layout.context_parallel_degree
    rate = rates.sustained_flops_per_second
    if rates.cpu:
        core = rates.core_flops_per_second * fitted.CPU_ATTENTION_SHARE
        seconds = 4.0 * pairs * width * attention_share(shape) / core
        parts.attention += seconds
        parts.attention_backward += seconds * fitted.FLASH_BACKWARD_FLOPS
        return
    if layout.flash_attention:
        rate *= rates.attention_gain
        forward, backward = _flash_shares(layout, rates.architecture)
        flops = 4.0 * pairs * width * attention_share(shape)
        if shape.head_dim < fitted.FLASH_FULL_HEAD:
            rate *= (shape.head_dim / fitted.FLASH_FULL_HEAD) ** fitted.FLASH_HEAD_EXPONENT
        parts.attention += flops / (rate * forward)
        parts.attention_backward += flops * fitted.FLASH_BACKWARD_FLOPS / (rate * backward)
        return
    products = 2.0 * pairs * width / (rate * depth_share(rates, shape.head_dim))
    turned = products / rates.turned_share
    forward, backward = _unfused_passes(layout, rates)
    each = pairs * heads * rates.element_bytes / rates.memory_bytes_per_second
    parts.attention += products + turned + forward * each
    # the gradient of the probabilities is a product along rows, those of values, queries and keys are not
    parts.attention_backward += products + 3 * turned + backward * each


def _unfused_passes(layout: Layout, rates: Rates) -> tuple[float, float]:
    """Return passes over the scores, forward and backward."""
    if layout.compiled and rates.element_bytes == 2:
        return fitted.UNFUSED_PASSES, fitted.UNFUSED_PASSES
    forward = backward = fitted.UNFUSED_EAGER_PASSES
    if layout.engine == "megatron":
        forward, backward = fitted.UNFUSED_MEGATRON_PASSES
    dropped = 0.0 if layout.dropout else fitted.DROPOUT_PASSES
    return forward - dropped, backward - dropped


def _elementwise(
    parts: _Parts, shape: ModelShape, layout: Layout, rates: Rates, tokens: float, ffn_width: float
) -> None:
    tensor = layout.tensor_parallel_degree
    divided = tensor if layout.sequence_parallel else 1
    elements = tokens * (
        fitted.ELEMENTWISE_HIDDEN_PASSES * shape.hidden_size / divided
        + fitted.ELEMENTWISE_FFN_PASSES * ffn_width / tensor
    )
    each = rates.element_bytes * (1.0 if layout.compiled or rates.cpu else fitted.EAGER_FACTOR)
    moved = elements * each
    if layout.python_norms and not (layout.compiled or rates.cpu or shape.norm_bias):
        kind = "fp32" if rates.element_bytes == 4 else "half"
        moved += tokens * 2 * fitted.EAGER_RMS_NORM_BYTES[kind] * shape.hidden_size / divided
        if not shape.learned_positions:
            turned = (shape.attention_width + shape.key_value_width) / tensor
            moved += tokens * fitted.EAGER_ROTARY_BYTES[kind] * turned
    seconds = moved / rates.memory_bytes_per_second
    if rates.cpu:
        work = fitted.CPU_ELEMENTWISE_FLOPS["fp32" if rates.element_bytes == 4 else "half"]
        seconds = max(seconds, elements * work / rates.core_flops_per_second)
    parts.memory += seconds
    parts.memory_backward += seconds * fitted.ELEMENTWISE_BACKWARD


def _head(shape: ModelShape, layout: Layout, rates: Rates, tokens: float) -> _Parts:
    parts = _Parts()
    if shape.num_outputs == 0:
        return parts
    width = shape.num_outputs / layout.tensor_parallel_degree
    if layout.engine == "megatron":
        width = math.ceil(width / fitted.PADDED_VOCABULARY) * fitted.PADDED_VOCABULARY
    one = product_seconds(rates, tokens, width, shape.hidden_size)
    parts.matmul = one
    parts.matmul_backward = one * (2.0 if layout.method == "full" else 1.0) / rates.turned_share
    loss = tokens * width * fitted.CROSS_ENTROPY_BYTES_PER_LOGIT / rates.memory_bytes_per_second
    if rates.cpu:
        work = fitted.CPU_LOGIT_FLOPS["fp32" if rates.element_bytes == 4 else "half"]
        loss = tokens * width * work / rates.core_flops_per_second
    parts.memory = loss * 0.5
    parts.memory_backward = loss * 0.5
    parts.kernels = fitted.KERNELS_OUTSIDE_LAYERS
    return parts


def _add_weight_casts(parts: _Parts, shape: ModelShape, layout: Layout, rates: Rates) -> None:
    """Add autocast's work on the weights themselves; engines with a 16-bit copy only add into the gradient."""
    if layout.method != "full":
        return
    held = shape.num_parameters / (layout.tensor_parallel_degree * layout.pipeline_parallel_degree)
    autocast = layout.engine in ("torch", "ddp", "local", "async") and layout.precision in ("bf16", "fp16")
    forward = fitted.AUTOCAST_FORWARD_BYTES if autocast else 0.0
    backward = fitted.AUTOCAST_BACKWARD_BYTES if autocast else 3.0 * rates.element_bytes
    parts.memory += held * forward / rates.memory_bytes_per_second
    parts.memory_backward += held * backward / rates.memory_bytes_per_second


def _recomputation(layers: _Parts, layout: Layout) -> float:
    forward = layers.matmul + layers.attention + layers.memory
    if layout.activation_checkpointing == "full":
        # PyTorch's checkpoint stops at the last tensor that backward needs: the product that ends a layer is not redone
        return forward if layout.engine in _RECOMPUTE_ALL else forward - layers.last
    if layout.activation_checkpointing == "none":
        return 0.0
    if layout.engine == "megatron":  # recomputes only the score matrix, which fused attention never stored
        return 0.0 if layout.flash_attention else layers.attention
    return fitted.SELECTIVE_MATMUL_SHARE * layers.matmul + layers.memory


def _module(shape: ModelShape, layout: Layout, rates: Rates, micro_batch_size: int) -> ComputeTime:
    flops = shape.flops_per_item if shape.flops_per_item is not None else 2.0 * shape.num_active_parameters
    forward = micro_batch_size * flops / (rates.sustained_flops_per_second * fitted.MODULE_SHARE)
    saved = (shape.saved_bytes_per_item or 0.0) * micro_batch_size * rates.element_bytes / 4
    parts = _Parts(
        matmul=forward,
        matmul_backward=forward * (2.0 if layout.method == "full" else 1.0),
        memory=2 * saved / rates.memory_bytes_per_second,
        memory_backward=3 * saved / rates.memory_bytes_per_second,
        kernels=fitted.KERNELS_OUTSIDE_LAYERS,
    )
    _add_weight_casts(parts, shape, layout, rates)
    recompute = parts.matmul + parts.memory if layout.activation_checkpointing == "full" else 0.0
    return _assemble(parts, recompute, 0.0, rates)


def head_seconds(shape: ModelShape, layout: Layout, device: Device, micro_batch_size: int) -> float:
    """Return forward and backward time of the output projection and the loss: the last pipeline stage's extra."""
    if not shape.is_transformer:
        return 0.0
    tokens = micro_batch_size * layout.sequence_length / layout.context_parallel_degree
    head = _head(shape, layout, layout_rates(layout, device), tokens)
    return head.matmul + head.matmul_backward + head.memory + head.memory_backward

"""Forward, backward and update of one process on this CPU, predicted against measured in processor time.

Processor time leaves out what other programs of the machine take, so this runs on a busy machine too. One thread; no
communication. ``cpu_accuracy.py`` measures whole runs by the clock.

    python benchmarks/cpu_terms.py
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict

import torch

from stratadvisor.catalog.sizes import shape_for_size
from stratadvisor.costs.compute import micro_batch_seconds
from stratadvisor.costs.optimizer_step import optimizer_seconds
from stratadvisor.runtime.config import ModelConfig
from stratadvisor.runtime.model import Transformer
from stratadvisor.schema.cluster import Device, NodeClass
from stratadvisor.schema.layout import Layout
from stratadvisor.schema.workload import ModelShape

MALLOC = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "17179869184"}
"""As rules/97_allocator.toml sets them."""
CASES = (
    # parameters, sequences, tokens, precision, checkpointing
    (1e6, 1, 512, "fp32", "none"),
    (1e6, 1, 512, "bf16", "none"),
    (1e6, 8, 128, "fp32", "none"),
    (1e7, 1, 512, "fp32", "none"),
    (1e7, 1, 512, "bf16", "none"),
    (1e7, 4, 512, "fp32", "none"),
    (1e7, 4, 512, "bf16", "none"),
    (1e7, 4, 256, "fp32", "full"),
    (3e7, 2, 512, "fp32", "none"),
    (3e7, 2, 512, "bf16", "none"),
    (6e7, 2, 256, "fp32", "none"),
    (6e7, 2, 256, "bf16", "full"),
)
REPEATS = 5


def processor_seconds(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the second fastest of several, after one to warm up."""
    work()
    taken = []
    for _ in range(repeats):
        begin = time.process_time()
        work()
        taken.append(time.process_time() - begin)
    return sorted(taken)[1]


def product_rate(edge: int, kind: torch.dtype) -> float:
    """Return the FLOP per second of a square product."""
    left, right = torch.randn(edge, edge).to(kind), torch.randn(edge, edge).to(kind)
    times = max(1, int(2e9 / (2 * edge**3)))
    out = torch.empty_like(left)

    def several() -> None:
        for _ in range(times):
            torch.mm(left, right, out=out)

    return 2.0 * edge**3 * times / processor_seconds(several)


def this_processor() -> Device:
    """Return one core of this machine, as the probe would describe it, but measured in processor time."""
    tables = {
        name: {edge: product_rate(edge, kind) for edge in (128, 256, 512, 1024)}
        for name, kind in (("fp32", torch.float32), ("bf16", torch.bfloat16))
    }
    big = torch.ones(2**25)
    other, result = torch.ones_like(big), torch.empty_like(big)
    bandwidth = 12.0 * 2**25 / processor_seconds(lambda: torch.add(big, other, alpha=1.5, out=result))
    rates = {name: max(table.values()) for name, table in tables.items()}
    return Device(
        name="this CPU",
        catalog_key=None,
        kind="cpu",
        architecture="cpu",
        memory_total_bytes=None,
        memory_free_bytes=None,
        peak_flops_per_second={},
        measured_flops_per_second=rates,
        memory_bandwidth_bytes_per_second=bandwidth,
        host_link_bytes_per_second=None,
        power_watts=None,
        compute_capability=None,
        supports=frozenset({"fp32"}),
        matmul_by_size=tables,
        origins={"memory_bandwidth_bytes_per_second": "measured"},
    )


def build(shape: ModelShape, checkpointing: str) -> Transformer:
    """Return the runtime's model."""
    names = {f for f in ModelConfig.__dataclass_fields__ if hasattr(shape, f)}
    model = Transformer(ModelConfig(**{n: getattr(shape, n) for n in names}), checkpointing)
    for name, parameter in model.named_parameters():
        parameter.data.copy_(model.initial_value(name, parameter, torch.device("cpu"), 0))
    return model


def measured_seconds(shape: ModelShape, layout: Layout) -> tuple[float, float]:
    """Return (forward and backward of a micro-batch, update)."""
    model = build(shape, layout.activation_checkpointing)
    tokens = torch.randint(0, shape.vocab_size, (layout.micro_batch_size, layout.sequence_length))

    def pass_through() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=layout.precision == "bf16"):
            loss = model(tokens, tokens)
        loss.backward()

    one = processor_seconds(pass_through)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, fused=True)

    def update() -> None:
        gradients = [p.grad for p in parameters if p.grad is not None]
        norm = torch.stack(torch._foreach_norm(gradients)).norm()  # noqa: SLF001 - as the runtime does
        torch._foreach_mul_(gradients, (1.0 / (norm + 1e-6)).clamp(max=1.0))
        optimizer.step()

    return one, processor_seconds(update)


def node_class(device: Device) -> NodeClass:
    """Return one node with this device."""
    given = dict.fromkeys(NodeClass.__dataclass_fields__)
    given |= {"name": "here", "num_nodes": 1, "devices_per_node": 1, "device": device}
    return NodeClass(**given)


def main() -> int:
    """Print a line for each case."""
    if any(os.environ.get(k) != v for k, v in MALLOC.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **MALLOC})
    torch.set_num_threads(1)
    device = this_processor()
    print({n: {e: round(r / 1e9) for e, r in t.items()} for n, t in device.matmul_by_size.items()})
    print(f"memory {device.memory_bandwidth_bytes_per_second / 1e9:.1f} GB/s")
    errors = []
    for number, sequences, length, precision, checkpointing in CASES:
        shape = shape_for_size(number)
        layout = Layout(
            micro_batch_size=sequences,
            sequence_length=length,
            precision=precision,
            activation_checkpointing=checkpointing,
        )
        compute = micro_batch_seconds(shape, layout, device, sequences)
        update = optimizer_seconds(shape, layout, node_class(device), shape.num_parameters, 1).update_seconds
        one, updating = measured_seconds(shape, layout)
        errors.append(compute.total_seconds / one - 1)
        terms = " ".join(f"{k} {1e3 * v:.1f}" for k, v in asdict(compute)["terms_seconds"].items() if v)
        print(
            f"{shape.num_parameters / 1e6:5.1f}M {sequences}x{length:<4} {precision} {checkpointing:4}"
            f" micro-batch {1e3 * one:7.1f} ms, predicted {1e3 * compute.total_seconds:7.1f} ({errors[-1]:+.0%});"
            f" update {1e3 * updating:6.1f} ms, predicted {1e3 * update:6.1f};  {terms}",
            flush=True,
        )
    print(f"mean absolute error of a micro-batch {sum(map(abs, errors)) / len(errors):.1%}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

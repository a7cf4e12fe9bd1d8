"""FLOP per second of square matrix products, by precision and size: the fastest of several runs after a warm-up.

On a processor that others or a quota take away for part of the time, what is left of it: the fastest run is shorter
than any pause, a training step is not. An n*n*n product counts 2 n^3 FLOP. The CPU branch runs in every test; the
accelerator branch was written against torch's documentation and has not been run on a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch

from stratadvisor.probe.found import MatmulRates
from stratadvisor.probe.torch_clock import clock_for, open_device, processor_share, samples, seconds_of

CPU_EDGES = (128, 256, 512, 1024, 2048)
GPU_EDGES = (1024, 2048, 4096, 8192, 16384)
NUM_QUICK_EDGES = 3
PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "fp8")
_DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def why_not(precision: str, kind: str, capability: tuple[int, int] | None) -> str:
    """Return why a precision is not tried on a device, or an empty text when it is.

    Sources: CUDA C++ Programming Guide, table of arithmetic instructions (bf16 and tf32 from compute capability 8.0,
    fp8 from 8.9).
    """
    if kind == "cpu":
        return f"{precision} products do not exist on a CPU" if precision in ("tf32", "fp8") else ""
    if kind == "rocm":
        return f"{precision} is not tried on ROCm" if precision in ("tf32", "fp8") else ""
    if capability is None:
        return (
            "" if precision in ("fp32", "fp16") else f"the compute capability is unknown, so {precision} is not tried"
        )
    least = {"fp32": (0, 0), "fp16": (5, 3), "bf16": (8, 0), "tf32": (8, 0), "fp8": (8, 9)}[precision]
    if capability >= least:
        return ""
    return f"compute capability {capability[0]}.{capability[1]} has no {precision} matrix units"


def _product(precision: str, edge: int, device: torch.device) -> Callable[[], object]:
    """Return one product of fresh operands; random values, since zeros draw less power and run faster on GPUs."""
    left = torch.randn(edge, edge, device=device)
    right = torch.randn(edge, edge, device=device)
    if precision == "fp8":
        one = torch.ones((), device=device)
        a, b = left.to(torch.float8_e4m3fn), right.to(torch.float8_e4m3fn).t()
        return lambda: torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16)  # noqa: SLF001 - no public name
    a, b = left.to(_DTYPES[precision]), right.to(_DTYPES[precision])
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


def _rates(
    precision: str, edges: tuple[int, ...], device: torch.device, budget: float, share_of_processor: float
) -> Iterator[tuple[int, float]]:
    """Yield (edge, FLOP per second), from small to large, until the next size would not fit into the budget."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    end = time.perf_counter() + budget
    seconds_of(device, _product(precision, 64, device))  # the library sets itself up
    for edge in edges:
        work = _product(precision, edge, device)
        share = min(max(0.0, end - time.perf_counter()), budget / 2)
        sample_seconds = 0.02 if device.type == "cuda" else 0.0
        clock = clock_for(share_of_processor)
        best = min(samples(device, work, share, sample_seconds=sample_seconds, clock=clock)) / share_of_processor
        yield edge, 2.0 * edge**3 / best
        if time.perf_counter() + 2 * 8 * best > end:  # the next edge is double: 8 times the work, and a warm-up
            return


_CHAIN = 200
_OPERATION_SECONDS = 0.4


def operation_seconds(share_of_processor: float, budget_seconds: float = _OPERATION_SECONDS) -> float:
    """Return the time of a small operation of an eager program on the CPU, forward and backward.

    Of the fastest chain, as of products: what others do to the caches meanwhile differs from host to host by a factor
    of two and passes.
    """
    weight = torch.randn(16, 16, requires_grad=True)
    first = torch.full((16, 16), 1e-3)

    def chain() -> None:
        value = first
        for _ in range(_CHAIN):
            value = value * weight
        torch.autograd.grad(value.sum(), weight)

    taken = samples(torch.device("cpu"), chain, budget_seconds, most=100, clock=clock_for(share_of_processor))
    return min(taken) / _CHAIN / share_of_processor


def measure(
    *,
    device: str,
    threads: int,
    kind: str,
    capability: tuple[int, int] | None = None,
    budget_seconds: float = 4.0,
    quick: bool = False,
) -> dict[str, MatmulRates]:
    """Measure every precision that the device has."""
    target = open_device(device, threads)
    edges: tuple[int, ...] = CPU_EDGES if kind == "cpu" else GPU_EDGES
    if quick:
        edges = edges[:NUM_QUICK_EDGES]
    reasons = {precision: why_not(precision, kind, capability) for precision in PRECISIONS}
    share_of_processor = processor_share(target, _product("fp32", 384, target))
    share = budget_seconds / sum(not reason for reason in reasons.values())
    results: dict[str, MatmulRates] = {}
    for precision, reason in reasons.items():
        if reason:
            results[precision] = MatmulRates(reason=reason)
            continue
        found: dict[int, float] = {}
        failure = ""
        try:
            found.update(_rates(precision, edges, target, share, share_of_processor))
        except (RuntimeError, AttributeError) as problem:  # out of device memory, or this build lacks the kernel
            failure = str(problem).splitlines()[0][:200] if str(problem) else type(problem).__name__
        if target.type == "cuda":
            torch.cuda.empty_cache()
        results[precision] = MatmulRates(
            by_edge=found,
            reason="" if found else failure,
            processor_share=share_of_processor,
            operation_seconds=operation_seconds(share_of_processor) if kind == "cpu" and precision == "fp32" else None,
        )
    return results

"""Peak memory of measured runs, predicted: the same rows, the column ``peak_mem_gib`` or ``outcome``."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from stratadvisor.backtest.attempt import attempt, vetted_precision
from stratadvisor.backtest.express import device_of
from stratadvisor.backtest.frameworks import framework_of
from stratadvisor.backtest.layouts import NotExpressibleError, layout_of
from stratadvisor.backtest.rows import Row
from stratadvisor.backtest.shapes import shape_of
from stratadvisor.costs.memory import estimate
from stratadvisor.schema.cluster import Device
from stratadvisor.schema.layout import Layout, MemoryEstimate
from stratadvisor.schema.workload import ModelShape, Optimizer

GIB = 2.0**30
_OPTIMIZERS: dict[str, Optimizer] = {
    "": "adamw",
    "adam": "adamw",
    "adamw": "adamw",
    "adamw8bit": "adamw8bit",
    "8-bit adam (bitsandbytes)": "adamw8bit",
    "adafactor": "adafactor",
    "sgd": "sgd",
    "muon": "muon",
}


@dataclass(frozen=True, slots=True)
class MemoryOutcome:
    """One run's peak, predicted and measured, of the kind that was measured."""

    row: Row
    shape: ModelShape
    layout: Layout
    estimate: MemoryEstimate
    predicted_bytes: float
    low_bytes: float
    high_bytes: float
    measured_bytes: float | None
    """None where only the outcome is known: it ran out of memory."""
    device_bytes: float | None
    fitted: bool
    """Whether the run fitted."""

    @property
    def error(self) -> float:
        """Predicted over measured, minus one; 0 where nothing was measured."""
        return 0.0 if self.measured_bytes is None else self.predicted_bytes / self.measured_bytes - 1.0

    @property
    def inside(self) -> bool:
        """Whether the measurement lies in the predicted band."""
        return self.measured_bytes is not None and self.low_bytes <= self.measured_bytes <= self.high_bytes

    @property
    def above_high(self) -> bool:
        """Whether more was measured than the high end of the band, which decides whether a plan fits."""
        return self.measured_bytes is not None and self.measured_bytes > self.high_bytes

    @property
    def band(self) -> float:
        """High over low."""
        return self.high_bytes / self.low_bytes

    @property
    def verdict_right(self) -> bool | None:
        """Whether fits or out of memory was foretold by the likely peak; None where the device's memory is unknown.

        Plans are held against the high end instead: that errs to the safe side and is no forecast.
        """
        if self.device_bytes is None:
            return None
        return (self.estimate.peak_bytes.likely <= self.device_bytes) == self.fitted


def is_memory_row(row: Row) -> bool:
    """Whether a row tells a peak, or that memory ran out."""
    return row.number("peak_mem_gib") is not None or row.text("outcome").upper() == "OOM"


def predict_memory(row: Row) -> MemoryOutcome | str:
    """Return a run's peak beside its measurement, or why there is none.

    A stated number of heads goes first here: the peaks of `sailor-gh200`'s GPT-Neo are those of the 32 it states, its
    step times those of the published model's 20.
    """
    stated = {column: row.text(column) for column in ("n_heads", "n_kv_heads") if row.text(column)}
    return attempt(lambda full: _predict(Row(full.line, full.cells | stated)), row)


def _predict(row: Row) -> MemoryOutcome:
    precision = vetted_precision(row)
    optimizer = _OPTIMIZERS.get(row.text("optimizer").lower())
    if optimizer is None:
        raise NotExpressibleError(f"optimizer {row.text('optimizer')!r} is not modelled")
    shape = shape_of(row)
    if isinstance(shape, str):
        raise NotExpressibleError(shape)
    devices = row.count("n_gpus")
    if devices is None:
        raise NotExpressibleError("the number of devices is not stated")
    per_node = min(row.count("gpus_per_node") or 8, devices)
    layout = replace(layout_of(row, precision, devices, per_node), optimizer=optimizer)
    if layout.engine == "megatron" and framework_of(row).name == "megatron-deepspeed":
        layout = replace(layout, engine="deepspeed")  # whose optimizer and buffers it has
    if layout.engine == "ddp" and row.text("source").startswith("deepspeedai/DeepSpeed"):
        layout = replace(layout, engine="deepspeed")  # ZeRO switched off in its own tutorial: its fp16 optimizer is not
    device = device_of(row.text("gpu_model"))
    held = device_memory_bytes(row.text("gpu_model"), device)
    found = estimate(shape, layout, device_kind="cuda", ranks_per_node=per_node, device_memory_bytes=held)
    part = _share(found, row.text("mem_kind").lower())
    measured = row.number("peak_mem_gib")
    return MemoryOutcome(
        row=row,
        shape=shape,
        layout=layout,
        estimate=found,
        predicted_bytes=found.peak_bytes.likely * part,
        low_bytes=found.peak_bytes.low * part,
        high_bytes=found.peak_bytes.high * part,
        measured_bytes=None if measured is None else measured * GIB,
        device_bytes=held,
        fitted=row.text("outcome").upper() != "OOM",
    )


def device_memory_bytes(name: str, device: Device | None) -> float | None:
    """Return the memory of a run's device, of which ``device`` may be another edition with the same chip.

    A size in the name goes first (``H100-96GB``); vendors' GB of memory are binary.
    """
    said = re.search(r"-([0-9]+)GB\b", name)
    if said is not None:
        return int(said[1]) * GIB
    return device.memory_total_bytes if device else None


def _share(found: MemoryEstimate, kind: str) -> float:
    """Return the share of the predicted device memory that the measured figure counts.

    allocated (or active): what tensors take; reserved: with the allocator's reserve; else everything, as nvidia-smi.
    """
    whole = found.peak_bytes.likely
    part = whole
    if "allocated" in kind or "active" in kind:
        part = found.allocated_bytes
    elif "reserved" in kind:
        part -= found.terms_bytes.get("context", 0.0)
    return part / whole if whole > 0 else 1.0

"""``metrics.jsonl``: one JSON object a line, written by rank 0, flushed at once so that a watcher sees it."""

from __future__ import annotations

import json
import math
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .config import TrainingError
from .energy import EnergyMeter, device_meter, host_meter
from .tensorboard import Curves

METRICS_NAME = "metrics.jsonl"
FIELDS = (
    "loss_sum",
    "tokens",
    "step_seconds",
    "data_wait_seconds",
    "communication_seconds",
    "peak",
    "allocated",
    "device_joules",
    "host_joules",
    "stop",
)
"""What each rank tells the others about a step; NaN for unknown. Joules count from the start of the process."""
PRINT_INTERVAL_SECONDS = 1.0


def host_peak_bytes() -> int:
    """Return the largest resident size of this process so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def peak_device_bytes(device: torch.device) -> tuple[float, float]:
    """Return (reserved, allocated) peaks of a GPU; (peak resident size, NaN) of the process on a CPU."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_reserved(device)), float(torch.cuda.max_memory_allocated(device))
    return float(host_peak_bytes()), math.nan


class Meters:
    """What a rank reads beside its clock: memory, and energy since it started."""

    def __init__(self, device: torch.device, *, counts_host: bool) -> None:
        """``counts_host``: whether this rank is the one of its node that reads the host's energy."""
        self._device = device
        self._host_peak, self._due = 0.0, 0.0
        self.device_energy = device_meter(device)
        self.host_energy: EnergyMeter | None = host_meter() if counts_host else None

    def read(self) -> tuple[float, float, float, float]:
        """Return peak, allocated, device_joules and host_joules of FIELDS (0 J for a host that another rank counts)."""
        host = 0.0 if self.host_energy is None else self.host_energy.joules()
        return *self._peaks(), self.device_energy.joules(), host

    def _peaks(self) -> tuple[float, float]:
        """Return the peaks; those of a process, for which the kernel counts pages, once a second."""
        if self._device.type == "cuda":
            return peak_device_bytes(self._device)
        if time.perf_counter() >= self._due:
            self._host_peak = float(host_peak_bytes())
            self._due = time.perf_counter() + PRINT_INTERVAL_SECONDS
        return self._host_peak, math.nan

    def origins(self) -> dict[str, str]:
        """Return where the energies come from, or why they are unknown."""
        host = "" if self.host_energy is None else self.host_energy.origin
        return {"device_energy_origin": self.device_energy.origin, "host_energy_origin": host}


def step_event(step: int, rows: torch.Tensor, learning_rate: float, num_samples: int) -> dict[str, Any]:
    """Return the event of a step of ``num_samples`` sequences from the rows (ranks x FIELDS) of all ranks."""
    columns = dict(zip(FIELDS, rows.double().T.tolist(), strict=True))
    waits = [0.0 if math.isnan(c) else c for c in columns["communication_seconds"]]
    own = [
        max(0.0, total - data - wait)
        for total, data, wait in zip(columns["step_seconds"], columns["data_wait_seconds"], waits, strict=True)
    ]
    return {
        "event": "step",
        "step": step,
        "loss": sum(columns["loss_sum"]) / sum(columns["tokens"]),
        "tokens": int(sum(columns["tokens"])),
        "samples": num_samples,
        "step_seconds": max(columns["step_seconds"]),
        "compute_seconds": max(own),
        "data_wait_seconds": max(columns["data_wait_seconds"]),
        "communication_seconds": _known(max(columns["communication_seconds"])),
        "straggler_spread_seconds": max(own) - min(own),
        "peak_device_bytes": max(columns["peak"]),
        "peak_allocated_bytes": _known(max(columns["allocated"])),
        "device_energy_joules": _known(sum(columns["device_joules"])),
        "host_energy_joules": _known(sum(columns["host_joules"])),
        "rank_step_seconds": own,
        "learning_rate": learning_rate,
    }


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


class Telemetry:
    """Writes events on rank 0 and prints progress; on other ranks it does nothing."""

    def __init__(self, run_directory: Path, rank: int, *, append: bool) -> None:
        self._stream = None
        self._curves: Curves | None = None
        self._printed = -math.inf
        self._steps = 0
        self._peak = 0.0
        self._energy: dict[str, float | None] = {"device_energy_joules": None, "host_energy_joules": None}
        if rank == 0:
            path = run_directory / METRICS_NAME
            try:
                self._stream = path.open("a" if append else "w", encoding="utf-8")
            except OSError as problem:
                raise TrainingError(f"{path} cannot be written: {problem.strerror}") from None
            self._curves = Curves(run_directory)

    def _write(self, event: dict[str, Any]) -> None:
        if self._stream is not None:
            text = json.dumps({key: _finite(value) for key, value in event.items()})
            self._stream.write(text + "\n")
            self._stream.flush()

    def start(
        self,
        *,
        strategy: str,
        world_size: int,
        backend: str,
        device: torch.device,
        num_parameters: int,
        meters: Meters,
    ) -> None:
        """Write the start event."""
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        self._write(
            {
                "event": "start",
                "strategy": strategy,
                "world_size": world_size,
                "backend": backend,
                "device": name,
                "num_parameters": num_parameters,
                **meters.origins(),
                "time": time.time(),
            }
        )
        if self._stream is not None:
            print(f"{strategy}: {world_size} x {name}, {num_parameters:,} parameters", flush=True)

    def step(self, event: dict[str, Any]) -> None:
        """Write a step event, and print it if the last print is a second ago."""
        self._steps = event["step"]
        self._peak = max(self._peak, event["peak_device_bytes"])
        if self._stream is None:
            return
        self._energy = {key: event[key] for key in self._energy}
        self._write(event)
        if self._curves is not None:
            self._curves.step(event)
        now = time.perf_counter()
        if now - self._printed >= PRINT_INTERVAL_SECONDS:
            self._printed = now
            print(describe(event), flush=True)

    def alive(self, step: int, loss: Callable[[], float]) -> None:
        """Print a sign of life between exchanges, ten times rarer than steps are printed; nothing is logged."""
        now = time.perf_counter()
        if self._stream is not None and now - self._printed >= 10 * PRINT_INTERVAL_SECONDS:
            self._printed = now
            print(f"step {step}  loss of rank 0 {loss():.4f}  (replicas meet later)", flush=True)

    def loader(self, step: int, reason: str, workers: int) -> None:
        """Write what rank 0 found of its loading: the workers it advises, and why."""
        self._write({"event": "loader", "step": step, "workers": workers, "reason": reason})

    def change(self, step: int, kind: str, reason: str) -> None:
        """Write, print and mark in the curves that the run goes on in another way after ``step``, and why."""
        self._write({"event": "change", "step": step, "kind": kind, "reason": reason})
        if self._stream is not None:
            print(f"change after step {step}: {reason}", flush=True)
        if self._curves is not None:
            self._curves.note(step, reason)

    def end(self, reason: str) -> None:
        """Write the end event and close the file."""
        if self._stream is None:
            return
        self._write(
            {
                "event": "end",
                "steps": self._steps,
                "reason": reason,
                "peak_device_bytes": self._peak,
                "host_rss_bytes": host_peak_bytes(),
                **self._energy,
            }
        )
        print(f"{reason} after step {self._steps}", flush=True)
        self._stream.close()
        self._stream = None
        if self._curves is not None:
            self._curves.close()


def _finite(value: Any) -> Any:
    """Return None for NaN and infinity, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def describe(event: dict[str, Any]) -> str:
    """Return a step event as one line for people."""
    seconds = max(event["step_seconds"], 1e-9)
    return (
        f"step {event['step']}  loss {event['loss']:.4f}  {seconds:.3f} s  {event['tokens'] / seconds:,.0f} tokens/s"
        f"  data wait {event['data_wait_seconds'] / seconds:.0%}  peak {event['peak_device_bytes'] / 2**30:.2f} GiB"
    )

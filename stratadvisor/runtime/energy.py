"""Energy counters: NVML's of a GPU, the kernel's RAPL of the processors; unknown otherwise, and why."""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch

POWERCAP = Path("/sys/class/powercap")
"""The kernel's power capping framework (docs.kernel.org/power/powercap/powercap.html); AMD's counters are there too."""
NVML_LIBRARY = "libnvidia-ml.so.1"
COST_SHARE = 0.002
"""A counter is read only when its last reading cost less than this share of the time since then."""
Counter = Callable[[], float]
"""Returns joules since some moment of its own."""


class EnergyUnknownError(Exception):
    """A counter cannot be read; the text says why."""


class Rapl:
    """Packages and DRAM domains of this host, added up; each counter wraps at its own range."""

    def __init__(self, root: Path = POWERCAP) -> None:
        """Find the counters.

        Raises:
            EnergyUnknownError: there is none, or this user may not read it (the kernel's default since CVE-2020-8694).

        """
        self._zones: list[tuple[Path, int]] = []
        try:
            folders = sorted(root.glob("*-rapl:*"))
        except OSError:
            folders = []
        for folder in folders:
            try:
                name = (folder / "name").read_text().strip()
                if not name.startswith("package") and name != "dram":
                    continue  # parts of a package (core, uncore) are in it already; psys has the whole platform
                self._zones.append((folder / "energy_uj", int((folder / "max_energy_range_uj").read_text())))
            except (OSError, ValueError):
                continue
        if not self._zones:
            raise EnergyUnknownError(f"no RAPL counters under {root}")
        self._joules = 0.0
        self._last = self._read()

    def _read(self) -> list[int]:
        try:
            return [int(path.read_text()) for path, _ in self._zones]
        except PermissionError:
            raise EnergyUnknownError("the RAPL counters are readable by root only") from None
        except (OSError, ValueError) as problem:
            raise EnergyUnknownError(f"the RAPL counters cannot be read: {problem}") from None

    def __call__(self) -> float:
        """Return joules since construction."""
        now = self._read()
        for (_, span), before, after in zip(self._zones, self._last, now, strict=True):
            self._joules += ((after - before) if after >= before else (after - before + span)) / 1e6
        self._last = now
        return self._joules


class Nvml:
    """The total energy counter of one GPU (Volta and later), in millijoules since the driver was loaded."""

    def __init__(self, uuid: str) -> None:
        """Open the library and find the device.

        Raises:
            EnergyUnknownError: no library, no such device (a MIG slice has no counter), or no counter.

        """
        try:
            library = ctypes.CDLL(NVML_LIBRARY)
            self._read = library.nvmlDeviceGetTotalEnergyConsumption
            start, find = library.nvmlInit_v2, library.nvmlDeviceGetHandleByUUID
        except (OSError, AttributeError) as problem:
            raise EnergyUnknownError(f"{NVML_LIBRARY}: {problem}") from None
        self._check(start(), "nvmlInit")
        self._handle = ctypes.c_void_p()
        name = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
        self._check(find(name.encode(), ctypes.byref(self._handle)), f"device {name}")
        self()

    @staticmethod
    def _check(code: int, what: str) -> None:
        if code:
            reason = {3: "not supported by this device", 4: "no permission", 6: "not found"}.get(code, f"error {code}")
            raise EnergyUnknownError(f"NVML: {what}: {reason}")

    def __call__(self) -> float:
        """Return joules since the driver was loaded."""
        value = ctypes.c_ulonglong()
        self._check(self._read(self._handle, ctypes.byref(value)), "energy counter")
        return value.value / 1e3


class Drawn:
    """Power of a GPU over time, for devices without a counter (ROCm); each reading stands for the time before it."""

    def __init__(self, device: torch.device) -> None:
        """Read the power once.

        Raises:
            EnergyUnknownError: the package that torch asks is missing, or it does not know.

        """
        self._device, self._joules = device, 0.0
        self._at = time.perf_counter()
        self()

    def __call__(self) -> float:
        """Return joules since construction."""
        try:
            watts = torch.cuda.power_draw(self._device) / 1e3
        except Exception as problem:
            raise EnergyUnknownError(f"the device's power is not told: {str(problem).splitlines()[0]}") from None
        now = time.perf_counter()
        self._joules, self._at = self._joules + watts * (now - self._at), now
        return self._joules


class EnergyMeter:
    """One counter from its opening on; it reads again only when that costs little, and never raises."""

    def __init__(self, open_counter: Callable[[], Counter], origin: str) -> None:
        self.origin = origin
        """What is counted, or "unknown: " and the reason."""
        self._counter: Counter | None = None
        self._joules = math.nan
        self._due = 0.0
        try:
            self._counter = open_counter()
            self._start = self._counter()
        except EnergyUnknownError as problem:
            self._lose(problem)
        else:
            self._joules = 0.0

    def _lose(self, problem: EnergyUnknownError) -> None:
        self.origin = f"unknown: {problem}"
        self._counter, self._joules = None, math.nan

    def joules(self) -> float:
        """Return the energy since the opening at the last reading; NaN when it is unknown."""
        if self._counter is not None and (began := time.perf_counter()) >= self._due:
            try:
                self._joules = self._counter() - self._start
            except EnergyUnknownError as problem:
                self._lose(problem)
            ended = time.perf_counter()
            self._due = ended + (ended - began) / COST_SHARE
        return self._joules


def device_meter(device: torch.device) -> EnergyMeter:
    """Return the meter of a rank's device."""
    if device.type != "cuda":
        return EnergyMeter(_none("a processor is counted with its host"), "")
    if torch.version.hip is not None:
        return EnergyMeter(lambda: Drawn(device), "the device's power over time (AMD SMI)")

    def counter() -> Counter:
        uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
        if uuid is None:
            raise EnergyUnknownError(f"torch {torch.__version__} does not tell the device's UUID")
        return Nvml(str(uuid))

    return EnergyMeter(counter, "NVML energy counters")


def host_meter(root: Path = POWERCAP) -> EnergyMeter:
    """Return the meter of this host's processors and memory, everything that runs there included."""
    return EnergyMeter(lambda: Rapl(root), "RAPL counters of the hosts, with everything that runs there")


def _none(reason: str) -> Callable[[], Counter]:
    def fail() -> Counter:
        raise EnergyUnknownError(reason)

    return fail

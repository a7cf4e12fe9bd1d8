"""NVIDIA accelerators through NVML, in the order in which a training process sees them.

A GPU that hangs blocks every call about it, and no call can be taken back: the calls run in a thread that is left
behind when its time is up, and what was read until then is kept.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooLate
from pathlib import Path
from typing import TypeVar

from stratadvisor.probe import nvml_absence
from stratadvisor.probe.nvml_device import Found, read_device, short_bus_id
from stratadvisor.probe.nvml_links import read_links
from stratadvisor.probe.nvml_order import note, one_slice, order_notes, seen
from stratadvisor.probe.nvml_query import DEAD, Answer, Nvml
from stratadvisor.schema.profile import DeviceLink, DeviceProfile, Observation

Accelerators = tuple[tuple[DeviceProfile, ...], tuple[DeviceLink, ...], tuple[Observation, ...]]
Result = TypeVar("Result")

PATIENCE_SECONDS = 17.0
"""For everything. A node of eight answers within a second, but where the driver is not kept loaded (persistence mode
off) the first question starts every GPU, which takes a second or two for each."""
_HANGS = "it does not answer in time: see dmesg, then reset it or reboot"


def _before(deadline: float, work: Callable[[], Result]) -> Result:
    """Return what ``work`` returns; TooLate when the clock passes ``deadline``, and its thread is then left behind."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future.result(timeout=max(0.0, deadline - time.monotonic()))


class _Reader:
    """Reads one device after another; what it found so far can be taken while it hangs."""

    def __init__(self, nvml: Nvml, root: Path) -> None:
        self._nvml, self._root = nvml, root
        self.count = Answer(code=0, value=None)
        self.found: list[Found] = []

    def start(self) -> Answer:
        """Start the library and count the devices; an answer that is not ok says why it does not start."""
        started = self._nvml.query("Init")
        if started.ok:
            self.count = self._nvml.query("DeviceGetCount")
        return started

    def read(self) -> None:
        """Read every device."""
        for number in range(int(self.count.value or 0)):
            handle = self._nvml.query("DeviceGetHandleByIndex", number)
            if handle.ok:
                self.found.append(read_device(self._nvml, number, handle.value, self._root))
            else:
                reason = f"the driver gives no handle to it: {DEAD.get(handle.code, handle.reason)}"
                self.found.append(_nameless(number, False, reason))


def _nameless(number: int, healthy: bool | None, reason: str) -> Found:
    fields = {"kind": "cuda", "name": "unknown NVIDIA device", "healthy": healthy, "health_reason": reason}
    return Found(number=number, fields=fields)


def _unread(reader: _Reader) -> list[Found]:
    """Return the device at which reading hangs and those behind it."""
    first, count = len(reader.found), int(reader.count.value or 0)
    rest = [_nameless(n, None, f"not looked at: GPU {first} does not answer") for n in range(first + 1, count)]
    return [_nameless(first, False, _HANGS), *rest] if first < count else []


def _in_order(found: list[Found], root: Path) -> list[Found]:
    """Return the devices in the order of the bus where that is known for all.

    Devices without a handle get the name and address that only they can have, from the kernel's own list.
    """
    nameless = [d for d in found if d.handle is None]
    taken = {d.fields.get("pci_bus_id") for d in found if d.handle is not None}
    left = [(bus, m, u) for bus, (m, u) in nvml_absence.kernel_gpus(root).items() if short_bus_id(bus) not in taken]
    if len(left) == len(nameless):
        for device, (bus_id, model, uuid) in zip(nameless, left, strict=True):
            device.fields |= {"pci_bus_id": short_bus_id(bus_id), "name": model or device.fields["name"]}
            device.fields["uuid"] = nvml_absence.real_uuid(uuid)
    if all(d.fields.get("pci_bus_id") for d in found):
        return sorted(found, key=lambda d: str(d.fields["pci_bus_id"]))
    return found


def _absent(start: Answer, reason: Observation, environ: Mapping[str, str], root: Path) -> Accelerators:
    """Return the devices that the kernel knows as unusable, unless the user hides them all anyway."""
    if nvml_absence.hidden(environ):
        return (), (), (reason,)
    return nvml_absence.unusable_devices(root, start, reason.reason), (), (reason,)


def _look(nvml: Nvml, environ: Mapping[str, str], root: Path, patience_seconds: float) -> Accelerators:
    reader, deadline = _Reader(nvml, root), time.monotonic() + patience_seconds
    try:
        start = _before(deadline, reader.start)
    except TooLate:
        reason = "the NVIDIA driver does not answer in time: a GPU hangs; see dmesg, then reset it or reboot"
        return _absent(Answer(code=-1), note("timed_out", reason), environ, root)
    if not start.ok:
        return _absent(start, nvml_absence.explain(start, root), environ, root)
    if not reader.count.ok:
        text = f"the NVIDIA driver cannot count its devices: {reader.count.reason}"
        return _absent(reader.count, note("failed", text), environ, root)
    if not reader.count.value:
        return (), (), (nvml_absence.none_granted(root),)
    late: list[Observation] = []
    try:
        _before(deadline, reader.read)
        found = reader.found
    except TooLate:
        found = [*reader.found, *_unread(reader)]
        late.append(note("timed_out", f"reading the devices hangs at GPU {len(reader.found)}"))
    found = _in_order(found, root)
    chosen, visible = seen(found, environ)
    usable, left_out = one_slice(chosen)
    numbered = list(enumerate(usable))
    links: tuple[DeviceLink, ...] = ()
    if not late:
        try:
            links = _before(deadline, lambda: read_links(nvml, numbered))
        except TooLate:
            late.append(note("timed_out", "reading the links between the devices hangs"))
    sick = [
        note("failed", f"GPU {d.number} ({d.fields['name']}): {d.fields['health_reason']}")
        for d in usable
        if d.fields["healthy"] is not True
    ]
    if not late:
        nvml.query("Shutdown")
    notes = (*late, *order_notes(found, visible, environ), *left_out, *sick)
    return tuple(d.profile(i) for i, d in numbered), links, notes


def collect(
    environ: Mapping[str, str] | None = None,
    root: Path = Path("/"),
    *,
    patience_seconds: float = PATIENCE_SECONDS,
) -> Accelerators:
    """Return devices, links between them, and what went wrong or was left out; no observation means all went well."""
    environ = os.environ if environ is None else environ
    try:
        import pynvml
    except ImportError as error:
        return (), (), (note("unsupported", f"the NVML binding (nvidia-ml-py) cannot be imported: {error}"),)
    if not hasattr(pynvml, "nvmlInit") or not hasattr(pynvml, "NVMLError"):
        return (), (), (note("failed", "the module pynvml is not NVIDIA's binding: reinstall nvidia-ml-py"),)
    return _look(Nvml(pynvml), environ, root, patience_seconds)

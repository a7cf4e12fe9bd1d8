"""NVIDIA accelerators through NVML, in the order in which a training process sees them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from stratadvisor.probe import nvml_absence
from stratadvisor.probe.nvml_device import Found, read_device, short_bus_id
from stratadvisor.probe.nvml_links import read_links
from stratadvisor.probe.nvml_query import DEAD, Nvml
from stratadvisor.probe.visible_devices import Visible, select
from stratadvisor.schema.profile import DeviceLink, DeviceProfile, Observation

Accelerators = tuple[tuple[DeviceProfile, ...], tuple[DeviceLink, ...], tuple[Observation, ...]]


def _note(status: str, reason: str) -> Observation:
    return Observation.model_validate({"probe": "nvml", "status": status, "reason": reason})


def _enumerate(nvml: Nvml, count: int, root: Path) -> list[Found]:
    """Return every device, in the order of the bus where that is known for all."""
    found: list[Found] = []
    for number in range(count):
        handle = nvml.query("DeviceGetHandleByIndex", number)
        if handle.ok:
            found.append(read_device(nvml, number, handle.value, root))
            continue
        reason = DEAD.get(handle.code, handle.reason)
        found.append(
            Found(
                number=number,
                fields={
                    "kind": "cuda",
                    "name": "unknown NVIDIA device",
                    "healthy": False,
                    "health_reason": f"the driver gives no handle to it: {reason}",
                },
            )
        )
    _identify(found, root)
    if all(d.fields.get("pci_bus_id") for d in found):
        found.sort(key=lambda d: d.fields["pci_bus_id"])
    return found


def _identify(found: list[Found], root: Path) -> None:
    """Give devices without a handle the name and address that only they can have, from the kernel's own list."""
    nameless = [d for d in found if d.handle is None]
    taken = {d.fields.get("pci_bus_id") for d in found if d.handle is not None}
    left = [(bus, m, u) for bus, (m, u) in nvml_absence.kernel_gpus(root).items() if short_bus_id(bus) not in taken]
    if len(left) != len(nameless):
        return
    for device, (bus_id, model, uuid) in zip(nameless, left, strict=True):
        device.fields |= {"pci_bus_id": short_bus_id(bus_id), "name": model or device.fields["name"]}
        device.fields["uuid"] = nvml_absence.real_uuid(uuid)


def _seen(found: list[Found], environ: Mapping[str, str]) -> tuple[list[Found], Visible]:
    """Return what CUDA_VISIBLE_DEVICES leaves: numbers name cards, UUIDs name cards or slices."""
    slices = [s for device in found for s in device.slices]
    uuids = [d.uuid for d in found] + [s.uuid for s in slices]
    visible = select(environ.get("CUDA_VISIBLE_DEVICES"), uuids, indexed=len(found))
    everything = [*found, *slices]
    return [everything[p] for p in visible.positions], visible


def _one_slice(chosen: list[Found]) -> tuple[list[Found], list[Observation]]:
    """Return what one process can use: whole cards, or else a single slice.

    NVIDIA's MIG guide (CUDA_VISIBLE_DEVICES): a CUDA process enumerates one MIG device, however many there are.
    """
    slices = [s for d in chosen for s in (d.slices if d.slices else [d] if d.fields.get("mig_profile") else [])]
    whole = [d for d in chosen if not d.slices and not d.fields.get("mig_profile")]
    if not slices:
        return whole, []
    if whole and any(d.fields["healthy"] is not False for d in whole):
        text = "MIG slices are left out beside whole GPUs: a process cannot use both; name what it is to use by UUID"
        return whole, [_note("skipped", f"{len(slices)} {text}")]
    if len(slices) > 1:
        others = ", ".join(s.uuid for s in slices[1:])
        text = f"a process sees only one MIG slice, and slices cannot train together; left out: {others}"
        return [*whole, slices[0]], [_note("skipped", text)]
    return [*whole, slices[0]], []


def _order_notes(found: list[Found], visible: Visible, environ: Mapping[str, str]) -> list[Observation]:
    """Say when CUDA may number the devices otherwise: fastest first is its default, and only NVML's order is known."""
    notes = []
    if visible.complaint:
        hides_all = not visible.positions and not environ.get("CUDA_VISIBLE_DEVICES", "").strip()
        notes.append(_note("skipped" if hides_all else "failed", visible.complaint))
    elif len(visible.positions) < len(found):
        hidden = [d for i, d in enumerate(found) if i not in visible.positions]
        hidden = [d for d in hidden if not any(len(found) <= p for p in visible.positions)]
        if hidden:
            names = ", ".join(f"{d.number} ({d.fields['name']})" for d in hidden)
            notes.append(_note("skipped", f"hidden by CUDA_VISIBLE_DEVICES: {names}"))
    order = environ.get("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    kinds = {d.fields["name"] for d in found if d.fields["healthy"] is not False}
    if len(kinds) > 1 and order != "PCI_BUS_ID" and "CUDA_VISIBLE_DEVICES" not in environ:
        text = "the GPUs differ and CUDA numbers the fastest first; listed here in the order of the PCI bus"
        notes.append(_note("unsupported", f"{text}: set CUDA_DEVICE_ORDER=PCI_BUS_ID so that both agree"))
    elif len(kinds) > 1 and order != "PCI_BUS_ID" and visible.by_index:
        text = "the GPUs differ, so the numbers in CUDA_VISIBLE_DEVICES may name other ones to CUDA than listed here"
        notes.append(_note("unsupported", f"{text}: set CUDA_DEVICE_ORDER=PCI_BUS_ID, or use UUIDs"))
    return notes


def _look(nvml: Nvml, environ: Mapping[str, str], root: Path) -> Accelerators:
    count = nvml.query("DeviceGetCount")
    if not count.ok:
        reason = f"the NVIDIA driver cannot count its devices: {count.reason}"
        return nvml_absence.unusable_devices(root, count, reason), (), (_note("failed", reason),)
    if not count.value:
        return (), (), (nvml_absence.none_granted(root),)
    found = _enumerate(nvml, int(count.value), root)
    chosen, visible = _seen(found, environ)
    usable, notes = _one_slice(chosen)
    numbered = list(enumerate(usable))
    notes = [*_order_notes(found, visible, environ), *notes]
    notes += [
        _note("failed", f"GPU {d.number} ({d.fields['name']}): {d.fields['health_reason']}")
        for d in usable
        if d.fields["healthy"] is not True
    ]
    return tuple(d.profile(i) for i, d in numbered), read_links(nvml, numbered), tuple(notes)


def collect(environ: Mapping[str, str] | None = None, root: Path = Path("/")) -> Accelerators:
    """Return devices, links between them, and what went wrong or was left out; no observation means all went well."""
    environ = os.environ if environ is None else environ
    try:
        import pynvml
    except ImportError as error:
        return (), (), (_note("unsupported", f"the NVML binding (nvidia-ml-py) cannot be imported: {error}"),)
    if not hasattr(pynvml, "nvmlInit") or not hasattr(pynvml, "NVMLError"):
        text = "the module pynvml is not NVIDIA's binding: reinstall nvidia-ml-py"
        return (), (), (_note("failed", text),)
    nvml = Nvml(pynvml)
    start = nvml.query("Init")
    if not start.ok:
        note = nvml_absence.explain(start, root)
        if nvml_absence.hidden(environ):
            return (), (), (note,)
        return nvml_absence.unusable_devices(root, start, note.reason), (), (note,)
    try:
        return _look(nvml, environ, root)
    finally:
        nvml.query("Shutdown")

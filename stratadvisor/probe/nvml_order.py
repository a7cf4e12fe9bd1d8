"""Which of a node's NVIDIA devices a process sees, in which order, and what is uncertain about that."""

from __future__ import annotations

from collections.abc import Mapping

from stratadvisor.probe.nvml_device import Found
from stratadvisor.probe.visible_devices import Visible, select
from stratadvisor.schema.profile import Observation


def note(status: str, reason: str) -> Observation:
    """Return an observation of this sub-probe."""
    return Observation.model_validate({"probe": "nvml", "status": status, "reason": reason})


def seen(found: list[Found], environ: Mapping[str, str]) -> tuple[list[Found], Visible]:
    """Return what CUDA_VISIBLE_DEVICES leaves: numbers name cards, UUIDs name cards or slices."""
    slices = [s for device in found for s in device.slices]
    uuids = [d.uuid for d in found] + [s.uuid for s in slices]
    visible = select(environ.get("CUDA_VISIBLE_DEVICES"), uuids, indexed=len(found))
    everything = [*found, *slices]
    return [everything[p] for p in visible.positions], visible


def one_slice(chosen: list[Found]) -> tuple[list[Found], list[Observation]]:
    """Return what one process can use: whole cards, or else a single slice.

    NVIDIA's MIG guide (CUDA_VISIBLE_DEVICES): a CUDA process enumerates one MIG device, however many there are.
    """
    slices = [s for d in chosen for s in (d.slices if d.slices else [d] if d.fields.get("mig_profile") else [])]
    whole = [d for d in chosen if not d.slices and not d.fields.get("mig_profile")]
    if not slices:
        return whole, []
    if whole and any(d.fields["healthy"] is not False for d in whole):
        text = "MIG slices are left out beside whole GPUs: a process cannot use both; name what it is to use by UUID"
        return whole, [note("skipped", f"{len(slices)} {text}")]
    if len(slices) > 1:
        others = ", ".join(s.uuid for s in slices[1:])
        text = f"a process sees only one MIG slice, and slices cannot train together; left out: {others}"
        return [*whole, slices[0]], [note("skipped", text)]
    return [*whole, slices[0]], []


def order_notes(found: list[Found], visible: Visible, environ: Mapping[str, str]) -> list[Observation]:
    """Say when CUDA may number the devices otherwise: fastest first is its default, and only NVML's order is known."""
    notes = []
    if visible.complaint:
        hides_all = not visible.positions and not environ.get("CUDA_VISIBLE_DEVICES", "").strip()
        notes.append(note("skipped" if hides_all else "failed", visible.complaint))
    elif len(visible.positions) < len(found):
        hidden = [d for i, d in enumerate(found) if i not in visible.positions]
        hidden = [d for d in hidden if not any(len(found) <= p for p in visible.positions)]
        if hidden:
            names = ", ".join(f"{d.number} ({d.fields['name']})" for d in hidden)
            notes.append(note("skipped", f"hidden by CUDA_VISIBLE_DEVICES: {names}"))
    order = environ.get("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    kinds = {d.fields["name"] for d in found if d.fields["healthy"] is not False}
    if len(kinds) > 1 and order != "PCI_BUS_ID" and "CUDA_VISIBLE_DEVICES" not in environ:
        text = "the GPUs differ and CUDA numbers the fastest first; listed here in the order of the PCI bus"
        notes.append(note("unsupported", f"{text}: set CUDA_DEVICE_ORDER=PCI_BUS_ID so that both agree"))
    elif len(kinds) > 1 and order != "PCI_BUS_ID" and visible.by_index:
        text = "the GPUs differ, so the numbers in CUDA_VISIBLE_DEVICES may name other ones to CUDA than listed here"
        notes.append(note("unsupported", f"{text}: set CUDA_DEVICE_ORDER=PCI_BUS_ID, or use UUIDs"))
    return notes

"""Why NVML has nothing to say, and which GPUs are there all the same, from /proc and the PCI bus."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from stratadvisor.catalog import devices as catalog
from stratadvisor.probe.files import list_dir, read_text
from stratadvisor.probe.nvml_query import DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, NO_PERMISSION, VERSION_MISMATCH, Answer
from stratadvisor.probe.software import nvidia_driver
from stratadvisor.schema.profile import DeviceProfile, Observation

NVIDIA_VENDOR = "0x10de"
_DISPLAY_CLASSES = ("0x0300", "0x0302")


def pci_gpus(root: Path, vendor: str, classes: tuple[str, ...] = _DISPLAY_CLASSES) -> list[str]:
    """Return the bus ids of a vendor's display and 3D controllers."""
    folders = list_dir(root / "sys/bus/pci/devices")
    return [
        folder.name
        for folder in folders
        if read_text(folder / "vendor") == vendor and (read_text(folder / "class") or "")[:6] in classes
    ]


def kernel_gpus(root: Path) -> dict[str, tuple[str, str]]:
    """Return bus id -> (model, UUID) as the loaded kernel module lists them, in the order of the bus."""
    found = {}
    for folder in list_dir(root / "proc/driver/nvidia/gpus"):
        text = read_text(folder / "information") or ""
        fields = dict(re.findall(r"^([A-Za-z ]+?):\s*(.*?)\s*$", text, re.MULTILINE))
        found[folder.name.lower()] = (fields.get("Model", "").strip(), fields.get("GPU UUID", "").strip())
    return dict(sorted(found.items()))


def hidden(environ: Mapping[str, str]) -> bool:
    """Whether CUDA_VISIBLE_DEVICES hides every device, so that the user wants none."""
    value = environ.get("CUDA_VISIBLE_DEVICES")
    return value is not None and re.match(r"\s*(\+?[0-9]|GPU-|MIG-)", value, re.IGNORECASE) is None


def unusable_devices(root: Path, start: Answer, reason: str) -> tuple[DeviceProfile, ...]:
    """Return the GPUs that the loaded driver knows as devices that cannot be used now, so that no plan forgets them.

    A card on the bus without any driver is not among them: it may be an old display card that nobody wants to use.
    """
    if start.code == DRIVER_NOT_LOADED or (start.code == LIBRARY_NOT_FOUND and nvidia_driver(root) is None):
        return ()
    known = kernel_gpus(root)
    if not known and start.code in (VERSION_MISMATCH, NO_PERMISSION):
        known = {"": ("", "")}  # a driver answered, so there is at least one
    devices = []
    for index, (bus_id, (model, uuid)) in enumerate(known.items()):
        spec = catalog.lookup(model) if model else None
        devices.append(
            DeviceProfile(
                index=index,
                kind="cuda",
                name=model or "unknown NVIDIA device",
                catalog_key=spec.key if spec else None,
                uuid=real_uuid(uuid),
                pci_bus_id=bus_id,
                healthy=False,
                health_reason=reason,
            )
        )
    return tuple(devices)


def real_uuid(text: str) -> str:
    """Return a UUID of the kernel's list; a GPU that was never started has question marks there."""
    return text if text.startswith("GPU-") and "?" not in text else ""


def explain(answer: Answer, root: Path) -> Observation:
    """Return the true cause of a failed start of NVML, with what to do about it."""
    loaded = nvidia_driver(root)
    on_bus = len(kernel_gpus(root) or pci_gpus(root, NVIDIA_VENDOR))
    cards = f"{on_bus} NVIDIA GPU{'s are' if on_bus > 1 else ' is'}" if on_bus else "NVIDIA GPUs are"
    cards += " in this machine"
    if answer.code == VERSION_MISMATCH:
        reason = (
            f"{cards}, but the loaded kernel driver ({loaded or 'version unknown'}) and the installed driver library"
            " differ, as after an upgrade of packages: reboot, or stop every GPU program and reload the nvidia modules"
        )
        return Observation(probe="nvml", status="failed", reason=reason)
    if answer.code == LIBRARY_NOT_FOUND and loaded:
        reason = (
            f"the NVIDIA kernel driver {loaded} is loaded, but libnvidia-ml.so.1 is not found:"
            " start the container with the NVIDIA runtime (--gpus all), or install the driver's libraries"
        )
        return Observation(probe="nvml", status="failed", reason=reason)
    if answer.code in (LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED) and on_bus:
        reason = f"{cards}, but the driver is not loaded: install or load the NVIDIA driver (see dmesg for a refusal)"
        return Observation(probe="nvml", status="failed", reason=reason)
    if answer.code == NO_PERMISSION:
        reason = "the NVIDIA devices may not be opened by this user: ask for access to /dev/nvidia*"
        return Observation(probe="nvml", status="denied", reason=reason)
    if answer.code == LIBRARY_NOT_FOUND:
        reason = "no NVIDIA driver library (libnvidia-ml.so.1) and no NVIDIA GPU on the PCI bus"
        return Observation(probe="nvml", status="unsupported", reason=reason)
    if answer.code == DRIVER_NOT_LOADED:
        reason = "the NVIDIA driver is not loaded and no NVIDIA GPU is on the PCI bus"
        return Observation(probe="nvml", status="unsupported", reason=reason)
    return Observation(
        probe="nvml", status="failed", reason=f"the NVIDIA driver library does not start: {answer.reason}"
    )


def none_granted(root: Path) -> Observation:
    """Return why a running driver lists no device."""
    known = len(kernel_gpus(root))
    if known == 0:
        return Observation(probe="nvml", status="unsupported", reason="the NVIDIA driver lists no GPU")
    reason = (
        f"the kernel driver knows {known} GPU(s), but none may be used here: this container or Slurm step was given"
        " none (--gpus, --gres=gpu:N), or they failed to start (see dmesg)"
    )
    return Observation(probe="nvml", status="denied", reason=reason)

"""Whether an NVIDIA device is alive, and what it remembers of faults."""

from __future__ import annotations

from typing import Any

from stratadvisor.probe.nvml_query import DEAD, Answer, Nvml, address

_COMPUTE_PROHIBITED = 2
_FABRIC_UNFINISHED = {1: "not started", 2: "in progress"}
_UNCORRECTED, _VOLATILE = 1, 0


def _worn(nvml: Nvml, handle: Any) -> str:
    """Return what the card remembers of its memory errors, empty when nothing is wrong."""
    rows = nvml.value("DeviceGetRemappedRows", handle)
    if rows and rows[3]:
        return "row remapping failed: its memory has used up its spare rows and the card is to be replaced"
    if rows and rows[2]:
        return "a row remapping waits for a reset of the GPU: memory errors were found"
    errors = nvml.value("DeviceGetTotalEccErrors", handle, _UNCORRECTED, _VOLATILE)
    return f"{errors} uncorrectable memory errors since the driver was loaded" if errors else ""


def _fabric(nvml: Nvml, handle: Any) -> str:
    """Return a complaint when NVSwitch is there but its fabric has not come up (CUDA then fails with error 802)."""
    info = nvml.filled("DeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t", handle)
    state = _FABRIC_UNFINISHED.get(int(info.state)) if info is not None else None
    return f"its NVLink fabric is {state}: CUDA may refuse to start; check nvidia-fabricmanager" if state else ""


def answers(nvml: Nvml, handle: Any, must: dict[str, Answer]) -> tuple[bool | None, str]:
    """Return whether the device answered what it must, and what is wrong with it otherwise."""
    if address(handle) in nvml.losses:
        return False, nvml.losses[address(handle)]
    for what, answer in must.items():
        if answer.code in DEAD:
            return False, f"its {what} cannot be read: {DEAD[answer.code]}"
    silent = [f"its {what} cannot be read ({a.reason})" for what, a in must.items() if not a.ok]
    return (None, silent[0]) if silent else (True, "")


def health(nvml: Nvml, handle: Any, must: dict[str, Answer]) -> tuple[bool | None, str]:
    """Return the health of a whole card; True with a reason is a card that works and remembers faults."""
    healthy, reason = answers(nvml, handle, must)
    if not healthy:
        return healthy, reason
    if nvml.value("DeviceGetComputeMode", handle) == _COMPUTE_PROHIBITED:
        return False, "its compute mode is 'prohibited', so no process may use it: nvidia-smi -c 0"
    waiting = _fabric(nvml, handle)
    return (None, waiting) if waiting else (True, _worn(nvml, handle))

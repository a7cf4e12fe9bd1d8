"""Which accelerators torch can use here, in torch's own order (CUDA_VISIBLE_DEVICES applied).

The accelerator branch was written against torch's documentation and has not been run on a GPU.
"""

from __future__ import annotations

import torch

from stratadvisor.probe.found import TorchDevice, TorchDevices


def _free_bytes(index: int) -> int | None:
    try:
        return int(torch.cuda.mem_get_info(index)[0])
    except RuntimeError:
        return None


def collect() -> TorchDevices:
    """Ask torch."""
    build = f"torch {torch.__version__}"
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        return TorchDevices(kind="cpu", reason=f"{build} uses an Intel GPU, which is not measured: the CPU stands in")
    if torch.version.cuda is None and torch.version.hip is None:
        return TorchDevices(kind="cpu", reason=f"{build} is built for CPUs only")
    kind = "rocm" if torch.version.hip else "cuda"
    if not torch.cuda.is_available():
        return TorchDevices(kind="cpu", reason=f"{build} finds no {kind} device")
    found: list[TorchDevice] = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        capability = (properties.major, properties.minor) if kind == "cuda" else None
        found.append(
            TorchDevice(
                index=index,
                name=properties.name,
                uuid=str(getattr(properties, "uuid", "")),
                compute_capability=capability,
                memory_total_bytes=int(properties.total_memory),
                memory_free_bytes=_free_bytes(index),
            )
        )
    return TorchDevices(kind=kind, devices=tuple(found))

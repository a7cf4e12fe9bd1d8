"""The one place that calls NVML: each call is tolerated to fail on its own, and says why.

NVML answers "not supported" for much that a consumer card, a vGPU or a slice does not have; that is an absent value,
not an error. A lost device fails every call about it and none about the others.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from types import ModuleType
from typing import Any

NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND = 3, 4, 9, 12
FUNCTION_NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED, VERSION_MISMATCH, UNKNOWN = 13, 15, 16, 18, 999
"""nvmlReturn_t of the NVML API reference."""

DEAD = {
    8: "its external power cable is missing or not delivering",
    10: "it does not answer in time",
    GPU_IS_LOST: "the GPU is lost: it fell off the bus or cannot be reached; reboot, then reseat it",
    RESET_REQUIRED: "it has to be reset: nvidia-smi --gpu-reset, or a reboot",
    14: "its infoROM is corrupted",
    UNKNOWN: "the driver reports an unknown error about it; the kernel log (Xid lines) has more",
}
"""Answers that no healthy device gives to a question it must answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one call came to: a value, or the error code and its text."""

    value: Any = None
    code: int = 0
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Whether there is a value."""
        return self.code == 0


class Nvml:
    """Calls of one loaded NVML library."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self.losses: dict[int, str] = {}
        """Address of a handle -> why that device counts as lost, from whichever call noticed."""

    def query(self, name: str, *arguments: Any) -> Answer:
        """Return what ``nvml<name>`` answers; never raises for anything the library or its binding does."""
        try:
            return Answer(value=getattr(self._module, f"nvml{name}")(*arguments))
        except self._module.NVMLError as error:
            code = int(getattr(error, "value", UNKNOWN) or UNKNOWN)
            answer = Answer(code=code, reason=str(error))
        except (AttributeError, ctypes.ArgumentError, TypeError, ValueError) as error:
            # An older binding lacks the function; a device that is half gone returns bytes that are no text.
            return Answer(code=FUNCTION_NOT_FOUND, reason=f"nvml{name}: {error}")
        except Exception as error:
            # The binding raises a class of its own, outside NVMLError, where the library is older than itself.
            return Answer(code=FUNCTION_NOT_FOUND, reason=f"nvml{name}: {error}")
        if code in (GPU_IS_LOST, RESET_REQUIRED) and arguments:
            self.losses.setdefault(address(arguments[0]), DEAD[code])
        return answer

    def value(self, name: str, *arguments: Any) -> Any:
        """Return the value of ``nvml<name>``, None where there is none."""
        return self.query(name, *arguments).value

    def filled(self, name: str, structure: str, handle: Any) -> Any:
        """Return the structure that ``nvml<name>`` fills; None where the call or the structure does not exist."""
        kind = getattr(self._module, structure, None)
        if kind is None:
            return None
        empty = kind()
        return empty if self.query(name, handle, ctypes.byref(empty)).ok else None

    def first(self, *names: str, arguments: tuple[Any, ...]) -> Answer:
        """Return the first of several calls that answers: newer spellings first."""
        answer = Answer(code=FUNCTION_NOT_FOUND, reason="no such function")
        for name in names:
            answer = self.query(name, *arguments)
            if answer.code != FUNCTION_NOT_FOUND:
                return answer
        return answer


def address(handle: Any) -> int:
    """Return the number behind an opaque handle; 0 for anything else."""
    try:
        return ctypes.cast(handle, ctypes.c_void_p).value or 0
    except (ctypes.ArgumentError, TypeError):
        return 0

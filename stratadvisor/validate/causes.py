"""The table of failures that a Python or C++ message names: exception type, message, cause, smallest fix."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from stratadvisor.schema.plan import Plan


@dataclass(frozen=True, slots=True)
class Raised:
    """One exception line of a log."""

    rank: int | None
    type: str
    """Empty for a message of native code."""
    text: str
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """One known failure."""

    kind: Literal[
        "device_out_of_memory",
        "host_out_of_memory",
        "shared_memory_exhausted",
        "disk_full",
        "port_in_use",
        "network_interface",
        "missing_compiler",
        "missing_package",
        "version_mismatch",
        "bad_config",
        "resource_limit",
        "hang",
    ]
    types: str
    """Regular expression over the exception's type."""
    texts: tuple[str, ...] = ("",)
    """Regular expressions over its message; one must be found."""
    summary: str
    fix: Callable[[Raised, Plan], str]

    def matches(self, raised: Raised) -> bool:
        """Return whether an exception line is of this kind."""
        return bool(re.search(self.types, raised.type)) and any(re.search(t, raised.text) for t in self.texts)


def smaller(_: Raised, plan: Plan) -> str:
    """Return the smallest change of a plan that needs less memory."""
    first = plan.groups[0]
    if first.micro_batch_size > 1:
        return (
            f"plan again with less memory to use: {first.micro_batch_size // 2} instead of {first.micro_batch_size}"
            " sequences per micro-batch need about half the activations"
        )
    if plan.memory.activation_checkpointing != "full":
        return "recompute activations (full checkpointing), or shorten --seq-len"
    if plan.memory.zero_stage < 3:
        return "divide parameters among the devices (zero3 or fsdp2), or shorten --seq-len"
    return "shorten --seq-len, use --method qlora, or add devices"


def _install(raised: Raised, _: Plan) -> str:
    match = re.search(r"No module named '?([\w.-]+)", raised.text)
    name = match[1].split(".")[0] if match else "the package"
    return f"install {name} in the environment that runs the training program (python -m pip install {name})"


def _conflict(raised: Raised, _: Plan) -> str:
    keys = dict.fromkeys(re.findall(r"\b(?:ds|hf) ([a-z_][\w.]*)\s*=", raised.text))
    named = f" (here: {', '.join(keys)})" if keys else ""
    return f"make the keys that the message names agree{named}; stratadvisor check FILE finds such contradictions"


def _always(text: str) -> Callable[[Raised, Plan], str]:
    return lambda _raised, _plan: text


_FEWER_WORKERS = "fewer data-loader workers, or a larger /dev/shm (docker run --shm-size; an emptyDir of medium Memory)"
_FREE_SPACE = "free some space, or point STRATADVISOR_RUN_DIR at another disk"
_AGAIN = "write the bundle again with recommend --force"

TYPED: tuple[Typed, ...] = (
    Typed(kind="device_out_of_memory", types=r"OutOfMemoryError$", summary="a device ran out of memory", fix=smaller),
    Typed(
        kind="device_out_of_memory",
        types=r"RuntimeError$",
        texts=(r"(CUDA|HIP).*out of memory", r"CUBLAS_STATUS_ALLOC_FAILED"),
        summary="a device ran out of memory",
        fix=smaller,
    ),
    Typed(
        kind="shared_memory_exhausted",
        types=r"(RuntimeError|OSError)$",
        texts=(
            r"unable to (open|allocate|write|mmap).*shared memory",
            r"insufficient shared memory",
            r"torch_shm",
            r"/dev/shm",  # noqa: S108
            r"DataLoader worker .* killed by signal: Bus error",
        ),
        summary="shared memory (/dev/shm) is too small for the data-loader workers",
        fix=_always(_FEWER_WORKERS),
    ),
    Typed(
        kind="host_out_of_memory",
        types=r"(RuntimeError|ImportError)$",
        texts=(r"DefaultCPUAllocator: (can't|not enough).*memory", r"Cannot allocate memory", r"unable to mmap"),
        summary="the host ran out of memory",
        fix=smaller,
    ),
    Typed(kind="host_out_of_memory", types=r"^MemoryError$", summary="the host ran out of memory", fix=smaller),
    Typed(
        kind="host_out_of_memory",
        types=r"OSError$",
        texts=(r"\[Errno 12\]",),
        summary="the host ran out of memory",
        fix=smaller,
    ),
    Typed(
        kind="disk_full",
        types=r"^$|(OSError|RuntimeError)$",
        texts=(
            r"\[Errno 28\]",
            r"No space left on device",
            r"\[Errno 122\]|Disk quota exceeded",
            r"PytorchStreamWriter failed writing",
        ),
        summary="the disk, or this user's share of it, is full",
        fix=_always(_FREE_SPACE),
    ),
    Typed(
        kind="resource_limit",
        types=r"^$|^(BlockingIOError|OSError|RuntimeError|ImportError)$",
        texts=(
            r"Too many open files",
            r"can't start new thread",
            r"Resource temporarily unavailable",
            r"\[Errno 27\]|File too large",
        ),
        summary="a limit on open files, processes, threads or the size of a file was reached",
        fix=_always(
            "raise it (ulimit -n, -u, -f, the container's or scheduler's pids limit), or use fewer data-loader workers"
        ),
    ),
    Typed(
        kind="port_in_use",
        types=r"",
        texts=(r"EADDRINUSE", r"[Aa]ddress already in use", r"errno: 98\b"),
        summary="the rendezvous port is taken by another process",
        fix=_always("wait for the other job, or set MASTER_PORT to a free port"),
    ),
    Typed(
        kind="network_interface",
        types=r"",
        texts=(
            r"[Uu]nable to find (address|interface)",
            r"no socket interface found",
            r"ifa != nullptr",
            r"Unable to resolve hostname",
            r"Name or service not known",
            r"Temporary failure in name resolution",
        ),
        summary="the communication library found no usable network interface or address",
        fix=_always(
            "set GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME to an interface of `ip -brief address`,"
            " or mend the host's name in /etc/hosts"
        ),
    ),
    Typed(
        kind="missing_compiler",
        types=r"",
        texts=(
            r"Ninja is required",
            r"CUDA_HOME (does not exist|environment variable is not set)",
            r"[Nn]o such file or directory: '([^']*/)?(g\+\+|gcc|c\+\+|nvcc|ninja)'",
            r"Error building extension",
        ),
        summary="a compiler is missing that the engine needs to build its operators",
        fix=_always(
            "install gcc, g++ and ninja (and the CUDA toolkit on GPUs), or choose a strategy of the torchrun target"
        ),
    ),
    Typed(
        kind="missing_package",
        types=r"(ModuleNotFoundError|ImportError)$",
        texts=(r"No module named",),
        summary="a Python package is missing",
        fix=_install,
    ),
    Typed(
        kind="version_mismatch",
        types=r"",
        texts=(
            r"driver version is insufficient",
            r"no kernel image is available",
            r"undefined symbol",
            r"forward compatibility was attempted",
            r"not compatible with the current PyTorch",
            r"Found no NVIDIA driver",
            r"cannot import name",
            r"^module '(torch|deepspeed|transformers|accelerate|numpy|triton|megatron)\b[\w.]*' has no attribute",
        ),
        summary="driver, torch, packages and device do not fit together",
        fix=_always("compare the versions in the bundle's README with `pip list` and with the driver's"),
    ),
    Typed(
        kind="bad_config",
        types=r"(ConfigError|JSONDecodeError)$",
        summary="a configuration file is not accepted",
        fix=_always(_AGAIN),
    ),
    Typed(
        kind="bad_config",
        types=r"AssertionError$",
        texts=(r"is not a supported DeepSpeed Optimizer", r"Check batch related parameters", r"train_batch"),
        summary="DeepSpeed refuses the configuration",
        fix=_always(_AGAIN),
    ),
    Typed(
        kind="bad_config",
        types=r"(ValueError|AssertionError|ValidationError|TypeError)$",
        texts=(
            r"DeepSpeed config values that mismatch TrainingArguments",
            r"validation errors? for \w*(Config|DeepSpeed)\w*",
            r"not supported between instances of 'str' and",
            r"ZeRO-?[123] is incompatible with|[Cc]annot be used with ZeRO",
        ),
        summary="the framework refuses the configuration",
        fix=_conflict,
    ),
    Typed(
        kind="bad_config",
        types=r"(FileNotFoundError|IsADirectoryError|PermissionError)$",
        summary="a file that the training program needs cannot be opened",
        fix=_always("check the path and its permissions"),
    ),
    Typed(
        kind="hang",
        types=r"",
        texts=(
            r"Watchdog caught collective operation timeout",
            r"Timed out waiting \d+ms for",
            r"Timed out after \d+ (seconds )?waiting for",
        ),
        summary="a collective waited until its time limit: a rank is stuck, dead or never started",
        fix=_always("look for the first rank without output; check that every node started and reaches MASTER_ADDR"),
    ),
)

"""Findings about one node: what is not as it should be, against what is normal, and what to try next."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from stratadvisor.probe import verdicts_device
from stratadvisor.schema.profile import NodeProfile, Verdict
from stratadvisor.units import GIB, MIB, format_bytes

_SHARED_MEMORY_PER_DEVICE_BYTES = 1 * GIB
"""A few data-loader workers and the communication library's own buffers."""
_SMALL_MEMLOCK_BYTES = 64 * MIB
"""The usual default is 64 KiB to 8 MiB; RDMA pins buffers of hundreds of MiB."""
_CORES_PER_GPU = 2
"""One for the training process, one for a data-loader worker."""


def _verdict(level: str, node: NodeProfile, subject: str, message: str, advice: str = "") -> Verdict:
    return Verdict.model_validate(
        {"level": level, "subject": f"{node.hostname} {subject}", "message": message, "advice": advice}
    )


def shared_memory(node: NodeProfile) -> Iterator[Verdict]:
    """Yield a finding when /dev/shm is too small for data-loader workers and communication inside the node."""
    total = node.host_memory.shared_memory_total_bytes.value
    wanted = _SHARED_MEMORY_PER_DEVICE_BYTES * max(1, len(node.devices))
    if total is None or total >= wanted:
        return
    yield _verdict(
        "warning",
        node,
        "/dev/shm",  # noqa: S108 - the subject of a sentence, nothing is written there
        f"it holds {format_bytes(total)}; {format_bytes(wanted)} or more is normal for {max(1, len(node.devices))}"
        " devices: data-loader workers die with a bus error, or communication hangs",
        "start the container with --shm-size or --ipc=host, in Kubernetes mount a memory-backed volume there;"
        " otherwise use no data-loader workers",
    )


def processors(node: NodeProfile) -> Iterator[Verdict]:
    """Yield findings about a small share of the processors."""
    usable, logical = node.cpu.usable_cores.value, node.cpu.logical_cpus
    if usable is None:
        return
    gpus = sum(1 for d in node.devices if d.kind != "cpu" and d.healthy is not False)
    if gpus and usable < _CORES_PER_GPU * gpus:
        advice = "ask for more processors"
        if node.cpu.limited_by == "affinity" and "slurm" in node.cpu.usable_cores.detail:
            advice = "repeat --cpus-per-task on the srun line: srun does not take it over from sbatch"
        text = f"{usable:g} usable cores for {gpus} GPUs; {_CORES_PER_GPU} per GPU is the least that keeps them fed"
        yield _verdict("warning", node, "processors", f"{text} ({node.cpu.usable_cores.detail})", advice)
    elif logical is not None and node.cpu.limited_by and usable < logical:
        text = f"{usable:g} of {logical} processors may be used: {node.cpu.limited_by} sets that"
        yield _verdict("info", node, "processors", text)


def host_memory(node: NodeProfile) -> Iterator[Verdict]:
    """Yield a finding when a limit hides most of the host's memory from the process."""
    total, limit = node.host_memory.total_bytes.value, node.host_memory.limit_bytes.value
    if total is not None and limit is not None and limit < total:
        text = f"{format_bytes(limit)} of {format_bytes(total)} may be used: {node.host_memory.limited_by} sets that"
        yield _verdict("info", node, "host memory", text, "more is killed without a word; raise the limit for offload")


def subsystem(node: NodeProfile) -> Iterator[Verdict]:
    """Yield a finding under WSL2: memory that can be pinned, and memory at all, is less than the machine has."""
    kernel = node.software.versions.get("linux", "")
    if "microsoft" in kernel.lower():
        text = f"WSL2 (kernel {kernel}): pinned memory is capped below free memory, and what is seen is the VM's share"
        advice = "plans pin nothing here; for offload use native Linux, or raise memory= in .wslconfig"
        yield _verdict("warning", node, "host memory", text, advice)


def rdma(node: NodeProfile) -> Iterator[Verdict]:
    """Yield findings about RDMA that is there but cannot be used."""
    devices = [nic for nic in node.nics if nic.rdma_device and nic.kind != "virtual"]
    locked = [nic.rdma_device for nic in devices if nic.rdma_usable is False]
    if locked:
        yield _verdict(
            "warning",
            node,
            ", ".join(locked),
            "the RDMA device exists, but /dev/infiniband is not reachable: communication falls back to plain sockets",
            "pass /dev/infiniband into the container, with the verbs library and --ulimit memlock=-1",
        )
    memlock = node.host_memory.memlock_bytes.value
    if devices and memlock is not None and memlock < _SMALL_MEMLOCK_BYTES:
        text = f"{format_bytes(memlock)} may be locked in memory; RDMA needs it unlimited"
        yield _verdict("warning", node, "memlock", text, "ulimit -l unlimited, or --ulimit memlock=-1 for a container")
    for nic in devices:
        if nic.kind in ("infiniband", "roce") and nic.up is False:
            yield _verdict("info", node, nic.name, "the port is down", "check the cable and the subnet manager")


def links(node: NodeProfile) -> Iterator[Verdict]:
    """Yield findings about an uneven or crippled connection between GPUs."""
    fast = [link for link in node.links if link.kind in ("nvlink", "nvswitch")]
    if fast and len(fast) < len(node.links):
        pairs = ", ".join(f"{link.device_a}-{link.device_b}" for link in fast[:8])
        text = (
            f"only {len(fast)} of {len(node.links)} GPU pairs have NVLink ({pairs}): a ring over all runs at PCIe speed"
        )
        yield _verdict("info", node, "GPU links", text, "jobs of linked GPUs only, or tensor parallelism inside a pair")
    counts = {link.num_links for link in fast if link.num_links}
    if len(counts) > 1 and len(fast) == len(node.links) and all(link.kind == "nvswitch" for link in fast):
        text = f"pairs have {min(counts)} to {max(counts)} active NVLinks: some links are down"
        yield _verdict("warning", node, "GPU links", text, "nvidia-smi nvlink -s shows which")
    blocked = [link for link in node.links if link.peer_access is False and link not in fast]
    if blocked:
        pairs = f"{len(blocked)} of {len(node.links)} GPU pairs"
        text = f"{pairs} cannot reach each other's memory: copies go through the host"
        yield _verdict("info", node, "GPU links", text)


CHECKS: tuple[Callable[[NodeProfile], Iterator[Verdict]], ...] = (
    verdicts_device.health,
    verdicts_device.mixture,
    verdicts_device.memory_in_use,
    verdicts_device.pcie,
    verdicts_device.throttling,
    verdicts_device.power,
    verdicts_device.ecc,
    verdicts_device.kind_of_device,
    verdicts_device.peer_to_peer_driver,
    verdicts_device.torch_build,
    links,
    shared_memory,
    processors,
    host_memory,
    subsystem,
    rdma,
)


def host_verdicts(node: NodeProfile) -> tuple[Verdict, ...]:
    """Return every finding about a node, problems first."""
    order = {"problem": 0, "warning": 1, "info": 2}
    found = [verdict for check in CHECKS for verdict in check(node)]
    return tuple(sorted(found, key=lambda verdict: order[verdict.level]))

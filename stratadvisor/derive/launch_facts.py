"""Facts that decide environment variables of the launch: interfaces, backend, software, known driver defects."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stratadvisor.catalog.cuda_builds import lacking_kernels
from stratadvisor.derive.cluster import best_sweep
from stratadvisor.derive.context import Context, known, spec, unknown
from stratadvisor.derive.drivers import affected, peer_access_defect, version_of
from stratadvisor.schema.facts import Fact
from stratadvisor.schema.profile import ClusterProfile, NicProfile, NodeProfile

SPECS = (
    spec("launch.backend", "text", "", "nccl or gloo"),
    spec("launch.socket_interface", "text", "", "name of a network interface that every node has up, with an address"),
    spec("launch.socket_interfaces", "text", "", "best interface of each node, each name once: eno1,eth0"),
    spec("launch.interfaces_differ", "boolean", "", "whether no interface name is common to all nodes"),
    spec("launch.peer_access_defect", "boolean", "", "whether a driver announces peer access that does not work"),
    spec("launch.virtual_devices", "boolean", "", "whether a device is a vGPU slice"),
    spec("software.torch_lacks_device", "boolean", "", "whether a node's torch has no kernels for one of its GPUs"),
    spec(
        "software.torch_release", "number", "count", "PyTorch release as 1000 x major + minor (2.13: 2013); oldest node"
    ),
)
_NOT_BETWEEN_NODES = re.compile(r"(lo$|docker|br-|virbr|veth|cni|flannel|cali|kube|tun|tap|wg|tailscale)")


def derive(context: Context) -> Iterator[Fact]:
    """Yield the facts of ``SPECS``."""
    yield known("launch.backend", context.cluster.backend, "estimated")
    yield from _interfaces(context.profile)
    yield _peer_access(context.profile.nodes)
    flags = [d.virtual for node in context.profile.nodes for d in node.devices if d.kind != "cpu"]
    if True in flags or (flags and None not in flags):
        yield known("launch.virtual_devices", True in flags, "reported")
    else:
        yield unknown("launch.virtual_devices", "not read" if flags else "there is no GPU")
    yield _torch_lacks_device(context.profile.nodes)
    yield _torch_release(context.profile.nodes)


def usable_interfaces(node: NodeProfile) -> list[NicProfile]:
    """Return a node's interfaces that reach others: physical ones first, then the fastest, then by name."""
    found = [
        n for n in node.nics if n.up and n.kind != "loopback" and n.addresses and not _NOT_BETWEEN_NODES.match(n.name)
    ]
    return sorted(found, key=lambda n: (n.kind == "virtual", -(n.rate_bytes_per_second.value or 0.0), n.name))


def _interfaces(profile: ClusterProfile) -> Iterator[Fact]:
    interface, differ, listed = "launch.socket_interface", "launch.interfaces_differ", "launch.socket_interfaces"
    nodes = profile.nodes
    lists = [[n.name for n in usable_interfaces(node)] for node in nodes]
    sweep = best_sweep(profile, "inter_node")
    if sweep is not None and sweep.interface:  # what was measured comes before what a driver states
        lists = [sorted(names, key=lambda name: name != sweep.interface) for names in lists]
    lacking = [node.hostname for node, names in zip(nodes, lists, strict=True) if not names]
    if lacking or not lists:
        reason = f"no interface of {lacking[0] if lacking else 'any node'} with an address is known"
        yield unknown(interface, reason)
        yield unknown(listed, reason)
        yield unknown(differ, reason)
        return
    common = [name for name in lists[0] if all(name in names for names in lists)]
    if common:
        yield known(interface, common[0], "reported")
    else:
        pairs = ", ".join(sorted({names[0] for names in lists}))
        yield unknown(interface, f"the nodes name their interfaces differently: {pairs}")
    yield known(listed, ",".join(dict.fromkeys(names[0] for names in lists)), "reported")
    yield known(differ, not common, "reported")


def _peer_access(nodes: tuple[NodeProfile, ...]) -> Fact:
    name = "launch.peer_access_defect"
    found = [node for node in nodes if affected(node)]
    if not found:
        return known(name, False, "catalog", "no device of the affected kind")
    answers = {node.software.versions.get("driver", ""): peer_access_defect(node) for node in found}
    if True in answers.values():
        return known(name, True, "catalog", f"driver {next(d for d, broken in answers.items() if broken)}")
    if None in answers.values():
        return unknown(name, "the driver's version is not known")
    return known(name, False, "catalog", f"driver {min(answers)}")


def _torch_lacks_device(nodes: tuple[NodeProfile, ...]) -> Fact:
    name = "software.torch_lacks_device"
    looked = False
    for node in nodes:
        build = node.software.versions.get("cuda", "")
        for device in node.devices:
            reason = lacking_kernels(device.compute_capability, build) if device.kind == "cuda" else ""
            if reason:
                return known(name, True, "reported", f"{node.hostname}, {device.name}: {reason}")
            looked = looked or bool(build and device.kind == "cuda" and device.compute_capability)
    if looked or not any(d.kind == "cuda" for node in nodes for d in node.devices):
        return known(name, False, "reported")
    return unknown(name, "no build of torch for CUDA is known")


def _torch_release(nodes: tuple[NodeProfile, ...]) -> Fact:
    name = "software.torch_release"
    found = [version_of(node.software.versions.get("torch", "")) for node in nodes]
    if not found or any(len(v) < 2 for v in found):
        return unknown(name, "the installed PyTorch is not known")
    major, minor = min(found)[:2]
    return known(name, 1000 * major + minor, "reported")

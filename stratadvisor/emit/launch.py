"""What a launch script needs to know: nodes in the order of their ranks, devices on each, host names."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stratadvisor.emit.places import master_address, visible_devices
from stratadvisor.errors import EmitError
from stratadvisor.schema.plan import Plan
from stratadvisor.schema.profile import ClusterProfile

_HOST_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9])?")
_INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,31}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRange:
    """Consecutive node ranks of one group."""

    node_class: str
    first: int
    last: int
    devices_per_node: int
    hostnames: tuple[str, ...] = ()
    """Names of all its nodes; empty when the plan lacks one, or has one that is no host name or names two nodes."""

    @property
    def num_nodes(self) -> int:
        """Nodes of the group."""
        return self.last - self.first + 1

    @property
    def ranks(self) -> str:
        """The range in words."""
        return f"{self.first} to {self.last}" if self.last > self.first else str(self.first)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLine:
    """A line of a DeepSpeed hostfile."""

    name: str
    slots: int
    placeholder: bool
    """Whether the name is made up because the plan has none, or none that is a host name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Facts of launching, computed here so that templates only print."""

    num_nodes: int
    world_size: int
    ranges: tuple[NodeRange, ...]
    mixed: bool
    """Whether it matters which node takes which rank: groups differ in devices or in shares."""
    hostnames: tuple[str, ...]
    """All nodes in rank order; empty when the plan does not name every one, each once."""
    hostfile: tuple[HostLine, ...]
    environment: dict[str, str]
    """The plan's, sorted."""
    master_address: str = ""
    """Where the first node is reached; empty where the profile does not say it."""
    visible_devices: tuple[tuple[str, str], ...] = ()
    """(host name, CUDA_VISIBLE_DEVICES) of the nodes that do not use all their devices."""
    interfaces: tuple[str, ...] = ()
    """Names of the nodes' network interfaces where they differ: each node takes the one that it has."""


def launch_facts(plan: Plan, profile: ClusterProfile | None = None) -> Launch:
    """Return what the templates print about launching; ``profile`` adds addresses and identifiers of devices.

    Raises:
        EmitError: the plan sets a variable whose name no shell accepts.

    """
    for name in plan.environment:
        if _VARIABLE.fullmatch(name) is None:
            raise EmitError(
                f"the plan sets the environment variable {name[:60]!r}, which is not a name a shell accepts",
                hint="correct the rule that sets environment." + name[:60].split("=")[0],
            )
    ranges: list[NodeRange] = []
    lines: list[HostLine] = []
    names = [name for group in plan.groups for name in group.hostnames]
    for group in plan.groups:
        first = ranges[-1].last + 1 if ranges else 0
        named = len(group.hostnames) == group.num_nodes and all(
            _HOST_NAME.fullmatch(name) and names.count(name) == 1 for name in group.hostnames
        )
        ranges.append(
            NodeRange(
                node_class=group.node_class,
                first=first,
                last=first + group.num_nodes - 1,
                devices_per_node=group.devices_per_node,
                hostnames=group.hostnames if named else (),
            )
        )
        for index in range(group.num_nodes):
            name = group.hostnames[index] if len(group.hostnames) == group.num_nodes else ""
            usable = _HOST_NAME.fullmatch(name) is not None and names.count(name) == 1
            lines.append(
                HostLine(
                    name=name if usable else f"node-{first + index}.invalid",
                    slots=group.devices_per_node,
                    placeholder=not usable,
                )
            )
    num_nodes = ranges[-1].last + 1
    shares = {
        (g.devices_per_node, g.micro_batch_size, g.gradient_accumulation_steps, g.batch_per_device) for g in plan.groups
    }
    complete = all(len(g.hostnames) == g.num_nodes for g in plan.groups) and len(set(names)) == num_nodes
    return Launch(
        num_nodes=num_nodes,
        world_size=plan.parallelism.world_size,
        ranges=tuple(ranges),
        mixed=len(shares) > 1,
        hostnames=tuple(names) if complete and num_nodes > 1 else (),
        hostfile=tuple(lines),
        environment=dict(sorted(plan.environment.items())),
        master_address="" if profile is None or num_nodes == 1 else master_address(plan, profile),
        visible_devices=() if profile is None else visible_devices(plan, profile),
        interfaces=_interfaces(plan.environment.get("NCCL_SOCKET_IFNAME", "")),
    )


def _interfaces(names: str) -> tuple[str, ...]:
    """Return the names of a list; empty for one name, or where NCCL's signs for "all but" and "just this" are used."""
    found = tuple(names.split(","))
    return found if len(found) > 1 and all(_INTERFACE.fullmatch(name) for name in found) else ()

"""Clusters that nobody measured: the cluster file (TOML) and the one-line ``--gpus 2x8xA100-80GB`` form.

The file's keys are documented in docs/cluster-file.md; every quantity is a string with its unit.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from stratadvisor.catalog import devices as device_catalog
from stratadvisor.catalog import links as link_catalog
from stratadvisor.errors import ProfileError, StratadvisorError, UsageError
from stratadvisor.schema.base import Document, PositiveInt, Reading, unknown
from stratadvisor.schema.profile import (
    ClusterProfile,
    CpuProfile,
    DataFeedProfile,
    DeviceProfile,
    HostMemoryProfile,
    NodeProfile,
    StorageProfile,
)
from stratadvisor.store import first_problem, parse_toml, read_text
from stratadvisor.units import Dimension, parse_quantity

MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_NAME = 200
MAX_NODES = 1_000_000
MAX_DEVICES_PER_NODE = 1024
_GROUP = re.compile(r"^(?:(?P<nodes>[0-9]{1,7})\s*[xX*]\s*)?(?P<count>[0-9]{1,5})\s*[xX*]\s*(?P<type>\S.*)$")


class _Strict(Document):
    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True, allow_inf_nan=False)


class DeclaredDevice(_Strict):
    """What a user may say about a device that the catalog does not know, or knows wrongly."""

    name: str = Field(default="", max_length=200)
    memory: str | None = None
    memory_free: str | None = None
    memory_bandwidth: str | None = None
    host_link: str | None = None
    power_watts: float | None = Field(default=None, gt=0)
    fp32: str | None = None
    tf32: str | None = None
    bf16: str | None = None
    fp16: str | None = None
    fp8: str | None = None


class DeclaredNode(_Strict):
    """One ``[[node]]`` table."""

    count: PositiveInt = Field(default=1, le=MAX_NODES)
    gpus: str = Field(max_length=200)
    hostnames: tuple[str, ...] = ()
    intra_node: str | None = None
    network: str | None = None
    cpu_cores: float | None = Field(default=None, gt=0)
    host_memory: str | None = None
    shared_memory: str | None = None
    storage_read: str | None = None
    speed_variation: float | None = Field(default=None, ge=0, le=10)
    data_item: str | None = None
    device: DeclaredDevice = Field(default_factory=DeclaredDevice)

    @field_validator("hostnames")
    @classmethod
    def _plain_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._:-]{0,252})", name):
                raise ValueError(f"{name!r} is not a host name")
        return names


class DeclaredCluster(_Strict):
    """The whole file."""

    name: str = Field(default="", max_length=MAX_NAME)
    inter_node: str | None = None
    node: tuple[DeclaredNode, ...] = Field(min_length=1)


def read_cluster_file(path: Path) -> ClusterProfile:
    """Return the profile that a TOML cluster file declares.

    Raises:
        ProfileError: not TOML, unknown keys, quantities without units, devices nobody knows.

    """
    text = read_text(path, ProfileError, MAX_FILE_BYTES)
    data = parse_toml(text, path, ProfileError)
    try:
        declared = DeclaredCluster.model_validate(data)
    except ValidationError as problem:
        raise ProfileError(f"{path}: {_problem(problem)}", hint="docs/cluster-file.md lists the keys") from None
    try:
        return _profile(declared, str(path), ProfileError)
    except ValidationError as problem:
        raise ProfileError(f"{path}: {first_problem(problem)}") from None


def _problem(error: ValidationError) -> str:
    """Return the first problem; a key that does not exist goes before one that is missing, with its nearest name."""
    for problem in error.errors(include_url=False, include_input=False):
        if problem["type"] != "extra_forbidden":
            continue
        *above, key = (str(part)[:80] for part in problem["loc"])
        table: type[BaseModel] = DeclaredCluster
        if above:
            table = DeclaredDevice if above[-1] == "device" else DeclaredNode
        near = difflib.get_close_matches(key, table.model_fields, n=1, cutoff=0.5)
        place = f" in node {int(above[1]) + 1}" if len(above) > 1 and above[1].isdigit() else ""
        meant = f"; did you mean {near[0]!r}?" if near else f"; known here: {', '.join(table.model_fields)}"
        return f"there is no key {key!r}{place}{meant}"
    return first_problem(error)


def parse_gpus(gpus: str, *, inter_node: str | None = None, intra_node: str | None = None) -> ClusterProfile:
    """Return the profile of the one-line form: ``[NODESx]COUNTxTYPE``, comma-separated for mixed clusters.

    Raises:
        UsageError: a part that cannot be read, an unknown type, a rate without a unit.

    """
    if len(gpus) > 4000:
        raise UsageError("--gpus is longer than 4000 characters; write a cluster file instead")
    try:
        return _one_line(gpus, inter_node, intra_node)
    except ValidationError as problem:
        raise UsageError(f"--gpus: {first_problem(problem)}") from None


def _one_line(gpus: str, inter_node: str | None, intra_node: str | None) -> ClusterProfile:
    nodes = []
    for part in gpus.split(","):
        match = _GROUP.match(part.strip())
        if match is None:
            raise UsageError(
                f"--gpus: {part.strip()[:80]!r} is not [NODESx]COUNTxTYPE", hint="write for example 2x8xA100-80GB"
            )
        count = int(match["nodes"] or 1)
        if not 1 <= count <= MAX_NODES:
            raise UsageError(f"--gpus: {part.strip()[:80]!r} asks for {count} nodes; give 1 to {MAX_NODES}")
        nodes.append(DeclaredNode(count=count, gpus=f"{match['count']}x{match['type'].strip()}", intra_node=intra_node))
    declared = DeclaredCluster(name=gpus.strip()[:MAX_NAME], inter_node=inter_node, node=tuple(nodes))
    return _profile(declared, "--gpus", UsageError)


def _profile(declared: DeclaredCluster, where: str, error: type[StratadvisorError]) -> ClusterProfile:
    total = sum(n.count for n in declared.node)
    if declared.inter_node is None and total > 1 and any(n.network is None for n in declared.node):
        network = unknown("not declared")
    else:
        network = _rate(declared.inter_node, f"{where}: inter_node", error)
    nodes = []
    for position, node in enumerate(declared.node):
        nodes += _nodes(node, position, network, f"{where}: node {position + 1}", error)
    return ClusterProfile(name=declared.name, source="declared", nodes=tuple(nodes))


def _nodes(
    node: DeclaredNode, position: int, network: Reading, where: str, error: type[StratadvisorError]
) -> list[NodeProfile]:
    match = re.fullmatch(r"([0-9]{1,5})\s*[xX*]\s*(\S.*)", node.gpus.strip())
    if match is None:
        raise error(f"{where}: gpus {node.gpus[:80]!r} is not COUNTxTYPE", hint='write for example "8xA100-80GB"')
    count, kind = int(match[1]), match[2].strip()
    if not 1 <= count <= MAX_DEVICES_PER_NODE:
        raise error(f"{where}: {count} devices in a node; give 1 to {MAX_DEVICES_PER_NODE}")
    if node.hostnames and len(node.hostnames) != node.count:
        raise error(f"{where}: {len(node.hostnames)} hostnames for count = {node.count}")
    devices = tuple(_device(kind, node.device, index, where, error) for index in range(count))
    if node.network is not None:
        network = _rate(node.network, f"{where}: network", error)
    memory = _quantity(node.host_memory, "bytes", f"{where}: host_memory", error)
    common: dict[str, Any] = {
        "devices": devices,
        "cpu": CpuProfile(usable_cores=_declared(node.cpu_cores)),
        "host_memory": HostMemoryProfile(
            total_bytes=memory,
            available_bytes=memory,
            shared_memory_free_bytes=_quantity(node.shared_memory, "bytes", f"{where}: shared_memory", error),
        ),
        "intra_node_bytes_per_second": _rate(node.intra_node, f"{where}: intra_node", error),
        "network_bytes_per_second": network,
        "speed_variation": _declared(node.speed_variation),
        "data_feed": DataFeedProfile(item_seconds=_quantity(node.data_item, "seconds", f"{where}: data_item", error)),
    }
    if node.storage_read is not None:
        read = _quantity(node.storage_read, "bytes_per_second", f"{where}: storage_read", error)
        common["storage"] = (StorageProfile(path="data", read_bytes_per_second=read),)
    if node.hostnames:
        return [NodeProfile(hostname=name, **common) for name in node.hostnames]
    return [NodeProfile(hostname=f"group{position + 1}", count=node.count, **common)]


def _device(
    kind: str, declared: DeclaredDevice, index: int, where: str, error: type[StratadvisorError]
) -> DeviceProfile:
    spec = device_catalog.lookup(kind)
    memory = _quantity(declared.memory, "bytes", f"{where}: device.memory", error)
    if spec is None and not memory.known:
        near = device_catalog.suggestions(kind) or tuple(
            difflib.get_close_matches(kind, device_catalog.names(), n=3, cutoff=0.4)
        )
        more = f"nearest known: {', '.join(near)}; " if near else ""
        raise error(
            f"{where}: no device {kind[:80]!r} in the catalog",
            hint=f"{more}or describe it in a cluster file with [node.device] memory and rates",
        )
    if spec is not None and not memory.known:
        memory = Reading(value=spec.memory_bytes, origin="catalog", detail=spec.source)
    rates = {
        precision: _quantity(text, "flops_per_second", f"{where}: device.{precision}", error)
        for precision in ("fp32", "tf32", "bf16", "fp16", "fp8")
        if (text := getattr(declared, precision)) is not None
    }
    return DeviceProfile(
        index=index,
        kind="cpu" if kind.lower() == "cpu" else ("rocm" if spec and spec.architecture.startswith("cdna") else "cuda"),
        name=declared.name or kind,
        catalog_key=spec.key if spec else None,
        compute_capability=spec.compute_capability if spec else None,
        memory_total_bytes=memory,
        memory_free_bytes=_quantity(declared.memory_free, "bytes", f"{where}: device.memory_free", error),
        power_limit_watts=_declared(declared.power_watts),
        matmul_flops_per_second=rates,
        memory_bandwidth_bytes_per_second=_quantity(
            declared.memory_bandwidth, "bytes_per_second", f"{where}: device.memory_bandwidth", error
        ),
        host_to_device_bytes_per_second=_quantity(
            declared.host_link, "bytes_per_second", f"{where}: device.host_link", error
        ),
    )


def _declared(value: float | None) -> Reading:
    return unknown("not declared") if value is None else Reading(value=value, origin="declared")


def _quantity(text: str | None, dimension: Dimension, where: str, error: type[StratadvisorError]) -> Reading:
    if text is None:
        return unknown("not declared")
    try:
        value = parse_quantity(text, dimension)
    except ValueError as problem:
        raise error(f"{where}: {problem}") from None
    if value <= 0:
        raise error(f"{where}: {text!r} is not a positive quantity")
    return Reading(value=value, origin="declared", detail=text)


def _rate(text: str | None, where: str, error: type[StratadvisorError]) -> Reading:
    """Return a rate from a quantity or a link name (NDR, 100GbE, NVLink4)."""
    if text is None:
        return unknown("not declared")
    link = link_catalog.lookup(text)
    if link is not None:
        return Reading(value=link.rate_bytes_per_second, origin="catalog", detail=f"{text}: {link.source}")
    try:
        return _quantity(text, "bytes_per_second", where, error)
    except StratadvisorError as problem:
        names = ", ".join(link_catalog.names())
        raise error(problem.message, hint=f"or name a link: {names}") from None

"""The declared cluster: hosts, their links and their processors. Written in Python or read from TOML."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.errors import SpecError
from stratadvisor.units import Dimension, parse_quantity

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
SWITCH = "sw"
"""The namespace of the bridge; no host may be called so."""
MAX_HOSTS = 250
"""All addresses are in one /24."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One host."""

    name: str
    ranks: int = 1
    """Processes that ``Cluster.ranks`` and ``Cluster.torchrun`` start here."""
    cpu: float | None = None
    """Processor time it may use, in processors: 0.5 is half of one. None: no limit."""
    cores: tuple[int, ...] | None = None
    """Processors its processes may run on (affinity), by the kernel's numbers. None: all."""
    send_bytes_per_second: float | None = None
    """What the link carries away from the host. None: unshaped, the speed of memory."""
    receive_bytes_per_second: float | None = None
    """What the link carries towards the host."""
    latency_seconds: float = 0.0
    """One way between the host and the switch: between two hosts their latencies add up."""
    loss: float = 0.0
    """Share of frames that get lost, in each direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A slow way between two hosts whose links are otherwise in order, in both directions."""

    hosts: tuple[str, str]
    bytes_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A cluster; the order of the hosts gives addresses and node ranks."""

    hosts: tuple[Host, ...]
    pairs: tuple[Pair, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot be laid out."""
        names = [host.name for host in self.hosts]
        if not 1 <= len(names) <= MAX_HOSTS:
            raise SpecError(f"a cluster has 1 to {MAX_HOSTS} hosts, not {len(names)}")
        for host in self.hosts:
            _check(host)
        for name in names:
            if names.count(name) > 1:
                raise SpecError(f"two hosts are called {name}")
        for pair in self.pairs:
            if len(set(pair.hosts)) != 2 or not set(pair.hosts) <= set(names):
                raise SpecError(f"the pair {' - '.join(pair.hosts)} does not name two hosts of this cluster")
            if not pair.bytes_per_second > 0:
                raise SpecError(f"the pair {' - '.join(pair.hosts)} needs a rate above zero")

    @property
    def world_size(self) -> int:
        """Processes on all hosts."""
        return sum(host.ranks for host in self.hosts)


def _check(host: Host) -> None:
    if not _NAME.fullmatch(host.name) or host.name == SWITCH:
        raise SpecError(f"{host.name!r} is no name for a host: lower-case letters, digits and dashes, and not 'sw'")
    rates = (host.send_bytes_per_second, host.receive_bytes_per_second)
    for what, fine in (
        ("ranks must be at least 1", host.ranks >= 1),
        ("cpu must be at least 0.01 processors", host.cpu is None or host.cpu >= 0.01),
        ("cores must name at least one processor", host.cores is None or bool(host.cores)),
        ("a rate must be above zero", all(rate is None or rate > 0 for rate in rates)),
        ("latency must be 0 to 10 s", 0 <= host.latency_seconds <= 10),
        ("loss must be 0 or more and below 1", 0 <= host.loss < 1),
    ):
        if not fine:
            raise SpecError(f"host {host.name}: {what}")


_KEYS = {"name", "ranks", "cpu", "cores", "rate", "send", "receive", "latency", "loss"}


def _quantity(value: Any, dimension: Dimension, where: str) -> float:
    if not isinstance(value, str):
        raise SpecError(f"{where} must be a text with a unit, not {value!r}")
    try:
        return parse_quantity(value, dimension)
    except ValueError as problem:
        raise SpecError(f"{where}: {problem}") from None


def host(name: str, settings: Mapping[str, Any]) -> Host:
    """Return a host from the keys of a TOML table: rate, send, receive ("100Mb/s"), latency ("5ms"), cpu, ...

    Raises:
        SpecError: an unknown key or a value that cannot be read.

    """
    unknown = sorted(set(settings) - _KEYS)
    if unknown:
        raise SpecError(f"host {name}: there is no key {unknown[0]!r}; there are {', '.join(sorted(_KEYS))}")

    def rate(key: str) -> float | None:
        value = settings.get(key, settings.get("rate"))
        return None if value is None else _quantity(value, "bytes_per_second", f"host {name}: {key}")

    cpu, loss, ranks = settings.get("cpu"), settings.get("loss", 0.0), settings.get("ranks", 1)
    for key, value in (("cpu", cpu), ("loss", loss), ("ranks", ranks)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise SpecError(f"host {name}: {key} must be a number, not {value!r}")
    latency = settings.get("latency")
    cores = settings.get("cores")
    if cores is not None and (not isinstance(cores, list) or not all(type(c) is int for c in cores)):
        raise SpecError(f"host {name}: cores must be a list of processor numbers, not {cores!r}")
    return Host(
        name=name,
        ranks=int(ranks),
        cpu=None if cpu is None else float(cpu),
        cores=None if cores is None else tuple(cores),
        send_bytes_per_second=rate("send"),
        receive_bytes_per_second=rate("receive"),
        latency_seconds=0.0 if latency is None else _quantity(latency, "seconds", f"host {name}: latency"),
        loss=float(loss),
    )


def uniform(num_hosts: int, **settings: Any) -> Spec:
    """Return a cluster of equal hosts h1, h2, ...; ``settings`` as in the TOML file, e.g. ``rate="100Mb/s"``."""
    return Spec(hosts=tuple(host(f"h{index + 1}", settings) for index in range(num_hosts)))


def read_spec(path: Path) -> Spec:
    """Read a TOML file: ``[defaults]``, ``[[host]]`` tables, ``[[pair]]`` tables (hosts, rate).

    Raises:
        SpecError: the file cannot be read or describes no cluster.

    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise SpecError(f"{path} cannot be read: {problem}") from None
    unknown = sorted(set(document) - {"defaults", "host", "pair"})
    if unknown:
        raise SpecError(f"{path}: there is no table {unknown[0]!r}; there are [defaults], [[host]] and [[pair]]")
    defaults, tables, pairs = document.get("defaults", {}), document.get("host", []), document.get("pair", [])
    if not isinstance(defaults, dict) or not _tables(tables) or not _tables(pairs):
        raise SpecError(f"{path}: write [defaults] once and [[host]] and [[pair]] as lists of tables")
    hosts = []
    for index, table in enumerate(tables):
        name = table.get("name", f"h{index + 1}")
        hosts.append(host(str(name), {**defaults, **table}))
    return Spec(hosts=tuple(hosts), pairs=tuple(_pair(path, table) for table in pairs))


def _tables(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(table, dict) for table in value)


def _pair(path: Path, table: Mapping[str, Any]) -> Pair:
    names = table.get("hosts")
    if set(table) != {"hosts", "rate"} or not isinstance(names, list) or len(names) != 2:
        raise SpecError(f'{path}: a [[pair]] has exactly hosts = ["h1", "h2"] and rate = "100Mb/s"')
    rate = _quantity(table["rate"], "bytes_per_second", f"{path}: the rate of a pair")
    return Pair(hosts=(str(names[0]), str(names[1])), bytes_per_second=rate)

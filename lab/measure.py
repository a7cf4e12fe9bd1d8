"""Measure a cluster that stands, with sockets and a busy loop: does it give what was declared?"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.cluster import Cluster
from lab.errors import LabError

_METER = (sys.executable, "-I", "-S", str(Path(__file__).with_name("meter.py")))
_LIMIT_SECONDS = 120.0


def _start(cluster: Cluster, host: str, *words: str) -> Any:
    return cluster.popen(host, [*_METER, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _finish(process: Any, what: str) -> list[float]:
    try:
        output, errors = process.communicate(timeout=_LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise LabError(f"{what} took longer than {_LIMIT_SECONDS:g} s") from None
    if process.returncode:
        raise LabError(f"{what} failed: {errors.strip()[-500:]}")
    return [float(line) for line in output.split()]


def bytes_per_second(cluster: Cluster, source: str, sink: str, num_bytes: float) -> float:
    """Return what one TCP connection carries from ``source`` to ``sink``, while ``num_bytes`` are sent."""
    receiver = _start(cluster, sink, "receive", cluster.addresses[sink])
    port = receiver.stdout.readline().strip()
    sender = _start(cluster, source, "send", cluster.addresses[sink], port, str(num_bytes))
    rate = _finish(receiver, f"receiving at {sink}")[0]
    _finish(sender, f"sending from {source}")
    return rate


def round_trip_seconds(cluster: Cluster, source: str, sink: str, count: int = 20) -> float:
    """Return the least time of a byte there and back over TCP: a busy machine only ever adds to it."""
    echo = _start(cluster, sink, "answer", cluster.addresses[sink])
    port = echo.stdout.readline().strip()
    times = _finish(_start(cluster, source, "ping", cluster.addresses[sink], port, str(count)), f"ping from {source}")
    _finish(echo, f"echo at {sink}")
    return min(times)


def processor_shares(cluster: Cluster, hosts: Sequence[str], processor_seconds: float) -> list[float]:
    """Return the processor time over wall time that a busy process gets on each host, all at the same time."""
    started = [_start(cluster, host, "burn", str(processor_seconds)) for host in hosts]
    return [_finish(process, f"computing on {host}")[0] for host, process in zip(hosts, started, strict=True)]

"""A network lab: a declared cluster of hosts with real slow links and real slow processors, on one Linux machine.

Every host is a network namespace behind a bridge, its link shaped by tbf, its latency and loss made by a relay between
two TAP devices, its processor time cut by a control-group quota. It needs root. See ``docs/lab.md``.

    spec = lab.uniform(2, rate="100Mb/s", latency="5ms")
    with lab.cluster(spec) as c:
        print(c.run("h1", ["ip", "-brief", "address"]).stdout)
"""

from __future__ import annotations

from lab.cluster import Cluster, cluster
from lab.errors import LabError, LabUnavailableError, SpecError
from lab.place import Place
from lab.requirements import unavailable
from lab.spec import Host, Pair, Spec, read_spec, uniform
from lab.sweep import leavings, sweep

__all__ = [
    "Cluster",
    "Host",
    "LabError",
    "LabUnavailableError",
    "Pair",
    "Place",
    "Spec",
    "SpecError",
    "cluster",
    "leavings",
    "read_spec",
    "sweep",
    "unavailable",
    "uniform",
]

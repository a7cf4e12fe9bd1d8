"""Whether a cluster can be laid out here, and if not, why."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from lab.cpu_group import controller
from lab.errors import LabError
from lab.naming import new_name
from lab.shell import call
from lab.spec import Spec

_TOOLS = ("ip", "tc", "unshare", "hostname", "taskset")


def unavailable(spec: Spec | None = None) -> str | None:
    """Return why clusters (or this one) cannot be laid out here, as one sentence; None when they can."""
    if not sys.platform.startswith("linux"):
        return f"the network lab needs Linux's network namespaces, this is {sys.platform}"
    if os.geteuid() != 0:
        return "the network lab needs root: it makes network namespaces and control groups"
    for tool in _TOOLS:
        if shutil.which(tool) is None:
            return f"the network lab needs the command {tool} (Debian: iproute2, util-linux, hostname)"
    hosts = spec.hosts if spec is not None else ()
    if any(host.latency_seconds or host.loss for host in hosts) and not Path("/dev/net/tun").exists():
        return "latency and loss need TAP devices, and there is no /dev/net/tun"
    if any(host.cpu is not None for host in hosts) and controller() is None:
        return "a share of the processor needs the control groups' cpu controller, which is not mounted"
    trial = f"{new_name()}.trial"
    try:
        call("ip", "netns", "add", trial)
        try:
            call("ip", "-n", trial, "link", "set", "lo", "up")
        finally:
            call("ip", "netns", "delete", trial)
    except LabError as problem:
        return f"network namespaces are not allowed here: {problem}"
    return None

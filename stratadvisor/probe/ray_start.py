"""Probe the nodes of a running Ray cluster: one task on each, which starts the usual probe there.

The driver may run on any machine of the cluster, by hand or as ``ray job submit -- stratadvisor probe --ray auto``. A
task claims all accelerators of its node, since Ray hides those that a task does not claim; while a training job holds
them, the probe waits.
"""

from __future__ import annotations

import json
import logging
import os
import random
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stratadvisor.errors import ProbeError
from stratadvisor.probe.looker import Progress, selection
from stratadvisor.probe.nodes.fleet import STARTING_SECONDS
from stratadvisor.schema.profile import ClusterProfile

_FIRST_PORT, _LAST_PORT = 20000, 32000
"""Below the ports that Linux gives to connections."""
_LAUNCHER_PREFIXES = ("SLURM_", "OMPI_", "PMI_", "PET_", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "NODE_RANK")
_OWN_SECONDS = 300.0
"""Beside the measurements: starts, rounds, and one node that is given up."""


_REACH_SECONDS = 10.0


def free_port() -> int:
    """Return a port that nobody uses on this node at this moment."""
    for _ in range(100):
        port = random.randrange(_FIRST_PORT, _LAST_PORT)  # noqa: S311 - nothing secret
        with socket.socket() as trial:
            try:
                trial.bind(("", port))
            except OSError:
                continue
            return port
    raise OSError("no free port in a hundred attempts")


def probe_here(arguments: list[str], variables: Mapping[str, str], limit_seconds: float) -> tuple[int, str, str]:
    """Run the probe of this node in a process of its own; return (code, profile or empty, last words)."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(_LAUNCHER_PREFIXES)} | dict(variables)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "cluster.json"
        words = [sys.executable, "-m", "stratadvisor", "probe", "--output", str(output), *arguments]
        try:
            done = subprocess.run(
                words,
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=limit_seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return 1, "", f"no end within {limit_seconds:g} s"
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        text = output.read_text(encoding="utf-8") if output.is_file() else ""
        return done.returncode, text, lines[-1][:300] if lines else ""


def _reachable(address: str) -> None:
    """Refuse an address where nobody listens: Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_SECONDS).close()
    except (OSError, OverflowError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise ProbeError(f"no Ray cluster at {address}: {reason}", hint="start it first: ray start --head") from None


def probe_ray(
    address: str,
    *,
    only: tuple[str, ...] = (),
    skip: tuple[str, ...] = (),
    quick: bool = False,
    time_limit_seconds: float = 60.0,
    progress: Progress | None = None,
) -> ClusterProfile:
    """Return the profile of all living nodes of the Ray cluster at ``address`` (``auto``: the one this machine is in).

    Raises:
        ProbeError: Ray is not installed or not running, or no node came to a result.

    """
    selection(only, skip)
    try:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
    except ImportError:
        raise ProbeError("Ray is not installed here", hint="run this where ray is, or use --hosts or srun") from None
    _reachable(address)
    mine = not ray.is_initialized()
    try:
        if mine:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as problem:
        text = str(problem).splitlines()[0][:200]
        raise ProbeError(f"no Ray cluster at {address}: {text}", hint="start it first: ray start --head") from None
    try:
        nodes = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        if progress is not None:
            progress(f"{len(nodes)} nodes of the Ray cluster", None)

        def task(function: Any, node: Mapping[str, Any], **resources: float) -> Any:
            affinity = NodeAffinitySchedulingStrategy(node_id=node["NodeID"], soft=False)
            return ray.remote(function).options(scheduling_strategy=affinity, max_retries=0, **resources)

        port = ray.get(task(free_port, nodes[0], num_cpus=0).remote())
        arguments = ["--time-limit", f"{time_limit_seconds:g}", *(["--quick"] if quick else [])]
        arguments += [word for name in only for word in ("--only", name)]
        arguments += [word for name in skip for word in ("--skip", name)]
        limit = time_limit_seconds + STARTING_SECONDS + _OWN_SECONDS
        waiting = []
        for rank, node in enumerate(nodes):
            variables = {
                "NNODES": str(len(nodes)),
                "NODE_RANK": str(rank),
                "MASTER_ADDR": str(nodes[0]["NodeManagerAddress"]),
                "MASTER_PORT": str(port),
            }
            gpus = float(node["Resources"].get("GPU", 0.0))
            waiting.append(task(probe_here, node, num_cpus=0, num_gpus=gpus).remote(arguments, variables, limit))
        code, text, said = ray.get(waiting[0])
        ray.wait(waiting, num_returns=len(waiting), timeout=STARTING_SECONDS)
    except ray.exceptions.RayError as problem:
        raise ProbeError(f"the first node's task was lost: {str(problem).splitlines()[0][:200]}") from None
    finally:
        if mine:
            ray.shutdown()
    if not text:
        raise ProbeError(f"the probe of the first node ended with code {code}: {said or 'it said nothing'}")
    return ClusterProfile.model_validate(json.loads(text))

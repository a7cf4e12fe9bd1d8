"""Rounds, messages, bytes and time of a probe of many nodes on a simulated network, and what merging it costs.

    python benchmarks/round_plan.py [--nodes 8 64 512 4096 10000]

Each size has one dead node, one stopped node, one slow interface, one slow pair of neighbours and one group of
neighbours with a slow way out; the table says whether they were found. The planner, the conductor, the messages, the
diagnosis, the merge and the planning are the real ones. The wire and the clock are simulated, except in the columns
after the faults: processor seconds of this machine. Grouping makes classes of the nodes; recommend is
the whole process that reads the written profile, plans with it and writes a bundle.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from stratadvisor import store
from stratadvisor.derive.cluster import planning_view
from stratadvisor.probe.nodes.conductor import Conductor, Found, Limits
from stratadvisor.probe.nodes.diagnosis import diagnose
from stratadvisor.probe.nodes.rounds import plan_rounds, split
from stratadvisor.probe.nodes.simulated import Faults, SimulatedNetwork
from stratadvisor.probe.nodes.together import cluster_profile
from stratadvisor.schema.base import measured, reported
from stratadvisor.schema.profile import (
    ClusterProfile,
    CpuProfile,
    DeviceProfile,
    NicProfile,
    NodeProfile,
    SoftwareProfile,
)

SIZES = (8, 64, 512, 4096, 10_000)
LIMITS = Limits(arrive=60, gather=90)
OWN_PROBE_SECONDS = 40.0


def document() -> str:
    """Return the profile of a node with eight GPUs, to be given a host name."""
    devices = tuple(
        DeviceProfile(
            index=index,
            kind="cuda",
            name="NVIDIA H100 80GB HBM3",
            catalog_key="H100-SXM-80GB",
            memory_total_bytes=reported(85e9, "NVML"),
            memory_free_bytes=reported(84e9, "NVML"),
            matmul_flops_per_second={"bf16": measured(700e12, "fastest product of 16384x16384 matrices, 8 at once")},
            memory_bandwidth_bytes_per_second=measured(2.9e12, "best of 10 triads"),
            host_to_device_bytes_per_second=measured(50e9, "fastest copy from pinned memory"),
        )
        for index in range(8)
    )
    nics = (NicProfile(name="eth0", kind="ethernet", rate_bytes_per_second=reported(12.5e9, "the driver"), up=True),)
    node = NodeProfile(
        hostname="HOSTNAME",
        devices=devices,
        nics=nics,
        cpu=CpuProfile(usable_cores=reported(96, "affinity")),
        software=SoftwareProfile(versions={"torch": "2.13.0", "nccl": "2.29.3", "python": "3.11.7"}),
        network_bytes_per_second=reported(12.5e9, "line rate of eth0 as sysfs states it"),
        speed_variation=measured(0.01, "25 pieces of 0.1 s"),
    )
    return ClusterProfile(name="HOSTNAME", nodes=(node,)).model_dump_json()


def faults(count: int) -> Faults:
    """Return one fault of each kind, at nodes that differ."""
    groups = split(range(count))
    begin = OWN_PROBE_SECONDS + 3.5
    if len(groups) < 4:
        return Faults(dead_at={1: begin}, frozen_at={2: begin}, slow_senders={3: 0.1}, slow_links={(4, 5): 0.2})
    pair = groups[-1][0], groups[-1][-1]
    return Faults(
        dead_at={1: begin},
        frozen_at={groups[1][2]: begin},
        slow_senders={groups[2][0]: 0.1},
        slow_links={pair: 0.2, pair[::-1]: 0.2},
        slow_ways_out={len(groups) // 2: 0.3},
    )


def found_all(found: Found, wanted: Faults, count: int) -> str:
    """Return which injected faults were named, and what was named wrongly."""
    diagnosis = diagnose(found.links, found.planned)
    lost = set(found.lost) == set(wanted.dead_at) | set(wanted.frozen_at)
    nodes = {node.rank for node in diagnosis.nodes} == set(wanted.slow_senders)
    links = {frozenset((link.a, link.b)) for link in diagnosis.links} == {frozenset(way) for way in wanted.slow_links}
    groups = split(range(count))
    ways = {way.ranks for way in diagnosis.ways_out} == {groups[g] for g in wanted.slow_ways_out}
    names = {"nodes": lost, "interface": nodes, "link": links, "way out": ways}
    wrong = [name for name, right in names.items() if not right]
    return "all, nothing else" if not wrong else f"wrong: {', '.join(wrong)}"


def recommended(profile: ClusterProfile) -> str:
    """Return the size of the profile's file, and the processor time of a whole ``recommend`` with it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cluster.json"
        store.write_document(file, profile)
        options = ["--model-size", "7B", "--cluster", str(file), "-o", str(Path(folder) / "bundle")]
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        before = os.times()
        command = [sys.executable, "-m", "stratadvisor", "recommend", *options]
        subprocess.run(command, check=True, capture_output=True, env=environment)
        after = os.times()
        seconds = after.children_user + after.children_system - before.children_user - before.children_system
        return f"{file.stat().st_size / 1e6:.2f} | {seconds:.1f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=SIZES)
    text = document()
    print(
        "| nodes | planned rounds | rounds played | pairs | messages | control MB | measured TB | virtual s |"
        " faults found | conduct s | merge s | grouping s | file MB | recommend s |"
    )
    print("| ---: " * 8 + "| --- " + "| ---: " * 5 + "|")
    for count in parser.parse_args().nodes:
        wanted = faults(count)
        network = SimulatedNetwork(count, document=text, faults=wanted, own_probe_seconds=OWN_PROBE_SECONDS)
        begin = time.process_time()
        found = Conductor(network, count, LIMITS).run()
        conducted = time.process_time()
        profile = cluster_profile(found)
        merged = time.process_time()
        planning_view(profile)
        planned = time.process_time()
        print(
            f"| {count} | {len(plan_rounds(range(count)))} | {found.num_rounds} | {found.num_planned_pairs}"
            f" | {network.messages} | {network.control_bytes / 1e6:.1f} | {network.transferred_bytes / 1e12:.2f}"
            f" | {network.now():.0f} | {found_all(found, wanted, count)}"
            f" | {conducted - begin:.1f} | {merged - conducted:.2f} | {planned - merged:.2f} | {recommended(profile)} |"
        )


if __name__ == "__main__":
    main()

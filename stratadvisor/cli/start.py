"""``recommend --from FILE``: a configuration that exists as the starting point, and what the plan changes in it."""

from __future__ import annotations

from pathlib import Path

from stratadvisor.lint.start import Start, starting_point
from stratadvisor.pipeline import Recommendation
from stratadvisor.schema.profile import ClusterProfile


def begin(file: Path, profile: ClusterProfile) -> Start:
    """Return what a configuration sets on the devices of a profile."""
    from stratadvisor.derive.cluster import planning_cluster

    return starting_point(file, num_devices=max(1, planning_cluster(profile).num_devices))


def show_changes(start: Start, result: Recommendation) -> None:
    """Print the file's settings beside the plan's, and the keys of a DeepSpeed file that change."""
    from stratadvisor.report.start import show_start

    emitted = None
    if result.plan.target == "deepspeed":
        from stratadvisor.emit.bundle import render_bundle

        files = {f.path: f.content for f in render_bundle(result.plan, result.profile)}
        emitted = files.get("ds_config.json")
    show_start(start, result.plan, emitted)

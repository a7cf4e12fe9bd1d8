"""What ``recommend`` does for somebody who named no cluster."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from stratadvisor.units import format_seconds

if TYPE_CHECKING:
    from stratadvisor.schema.profile import ClusterProfile

DEFAULT_PROFILE = Path("cluster.json")
"""Where ``probe`` writes."""


def cluster_at_hand() -> tuple[ClusterProfile, Path | None]:
    """Return the profile that probe left in this folder, with its path, or measure this machine."""
    from stratadvisor import pipeline, store
    from stratadvisor.cli.console import note, progress_line

    if DEFAULT_PROFILE.is_file():
        profile = store.read_profile(DEFAULT_PROFILE)
        whose = ", ".join(n.hostname for n in profile.nodes[:3]) + (" ..." if len(profile.nodes) > 3 else "")
        note(f"using {DEFAULT_PROFILE} of this folder ({whose}{_age(profile.captured_at)});")
        note("  --cluster names another file, stratadvisor probe measures again")
        return profile, DEFAULT_PROFILE
    note("no --cluster, no --gpus, no cluster.json here: measuring this machine (under a minute)")
    return pipeline.probe_node(progress=progress_line()), None


def _age(captured_at: str) -> str:
    try:
        then = datetime.fromisoformat(captured_at.replace("Z", "+00:00"))
        seconds = (datetime.now(timezone.utc) - then).total_seconds()
    except (ValueError, TypeError):
        return ""
    return f", measured {format_seconds(seconds)} ago" if seconds > 0 else ""

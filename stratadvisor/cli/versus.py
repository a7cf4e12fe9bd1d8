"""``recommend --vs``: the plan's cluster against others, and what a little more of it would buy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stratadvisor.pipeline import Recommendation
    from stratadvisor.schema.comparison import Comparison
    from stratadvisor.schema.profile import ClusterProfile

Named = tuple[tuple[str, "ClusterProfile"], ...]


def read_others(clusters: list[str]) -> Named:
    """Return the named profiles of ``--vs``; each is read before anything is planned."""
    from stratadvisor import comparison

    return tuple(comparison.read_cluster(text) for text in clusters)


def versus(
    name: str, result: Recommendation, others: Named, prices: tuple[float, ...], overlays: tuple[Path, ...]
) -> Comparison:
    """Return the plan beside those of the other clusters and of a little more of its own."""
    from stratadvisor import comparison
    from stratadvisor.cli.console import progress_line
    from stratadvisor.schema.comparison import ComparedCluster, Comparison

    comparison.check_prices(1 + len(others), prices)
    workload = result.plan.workload
    progress = progress_line()
    rest = comparison.compare(others, workload, prices[1:] or prices, overlays=overlays, progress=progress)
    more = comparison.compare(
        comparison.variations(name, result.profile), workload, prices[:1],
        what_if=True, overlays=overlays, progress=progress,
    )  # fmt: skip
    return Comparison(clusters=(ComparedCluster(name=name, plan=result.plan), *rest, *more))

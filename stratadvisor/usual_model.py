"""A model for somebody who named none: the largest of the usual sizes that trains within a week on this cluster."""

from __future__ import annotations

from collections.abc import Callable

from stratadvisor import pipeline
from stratadvisor.errors import NoFeasiblePlanError
from stratadvisor.schema.profile import ClusterProfile
from stratadvisor.schema.workload import ModelShape, Workload
from stratadvisor.units import format_seconds

SIZES = ("10M", "30M", "125M", "350M", "760M", "1.3B", "2.7B", "7B", "13B", "30B", "70B", "175B")
"""Published families' sizes, about a factor of two to three apart."""
LONGEST_RUN_SECONDS = 7 * 86400.0
"""Our choice of what somebody would try first; the run's length follows from the size: 20 tokens per parameter."""


def largest_usual_model(
    profile: ClusterProfile,
    workload_of: Callable[[ModelShape], Workload],
    progress: pipeline.Progress | None = None,
) -> tuple[ModelShape, str]:
    """Return the model and the sentence that says how it was chosen; the smallest one if even that takes longer.

    ``workload_of`` makes the workload of the user's other options. Planning grows with the size in memory and in time,
    so the largest size is found by halving.
    """
    low, high = 0, len(SIZES)  # SIZES[:low] are within the limits, SIZES[high:] are not
    taken: float | None = None
    while low < high:
        middle = (low + high) // 2
        if progress is not None:
            progress(f"no model was named: trying {SIZES[middle]}", 1 - (high - low) / len(SIZES))
        try:
            run_seconds = pipeline.recommend(profile, workload_of(_shape(SIZES[middle]))).plan.predicted.run_seconds
        except NoFeasiblePlanError:
            high = middle
            continue
        if run_seconds.likely <= LONGEST_RUN_SECONDS:
            low, taken = middle + 1, run_seconds.likely
        else:
            high = middle
    if progress is not None:
        progress("a model was found", 1.0)
    size = SIZES[max(0, low - 1)]
    limit = f"{LONGEST_RUN_SECONDS / 86400:.0f} days"
    why = (
        f"the smallest of the usual sizes; its whole run takes more than {limit} or does not fit"
        if taken is None
        else f"the largest of the usual sizes whose whole run is predicted within {limit} ({format_seconds(taken)})"
    )
    return _shape(size), f"no --model-size or --model: planning {size}, {why}"


def _shape(size: str) -> ModelShape:
    return pipeline.resolve_model(model_size=size, model=None)

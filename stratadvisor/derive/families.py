"""Which family of the flowchart a candidate belongs to."""

from __future__ import annotations

from stratadvisor.schema.layout import Candidate


def family_of(candidate: Candidate) -> str:
    """Return the family of a candidate's strategy; a synchronous one with unequal shares is uneven synchronous."""
    from stratadvisor.strategies import STRATEGIES  # here, since reading and checking rules needs no cost model

    family = STRATEGIES[candidate.strategy].family
    if family == "synchronous" and len({s.batch_per_device for s in candidate.shares}) > 1:
        return "uneven_synchronous"
    return family

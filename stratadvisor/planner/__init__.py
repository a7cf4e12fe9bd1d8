"""Solve the numbers: enumerate what is possible, rank it, choose what the flowchart allows, what would change it."""

from __future__ import annotations

from stratadvisor.planner.choice import choose, classes_chosen
from stratadvisor.planner.search import enumerate_candidates

__all__ = ["choose", "classes_chosen", "enumerate_candidates"]

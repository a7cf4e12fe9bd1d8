"""One model on several clusters, and what a little more of the first would buy."""

from __future__ import annotations

from pydantic import Field

from stratadvisor.schema.base import Document
from stratadvisor.schema.plan import Plan

COMPARISON_SCHEMA_VERSION = 1


class ComparedCluster(Document):
    """One cluster's answer."""

    name: str
    """How the cluster was called: a file, or ``2x8xA100-80GB@200Gb/s``."""
    what_if: bool = False
    """Whether it is the first cluster with something added, not one that was asked for."""
    plan: Plan | None = None
    reason: str = ""
    """Why there is no plan."""


class Comparison(Document):
    """What ``compare`` and ``recommend --vs`` found, the reference first."""

    schema_version: int = COMPARISON_SCHEMA_VERSION
    clusters: tuple[ComparedCluster, ...] = Field(min_length=1)

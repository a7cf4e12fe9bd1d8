"""Files written for a plan, and the lock that notices edits."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from stratadvisor.schema.base import Document

FileFormat = Literal["json", "toml", "yaml", "python", "shell", "markdown", "text"]
LOCK_NAME = "stratadvisor.lock.json"
PLAN_NAME = "plan.json"
CLUSTER_NAME = "cluster.json"


class EmittedFile(Document):
    """One file of a bundle, complete in memory."""

    path: str
    """Relative, inside the bundle."""
    content: str
    format: FileFormat
    executable: bool = False


class Lock(Document):
    """SHA-256 of each emitted file."""

    schema_version: int = 1
    stratadvisor_version: str
    entrypoint: str = "launch.sh"
    digests: dict[str, str] = Field(default_factory=dict)

"""``stratadvisor schema``."""

from __future__ import annotations

import json
from typing import Annotated

import typer

HELP = "Print the JSON schema of a document that stratadvisor reads or writes."
EXAMPLE = "Example: stratadvisor schema plan > plan.schema.json"


def schema(
    document: Annotated[
        str | None, typer.Argument(help="profile, plan, validation, comparison or lock; none lists them.")
    ] = None,
) -> None:
    """Print a JSON schema."""
    from pydantic import BaseModel

    from stratadvisor.errors import UsageError
    from stratadvisor.schema.comparison import Comparison
    from stratadvisor.schema.descriptions import json_schema
    from stratadvisor.schema.emission import Lock
    from stratadvisor.schema.plan import Plan
    from stratadvisor.schema.profile import ClusterProfile
    from stratadvisor.schema.validation import RunConfigOutcome

    documents: dict[str, tuple[type[BaseModel], str]] = {
        "profile": (ClusterProfile, "cluster.json, and `probe --json`"),
        "plan": (Plan, "plan.json, and `recommend --json`"),
        "validation": (RunConfigOutcome, "`run-config --json`"),
        "comparison": (Comparison, "comparison.json, and `compare --json`"),
        "lock": (Lock, "stratadvisor.lock.json"),
    }
    if document is None:
        for name, (_, where) in documents.items():
            typer.echo(f"{name:<12}{where}")
        return
    if document not in documents:
        raise UsageError(f"no document {document[:40]!r}", hint=f"one of {', '.join(documents)}")
    typer.echo(json.dumps(json_schema(documents[document][0]), indent=2, sort_keys=True))

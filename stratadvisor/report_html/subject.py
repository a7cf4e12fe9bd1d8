"""What a report is about: read a bundle, a plan, a profile or a validation result, whichever a file turns out to be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from stratadvisor import pipeline, store
from stratadvisor.emit import bundle as bundles
from stratadvisor.errors import UsageError
from stratadvisor.schema.comparison import Comparison
from stratadvisor.schema.metrics import METRICS_NAME, RUN_FOLDER
from stratadvisor.schema.plan import Plan
from stratadvisor.schema.profile import ClusterProfile
from stratadvisor.schema.validation import RunConfigOutcome, ValidationResult
from stratadvisor.validate.metrics import RunMetrics, read_metrics

_HINT = "give a bundle folder, a plan.json, a cluster profile or file, or a validation result"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Whatever is known; absent parts are None and their charts are left out or drawn as unknown."""

    profile: ClusterProfile | None = None
    plan: Plan | None = None
    outcome: RunConfigOutcome | None = None
    metrics: RunMetrics | None = None
    """Step by step, of the run that ``outcome`` begins with."""
    comparison: Comparison | None = None
    """The same model on other clusters."""
    notes: tuple[str, ...] = ()


def read_subject(path: Path, cluster: Path | None = None) -> Subject:
    """Return what lies at ``path``; ``cluster`` gives the profile that a plan or a result alone lacks.

    Raises:
        UsageError: it is none of the kinds that can be reported on.

    """
    if not path.exists():
        raise UsageError(f"{path} does not exist", hint=f"{_HINT}; stratadvisor recommend writes a bundle")
    subject = _bundle(path) if path.is_dir() else _file(path)
    if cluster is None:
        return subject
    given = pipeline.load_cluster(cluster=cluster, gpus=None, inter_node=None, intra_node=None)
    if subject.profile is not None and path.is_file():
        raise UsageError(f"{path} is a cluster already; --cluster gives a second one", hint="give one of them")
    notes = subject.notes
    if given is not None and subject.plan is not None:
        notes += _mismatch(given, subject.plan)
    return replace(subject, profile=given, notes=notes)


def _bundle(directory: Path) -> Subject:
    opened = bundles.read_bundle(directory)
    notes: tuple[str, ...] = ()
    if opened.drifted:
        notes = (f"files of the bundle were edited since the plan: {', '.join(opened.drifted)}",)
    saved = directory / RUN_FOLDER / pipeline.RESULT_NAME
    outcome = _outcome(saved) if saved.is_file() else None
    folder = directory
    if outcome is not None and outcome.results[0].proxy:
        folder = directory / pipeline.PROXY_FOLDER
    metrics = read_metrics(folder / RUN_FOLDER / METRICS_NAME)
    compared = _comparison_of(directory, opened.plan)
    if not metrics.steps:
        return Subject(profile=opened.profile, plan=opened.plan, outcome=outcome, comparison=compared, notes=notes)
    if outcome is None:
        notes += ("the run's steps are shown; its result was not saved, run-config did not come to its end",)
    return Subject(
        profile=opened.profile, plan=opened.plan, outcome=outcome, metrics=metrics, comparison=compared, notes=notes
    )


def _comparison_of(directory: Path, plan: Plan) -> Comparison | None:
    """Return the comparison that was made together with this plan, not one left from an earlier plan."""
    path = directory / pipeline.COMPARISON_NAME
    if not path.is_file():
        return None
    found = _comparison(path)
    first = found.clusters[0].plan
    same = first is not None and first.provenance == plan.provenance and first.strategy == plan.strategy
    return found if same else None


def _comparison(path: Path) -> Comparison:
    data = store.parse_json(store.read_text(path, UsageError), path, UsageError)
    return store.validate(Comparison, data, path, UsageError)


def _file(path: Path) -> Subject:
    if path.suffix.lower() == ".toml":
        return Subject(profile=pipeline.load_cluster(cluster=path, gpus=None, inter_node=None, intra_node=None))
    data = store.parse_json(store.read_text(path, UsageError), path, UsageError)
    if "clusters" in data:
        return Subject(comparison=_comparison(path))
    if "nodes" in data:
        return Subject(profile=store.read_profile(path))
    if "provenance" in data or "predicted" in data:
        return Subject(plan=store.read_plan(path))
    if "results" in data or "steps_asked" in data:
        return Subject(outcome=_outcome(path))
    raise UsageError(f"{path} is neither a plan, a profile, a comparison nor a validation result", hint=_HINT)


def _outcome(path: Path) -> RunConfigOutcome:
    data = store.parse_json(store.read_text(path, UsageError), path, UsageError)
    if "results" in data:
        return store.validate(RunConfigOutcome, data, path, UsageError)
    return RunConfigOutcome(results=(store.validate(ValidationResult, data, path, UsageError),))


def _mismatch(profile: ClusterProfile, plan: Plan) -> tuple[str, ...]:
    """Say which devices of the plan the given cluster does not have."""
    present = {d.name for n in profile.nodes for d in n.devices}
    absent = sorted({g.device_name for g in plan.groups} - present)
    if not absent:
        return ()
    return (f"the cluster given has no {', '.join(absent)}, which the plan uses: it is not the plan's own cluster",)

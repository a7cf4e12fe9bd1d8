"""The story in order: profile, facts, rules, planner, files, validation. The only module that knows all stages."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from pydantic import ValidationError

from stratadvisor import __version__, store
from stratadvisor.errors import DriftError, ModelError, ProfileError, StratadvisorError, UsageError
from stratadvisor.schema.emission import CLUSTER_NAME, PLAN_NAME
from stratadvisor.schema.metrics import RUN_FOLDER
from stratadvisor.schema.plan import Plan, Provenance
from stratadvisor.schema.profile import Calibration, ClusterProfile, NodeProfile
from stratadvisor.schema.workload import (
    Method,
    ModelShape,
    Objective,
    Optimizer,
    PrecisionChoice,
    Workload,
)
from stratadvisor.units import Dimension, parse_quantity

if TYPE_CHECKING:
    from stratadvisor.emit.targets import Targets
    from stratadvisor.schema.facts import Fact
    from stratadvisor.schema.layout import Candidate
    from stratadvisor.schema.rules import RuleOutcome
    from stratadvisor.schema.validation import RunConfigOutcome, ValidationResult
    from stratadvisor.validate.launch import Limits

Progress = Callable[[str, float | None], None]
SOURCE_NAME = ".cluster-source"
"""Beside a bundle: which profile the plan came from, so that a calibration reaches it. Not part of the plan."""
COMPARISON_NAME = "comparison.json"
"""Beside a bundle: the same model on other clusters (``recommend --vs``), for ``report``."""
COMPARE_FOLDER, PROXY_FOLDER = "compare", "proxy"
RESULT_NAME = "result.json"
"""Beside the metrics of the last run-config: its whole outcome, for ``report``."""
MAX_CALIBRATIONS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """A plan, and what it was made from."""

    plan: Plan
    profile: ClusterProfile
    facts: dict[str, Fact]


def probe_node(
    *,
    only: tuple[str, ...] = (),
    skip: tuple[str, ...] = (),
    quick: bool = False,
    storage_path: Path | None = None,
    time_limit_seconds: float = 60.0,
    progress: Progress | None = None,
) -> ClusterProfile:
    """Return the profile of this machine alone."""
    from stratadvisor.probe import run

    return run.probe_node(
        only=only,
        skip=skip,
        quick=quick,
        storage_path=storage_path,
        time_limit_seconds=time_limit_seconds,
        progress=progress,
    )


def probe_job(
    *,
    only: tuple[str, ...] = (),
    skip: tuple[str, ...] = (),
    quick: bool = False,
    storage_path: Path | None = None,
    time_limit_seconds: float = 60.0,
    progress: Progress | None = None,
    output: Path | None = None,
) -> ClusterProfile | None:
    """Return the profile of all nodes under a launcher, of this machine otherwise; None on all other ranks.

    With ``output``, what several nodes bring lies beside that file as it comes, and when the probe is broken off the
    profile of what there is until then is written.
    """
    from stratadvisor.probe import job

    return job.probe_job(
        only=only,
        skip=skip,
        quick=quick,
        storage_path=storage_path,
        time_limit_seconds=time_limit_seconds,
        progress=progress,
        keep=None if output is None else lambda profile: write_profile(output, profile),
        output=output,
    )


def probe_hosts(
    hosts: str,
    *,
    ssh: str = "ssh",
    python: str = "python3",
    only: tuple[str, ...] = (),
    skip: tuple[str, ...] = (),
    quick: bool = False,
    time_limit_seconds: float = 60.0,
    progress: Progress | None = None,
    output: Path | None = None,
) -> ClusterProfile:
    """Return the profile of nodes that are reached over ssh: ``node[01-16]``; ``output`` as in ``probe_job``."""
    from stratadvisor.probe import host_list
    from stratadvisor.probe import ssh as over_ssh

    return over_ssh.probe_hosts(
        host_list.parse_hosts(hosts),
        ssh=ssh,
        python=python,
        only=only,
        skip=skip,
        quick=quick,
        time_limit_seconds=time_limit_seconds,
        progress=progress,
        keep=None if output is None else lambda profile: write_profile(output, profile),
        output=output,
    )


def probe_ray(
    address: str,
    *,
    only: tuple[str, ...] = (),
    skip: tuple[str, ...] = (),
    quick: bool = False,
    time_limit_seconds: float = 60.0,
    progress: Progress | None = None,
) -> ClusterProfile:
    """Return the profile of the nodes of a running Ray cluster."""
    from stratadvisor.probe import ray_start

    return ray_start.probe_ray(
        address, only=only, skip=skip, quick=quick, time_limit_seconds=time_limit_seconds, progress=progress
    )


def merge_profiles(paths: tuple[Path, ...]) -> ClusterProfile:
    """Return one profile of the nodes in several files."""
    from stratadvisor.probe import merge
    from stratadvisor.probe.nodes import journal, together

    profiles: list[ClusterProfile] = []
    for path in paths:
        if path.name.endswith(journal.SUFFIX):  # of a probe that was broken off
            found = journal.read_journal(store.read_text(path, ProfileError), path)
            profiles.append(together.cluster_profile(found))
        else:
            profiles.append(store.read_profile(path))
    return merge.merge_profiles(profiles)


def write_profile(path: Path, profile: ClusterProfile) -> ClusterProfile:
    """Write a profile and return it; calibrations of the file it replaces stay while the devices are the same."""
    if path.is_file() and not profile.calibrations:
        try:
            earlier = store.read_profile(path)
        except ProfileError:
            earlier = None
        if earlier is not None and _device_names(earlier) == _device_names(profile):
            profile = profile.model_copy(update={"calibrations": earlier.calibrations})
    if not path.parent.is_dir():
        raise StratadvisorError(f"{path.parent} is not a directory", hint="create it first, or name another --output")
    store.write_document(path, profile)
    return profile


def _device_names(profile: ClusterProfile) -> list[tuple[str, ...]]:
    return [tuple(d.catalog_key or d.name for d in n.devices) for n in profile.nodes]


def load_cluster(
    *,
    cluster: Path | str | None = None,
    gpus: str | None = None,
    inter_node: str | None = None,
    intra_node: str | None = None,
) -> ClusterProfile | None:
    """Return the profile of a file or of the one-line form; None when neither is given."""
    if cluster is not None and gpus is not None:
        raise UsageError("--cluster and --gpus both describe the hardware", hint="give one of them")
    if gpus is None and (inter_node is not None or intra_node is not None):
        raise UsageError("--inter-node and --intra-node belong to --gpus", hint="a cluster file has its own keys")
    if gpus is not None:
        from stratadvisor.derive import declared

        return declared.parse_gpus(gpus, inter_node=inter_node, intra_node=intra_node)
    if cluster is None:
        return None
    cluster = Path(cluster)
    if cluster.suffix.lower() == ".toml":
        from stratadvisor.derive import declared

        return declared.read_cluster_file(cluster)
    return store.read_profile(cluster)


def resolve_model(*, model_size: str | None = None, model: str | None = None) -> ModelShape:
    """Return the shape of a size, a catalog name, a config.json or a factory."""
    if (model_size is None) == (model is None):
        raise UsageError(
            "give either --model-size or --model", hint="for example --model-size 7B, or --model llama-3-8b"
        )
    if model_size is not None:
        from stratadvisor.catalog import sizes

        mixture = re.fullmatch(r"\s*(\d{1,3})\s*[xX*]\s*(\d{1,4}(?:\.\d+)?)\s*[bB]\s*", model_size)
        if mixture is not None:
            raise UsageError(
                f"--model-size {model_size.strip()} names a mixture of experts, whose experts share attention and"
                " embeddings: it is neither their product nor one of them",
                hint="give its config.json or its name with --model (mixtral-8x7b has 46.7B parameters, 12.9B active)",
            )
        try:
            wanted = parse_quantity(model_size, "count")
        except ValueError as problem:
            raise UsageError(f"--model-size: {problem}") from None
        return sizes.shape_for_size(wanted)
    assert model is not None
    return _named_model(model)


def _named_model(model: str) -> ModelShape:
    path = Path(model)
    if model.endswith(".json") or os.sep in model or path.exists():
        from stratadvisor.catalog import hugging_face

        return hugging_face.read_config(path / "config.json" if path.is_dir() else path)
    from stratadvisor.catalog import models

    known = models.lookup(model)
    if known is not None:
        return known
    if ":" in model:
        from stratadvisor.models_meta.count import count_module

        return count_module(model)
    import difflib

    near = difflib.get_close_matches(model.lower(), models.names(), n=3, cutoff=0.4)
    raise ModelError(
        f"no model {model[:80]!r} in the catalog and no such file",
        hint=(f"nearest: {', '.join(near)}; " if near else "")
        + "or give --model-size, a config.json, or pkg.module:factory",
    )


def make_workload(
    shape: ModelShape,
    *,
    method: str = "full",
    lora_rank: int = 16,
    sequence_length: int | None = None,
    global_batch_size: int | None = None,
    global_batch_tokens: str | None = None,
    total_tokens: str | None = None,
    optimizer: str = "adamw",
    precision: str = "auto",
    objective: str = "time",
    price_per_device_hour: float | None = None,
    max_staleness_steps: int = 64,
    data_stays: bool = False,
    frozen_parameters: str | None = None,
    grid_intensity: str | None = None,
) -> Workload:
    """Return the workload of the command line's options.

    Raises:
        UsageError: a value outside its list, or options that contradict each other.

    """
    for option, value, allowed in (
        ("--method", method, get_args(Method)),
        ("--optimizer", optimizer, get_args(Optimizer)),
        ("--precision", precision, get_args(PrecisionChoice)),
        ("--objective", objective, get_args(Objective)),
    ):
        if value not in allowed:
            raise UsageError(f"{option} {value[:40]!r} is not one of {', '.join(allowed)}")
    length = sequence_length or default_sequence_length(shape)
    if global_batch_tokens is not None:
        if global_batch_size is not None:
            raise UsageError("--global-batch-size and --global-batch-tokens both set the batch", hint="give one")
        tokens = _count("--global-batch-tokens", global_batch_tokens)
        global_batch_size = round(tokens / length)
        if global_batch_size < 1:
            raise UsageError(f"--global-batch-tokens {global_batch_tokens} is less than one sequence of {length}")
    if data_stays and max_staleness_steps == 0:
        raise UsageError(
            "--data-stays and --max-staleness 0 contradict each other: where data stays, only weights meet now and then"
        )
    if objective == "cost" and price_per_device_hour is None:
        raise UsageError("--objective cost needs --price-per-device-hour")
    grid = None if grid_intensity is None else _positive("--grid-intensity", grid_intensity, "grams_per_kilowatt_hour")
    try:
        return Workload(
            model=shape,
            method=method,
            lora_rank=lora_rank,
            sequence_length=length,
            global_batch_size=global_batch_size,
            total_tokens=None if total_tokens is None else _count("--total-tokens", total_tokens),
            optimizer=optimizer,
            precision=precision,
            objective=objective,
            max_staleness_steps=max_staleness_steps,
            data_stays=data_stays,
            frozen_parameters=0.0 if frozen_parameters is None else _count("--frozen-size", frozen_parameters),
            price_per_device_hour=price_per_device_hour,
            grid_carbon_grams_per_kilowatt_hour=grid,
        )
    except ValidationError as problem:
        raise UsageError(store.first_problem(problem)) from None


def default_sequence_length(shape: ModelShape) -> int:
    """Return 2048 tokens, less for models with fewer positions and for small ones (512 up to 100M parameters)."""
    length = 512 if shape.num_parameters <= 100_000_000 else 2048
    return min(length, shape.max_sequence_length) if shape.max_sequence_length else length


def _count(option: str, text: str) -> float:
    return _positive(option, text, "count")


def _positive(option: str, text: str, dimension: Dimension) -> float:
    try:
        value = parse_quantity(text, dimension)
    except ValueError as problem:
        raise UsageError(f"{option}: {problem}") from None
    if value <= 0:
        raise UsageError(f"{option} must be more than zero")
    return value


def overlay_folders(given: tuple[Path, ...]) -> tuple[Path, ...]:
    """Return overlay folders: installed plug-ins, then STRATADVISOR_OVERLAYS, then those given; each must exist."""
    from_environment = tuple(Path(p) for p in os.environ.get("STRATADVISOR_OVERLAYS", "").split(os.pathsep) if p)
    folders = from_environment + given
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"overlay {folder} is not a directory")
    return _plugged_folders() + folders


def load_plugins() -> None:
    """Load every installed plug-in; ``plugins.problems()`` then says which are left out, and why."""
    from stratadvisor import probe, strategies

    assert probe.PROBES
    assert strategies.STRATEGIES
    _plugged_folders()


def _plugged_folders() -> tuple[Path, ...]:
    """Return the folders of installed rules and targets that are sound; the others are named and left out."""
    from stratadvisor import plugins

    kept: tuple[Path, ...] = ()
    for folder, plugin in plugins.folders().items():
        try:
            _try_folder(folder, kept)
        except StratadvisorError as problem:
            plugins.leave_out(plugin, problem.message)
        else:
            kept += (folder,)
    return kept


def _try_folder(folder: Path, below: tuple[Path, ...]) -> None:
    from stratadvisor.derive import facts as derive_facts
    from stratadvisor.emit import manifest
    from stratadvisor.rules_engine import check, load

    if (folder / "rules").is_dir():
        check.check(load.load_ruleset((*below, folder)), derive_facts.SPECS)
    if (folder / "templates").is_dir():
        for entry in sorted((folder / "templates").iterdir()):
            if (entry / manifest.MANIFEST_NAME).is_file():
                manifest.load_manifest(entry.name, (*below, folder))


def recommend(
    profile: ClusterProfile,
    workload: Workload,
    *,
    overlays: tuple[Path, ...] = (),
    strategy: str | None = None,
    adaptive: bool = False,
) -> Recommendation:
    """Return the plan for a workload on a cluster; ``strategy`` takes the place of the flowchart's choice of family.

    ``adaptive``: the training program may leave the plan for what it measures.

    Raises:
        NoFeasiblePlanError: nothing fits.
        RuleError: the rules, with overlays, are wrong.
        UsageError: no strategy of that name, or it does not apply to this cluster, or cannot be adaptive.

    """
    from stratadvisor import planner, plugins, surroundings
    from stratadvisor.derive import cluster as derive_cluster
    from stratadvisor.derive import facts as derive_facts
    from stratadvisor.rules_engine import check, load, walk

    view = derive_cluster.planning_view(profile)
    if not view.cluster.classes:
        raise ProfileError(
            "the cluster has no usable device" + (f": {view.warnings[0]}" if view.warnings else ""),
            hint="probe again, or describe the hardware with --gpus",
        )
    ruleset = load.load_ruleset(overlays)
    if overlays:  # shipped rules are checked by the project's own tests
        check.check(ruleset, derive_facts.SPECS)
    candidates = planner.enumerate_candidates(view.cluster, workload)
    facts = derive_facts.derive_facts(profile, view.cluster, workload, candidates)
    outcome = walk.walk(ruleset, facts, derive_facts.SPECS)
    warnings = view.warnings + plugins.warnings(*(g for g in plugins.GROUPS if g != "stratadvisor.probes"))
    if strategy is not None:
        candidates, outcome, said = _forced(strategy, candidates, outcome)
        warnings += said
    provenance = Provenance(
        stratadvisor_version=__version__,
        profile_digest=store.digest(profile),
        workload_digest=store.digest(workload),
        ruleset_digest=outcome.ruleset_digest,
        overlays=tuple(folder.name for folder in overlays),
    )
    several = len(view.cluster.classes) > 1
    used = planner.classes_chosen(view.cluster, workload, candidates, outcome) if several else ()
    if several and len(set(used)) < len(view.cluster.classes):
        # questions after the family are about the nodes that will run, not about those left out
        nodes = tuple(n for name in dict.fromkeys(used) for n in view.members[name])
        part = view.cluster.only(used)
        inside = tuple(c for c in candidates if {s.node_class for s in c.shares} <= set(used))
        facts_of_part = derive_facts.derive_facts(profile.model_copy(update={"nodes": nodes}), part, workload, inside)
        outcome = _rest_of_path(outcome, walk.walk(ruleset, facts_of_part, derive_facts.SPECS))
        if strategy is not None:  # the rest of the path sets its own limits; they give way as well
            _, outcome, _ = _forced(strategy, candidates, outcome)
    plan = planner.choose(
        view.cluster, workload, candidates, outcome, provenance=provenance, assumptions=view.assumptions
    )
    if warnings:
        plan = plan.model_copy(update={"warnings": warnings + plan.warnings})
    plan = surroundings.consider(plan, profile)
    if adaptive:
        from stratadvisor.emit.train_config import refuses_adaptive

        if reason := refuses_adaptive(plan):
            raise UsageError(f"--adaptive: {reason}", hint="leave it out, or choose with --strategy")
        note = "the program begins as planned and may change shares, batch and exchange: predictions are for its start"
        plan = plan.model_copy(update={"adaptive": True, "assumptions": (*plan.assumptions, note)})
    return Recommendation(plan=plan, profile=profile, facts=facts)


def _rest_of_path(whole: RuleOutcome, part: RuleOutcome) -> RuleOutcome:
    """Return the path to the family over all nodes, and what follows it as the nodes that will run answer it."""
    last = max((i for i, d in enumerate(whole.decisions) if "family" in d.sets), default=-1)
    kept = whole.decisions[: last + 1]
    asked = {d.question for d in kept}
    after = max((i for i, d in enumerate(part.decisions) if "family" in d.sets), default=-1)
    rest = tuple(d for d in part.decisions[after + 1 :] if d.question not in asked)
    settings = {k: v for k, v in part.settings.items() if k != "family"}
    if "family" in whole.settings:
        settings["family"] = whole.settings["family"]
    warnings = tuple(dict.fromkeys((*part.warnings, *(w for w in whole.warnings if w not in part.warnings))))
    return whole.model_copy(update={"decisions": kept + rest, "settings": settings, "warnings": warnings})


def _forced(
    strategy: str, candidates: tuple[Candidate, ...], outcome: RuleOutcome
) -> tuple[tuple[Candidate, ...], RuleOutcome, tuple[str, ...]]:
    """Keep the candidates of one strategy, and let the flowchart's family and memory limits give way to it."""
    from stratadvisor.strategies import STRATEGIES

    if strategy not in STRATEGIES:
        raise UsageError(f"--strategy {strategy[:40]!r} is not one of {', '.join(STRATEGIES)}")
    kept = tuple(c for c in candidates if c.strategy == strategy)
    if not kept:
        alone = len({c.num_devices for c in candidates}) == 1 and candidates[0].num_devices == 1
        raise UsageError(
            f"--strategy {strategy} does not apply to this cluster and model"
            + (": there is one device, and dividing states among devices has no effect there" if alone else ""),
            hint="explain --why-not shows why, for a plan without --strategy",
        )
    chosen = outcome.settings.get("family")
    family = STRATEGIES[strategy].family
    bounds = ("family", "minimum_sharding", "offload_allowed", "checkpointing_allowed")
    settings = {k: v for k, v in outcome.settings.items() if k not in bounds} | {"family": family}
    said = () if chosen == family else (f"--strategy {strategy} was asked for; the flowchart chose {chosen}",)
    return kept, outcome.model_copy(update={"settings": settings}), said


def choose_targets(plan: Plan, target: str | None, *, overlays: tuple[Path, ...] = ()) -> Targets:
    """Return what ``--target`` (a list with commas, or ``all``) comes to for a plan.

    Raises:
        EmitError: a named target does not exist or cannot express the plan; the hint names the nearest that can.
        UsageError: the list is empty or contradicts itself.

    """
    from stratadvisor.emit import targets

    names = () if target is None else tuple(name.strip() for name in target.split(",") if name.strip())
    if target is not None and not names:
        raise UsageError("--target names no target", hint="for example --target accelerate,slurm or --target all")
    return targets.choose_targets(plan, names, overlays)


def write_bundle(
    result: Recommendation,
    directory: Path | str,
    *,
    force: bool = False,
    overlays: tuple[Path, ...] = (),
    source: Path | None = None,
    targets: Targets | None = None,
) -> tuple[tuple[str, str], ...]:
    """Write the files of a plan and return (path, verdict) of each; ``targets``: see ``choose_targets``."""
    from stratadvisor.emit import bundle

    directory = Path(directory)
    own, beside = (None, ()) if targets is None else (targets.own, targets.beside)
    files = bundle.render_bundle(result.plan, result.profile, own, overlays, beside=beside)
    verdicts = bundle.write_bundle(files, directory, force=force)
    marker = directory / SOURCE_NAME
    if source is not None and source.suffix.lower() != ".toml":
        store.atomic_write(marker, f"{source.resolve()}\n")
    else:
        marker.unlink(missing_ok=True)
    return tuple((v.path, v.verdict) for v in verdicts)


def load_plan(path: Path) -> Plan:
    """Return the plan of a bundle or of a plan.json."""
    return store.read_plan(path / PLAN_NAME if path.is_dir() else path)


def run_config(
    directory: Path | str,
    *,
    steps: int,
    compare: int = 0,
    data: Path | None = None,
    cluster: Path | None = None,
    time_limit_seconds: float = 1800.0,
    stall_limit_seconds: float | None = None,
    allow_proxy: bool = True,
    accept_drift: bool = False,
    progress: Progress | None = None,
) -> RunConfigOutcome:
    """Run a bundle (and runners-up) briefly, compare with the prediction, keep the calibration."""
    from stratadvisor.emit import bundle
    from stratadvisor.schema.validation import RunConfigOutcome
    from stratadvisor.validate import run

    directory = Path(directory)
    opened = bundle.read_bundle(directory)
    if opened.drifted and not accept_drift:
        raise DriftError(
            f"files of {directory} were edited since the plan: {', '.join(opened.drifted)}",
            hint="--accept-drift runs them as they are; recommend --force writes them again",
        )
    if data is not None and not data.is_file():
        raise UsageError(f"--data {data} is not a file")
    _refuse_links_out(directory)
    here = _this_node(opened.plan, opened.profile)
    if here is not None and not accept_drift:
        from stratadvisor.validate import drift

        changed = drift.changes(opened.profile, here)
        if changed:
            raise DriftError(
                f"this machine changed since the plan: {'; '.join(changed)}",
                hint="probe and recommend again; --accept-drift runs the plan as it is",
            )
    limits = run.Limits(total_seconds=time_limit_seconds, stall_seconds=stall_limit_seconds)
    first = _run_proxy(directory, opened.plan, here, steps, data, limits, allow_proxy, progress)
    if first is None:
        first = run.run_bundle(
            directory, opened.plan, opened.profile, steps=steps, data=data, limits=limits, progress=progress
        )
    results = [first]
    notes: list[str] = []
    if compare and first.proxy:
        notes.append("runners-up are compared on the plan's own cluster only: this run was scaled down")
    elif compare and first.outcome == "completed":
        more, notes = _run_alternatives(directory, opened.plan, opened.profile, compare, steps, data, limits, progress)
        results += more
    calibrated: tuple[str, ...] = ()
    if first.outcome == "completed":
        from stratadvisor.validate import calibration

        notes += [said for r in results if (said := calibration.refusal(opened.plan, r))]
        calibrated = _keep_calibrations(directory, opened.plan, opened.profile, results, cluster)
    outcome = RunConfigOutcome(results=tuple(results), calibrated_profiles=calibrated, notes=tuple(notes))
    (directory / RUN_FOLDER).mkdir(exist_ok=True)
    store.write_document(directory / RUN_FOLDER / RESULT_NAME, outcome)
    return outcome


def _this_node(plan: Plan, profile: ClusterProfile) -> NodeProfile | None:
    """Return this machine as it is now, read but not measured; None where a plan for processors does not ask for it."""
    import socket

    if plan.device_kind == "cpu" and not (
        profile.captured_at and any(node.hostname == socket.gethostname() for node in profile.nodes)
    ):
        return None
    # in child processes with a time limit: a driver that hangs must not take this command with it
    return probe_node(only=("host_cpu", "host_memory", "nvml", "rocm")).nodes[0]


def _refuse_links_out(directory: Path) -> None:
    """Refuse a bundle whose folders of run-config lead elsewhere: smaller bundles are written into them by force."""
    names = (PROXY_FOLDER, COMPARE_FOLDER)
    below = [entry for name in names if (directory / name).is_dir() for entry in (directory / name).iterdir()]
    for path in (*(directory / name for name in names), *below):
        if path.is_symlink() and not path.resolve().is_relative_to(directory.resolve()):
            raise UsageError(f"{path} is a symbolic link that leads out of {directory}", hint="remove the link")


def _run_proxy(
    directory: Path,
    plan: Plan,
    here: NodeProfile | None,
    steps: int,
    data: Path | None,
    limits: Limits,
    allowed: bool,
    progress: Progress | None,
) -> ValidationResult | None:
    """Run the plan scaled down to this machine where it is smaller than the plan's cluster; None where it is not."""
    from stratadvisor import scaling
    from stratadvisor.validate import run

    devices = () if here is None else tuple(device for device in here.devices if device.kind != "cpu")
    if scaling.fits_here(plan, devices):
        return None
    asked = ", ".join(f"{g.num_nodes} x {g.devices_per_node} {g.device_name}" for g in plan.groups)
    if not allowed:
        raise UsageError(
            f"the plan needs {asked}, which this machine does not have",
            hint="start launch.sh on the cluster's nodes, or leave out --no-proxy",
        )
    if progress is not None:
        progress(f"the plan needs {asked}; measuring this machine for a smaller run", 0.0)
    local = probe_node(quick=True, progress=progress)

    def fits(workload: Workload) -> bool:
        try:
            recommend(local, workload, strategy=plan.strategy)
        except StratadvisorError:
            return False
        return True

    shrunk = scaling.shrink(plan, local, fits)
    said = shrunk.said
    smaller = _scaled_down(local, shrunk.workload, (plan.strategy, *scaling.substitutes(plan)))
    if smaller.plan.strategy != plan.strategy:
        said += f"; {plan.strategy} does not apply to this machine, {smaller.plan.strategy} is run in its place"
    folder = directory / PROXY_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    write_bundle(smaller, folder, force=True)
    result = run.run_bundle(
        folder, smaller.plan, local, steps=steps, data=data, limits=limits, proxy=said, progress=progress
    )
    if shrunk.comparable:
        ratio = next((row.ratio for row in result.comparisons if row.quantity == "step time"), None)
        if ratio is not None:
            step = plan.predicted.step_seconds.likely * ratio
            note = f"extrapolated to the plan by the same ratio: {step:.3g} s a step"
            result = result.model_copy(update={"notes": (*result.notes, note)})
    return result


def _scaled_down(local: ClusterProfile, workload: Workload, strategies: tuple[str, ...]) -> Recommendation:
    """Return a plan for this machine of the first of the strategies that applies to it, else of any."""
    for strategy in strategies:
        try:
            return recommend(local, workload, strategy=strategy)
        except StratadvisorError:
            continue
    return recommend(local, workload)


def _run_alternatives(
    directory: Path,
    plan: Plan,
    profile: ClusterProfile,
    number: int,
    steps: int,
    data: Path | None,
    limits: Limits,
    progress: Progress | None,
) -> tuple[list[ValidationResult], list[str]]:
    """Plan, write and run the best feasible runners-up in folders below the bundle, with the plan's own batch."""
    from stratadvisor.validate import run

    workload = plan.workload.model_copy(update={"global_batch_size": plan.batch.global_batch_size})
    others = [a for a in plan.alternatives if a.feasible and a.strategy != plan.strategy]
    others.sort(key=lambda a: a.relative_to_choice or float("inf"))
    names = list(dict.fromkeys(a.strategy for a in others))[:number]
    results: list[ValidationResult] = []
    notes = [] if len(names) == number else [f"only {len(names)} other strategies fit"]
    for name in names:
        try:
            chosen = recommend(profile, workload, strategy=name)
        except StratadvisorError as problem:
            notes.append(f"{name} is not run: {problem.message}")
            continue
        folder = directory / COMPARE_FOLDER / name
        folder.mkdir(parents=True, exist_ok=True)
        write_bundle(chosen, folder, force=True)
        results.append(
            run.run_bundle(folder, chosen.plan, profile, steps=steps, data=data, limits=limits, progress=progress)
        )
    return results, notes


def _keep_calibrations(
    directory: Path, plan: Plan, profile: ClusterProfile, results: list[ValidationResult], cluster: Path | None
) -> tuple[str, ...]:
    """Store measured over predicted in the bundle's profile and in the one it came from; return the files."""
    from stratadvisor.emit import bundle
    from stratadvisor.validate import calibration

    new = [c for r in results if (c := calibration.from_result(plan, profile, r)) is not None]
    if not new:
        return ()
    targets = [directory / CLUSTER_NAME]
    marker = directory / SOURCE_NAME
    if cluster is not None:
        targets.append(cluster)
    elif marker.is_file():
        targets.append(Path(store.read_text(marker, ProfileError, 65536).strip()))
    written = []
    for target in targets:
        if not target.is_file() or target.suffix.lower() == ".toml":
            continue
        document = store.read_profile(target)
        if _device_names(document) != _device_names(profile):
            continue
        store.write_document(target, document.model_copy(update={"calibrations": merged(document.calibrations, new)}))
        written.append(str(target))
    bundle.refresh_lock(directory, (CLUSTER_NAME,))
    return tuple(written)


def merged(old: tuple[Calibration, ...], new: list[Calibration]) -> tuple[Calibration, ...]:
    """Return calibrations with the newest of each (device, strategy, model) last, bounded in number."""
    keys = {(c.device, c.strategy, c.model) for c in new}
    kept = [c for c in old if (c.device, c.strategy, c.model) not in keys]
    return tuple((kept + new)[-MAX_CALIBRATIONS:])

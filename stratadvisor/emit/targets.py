"""Which targets a plan is written for: its own, others beside it, and why one cannot express it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stratadvisor.emit.manifest import EmitterManifest, available_targets, load_manifest
from stratadvisor.emit.traits import plan_traits
from stratadvisor.errors import EmitError, UsageError
from stratadvisor.schema.plan import Plan

ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """What ``--target`` comes to for one plan."""

    own: str
    """Target of the bundle itself."""
    beside: tuple[str, ...] = ()
    """Targets written to ``targets/NAME/`` of the bundle."""
    refused: tuple[str, ...] = ()
    """One sentence for each target that ``all`` leaves out."""


def refusal(plan: Plan, manifest: EmitterManifest) -> str | None:
    """Return why a target cannot express a plan, None when it can."""
    traits = plan_traits(plan)
    reasons = [reason for trait, reason in manifest.refuses.items() if trait in traits]
    if plan.strategy not in manifest.strategies:
        why = manifest.without.get(plan.strategy)
        said = f"the strategy {plan.strategy!r}" + (f": {why}" if why else "")
        return f"{said}; it knows {', '.join(manifest.strategies)}"
    return f"this plan: {reasons[0]}" if reasons else None


def check_target(plan: Plan, name: str, overlays: tuple[Path, ...] = ()) -> EmitterManifest:
    """Return the manifest of a target that can express the plan.

    Raises:
        EmitError: no such target, or it cannot; says why, and the nearest target that can.

    """
    manifest = load_manifest(name, overlays)
    why = refusal(plan, manifest)
    if why is None:
        return manifest
    raise EmitError(f"the target {name!r} cannot express {why}", hint=_nearest(plan, manifest, overlays))


def _nearest(plan: Plan, manifest: EmitterManifest, overlays: tuple[Path, ...]) -> str:
    known = available_targets(overlays)
    order = [n for n in dict.fromkeys((*manifest.nearest, plan.target, *known)) if n in known]
    able = [name for name in order if refusal(plan, load_manifest(name, overlays)) is None]
    if not able:
        return "no target can; add one in an overlay"
    more = f"; also {', '.join(able[1:])}" if len(able) > 1 else ""
    return f"the nearest target that can: {able[0]}{more}"


def choose_targets(plan: Plan, wanted: tuple[str, ...], overlays: tuple[Path, ...] = ()) -> Targets:
    """Return where a plan goes for the names of ``--target``; none of them: its own target alone.

    A target that makes a whole bundle takes the place of the plan's own; all others are written beside it.

    Raises:
        EmitError: a named target does not exist or cannot express the plan.
        UsageError: ``all`` beside other names, or two targets that each make a whole bundle.

    """
    names = tuple(dict.fromkeys(name.strip() for name in wanted))
    if ALL in names:
        if len(names) > 1:
            raise UsageError("--target all already names every target", hint="give all alone, or a list without it")
        return _every(plan, overlays)
    manifests = {name: check_target(plan, name, overlays) for name in names}
    whole = [name for name, manifest in manifests.items() if manifest.role == "bundle"]
    if len(whole) > 1:
        raise UsageError(
            f"--target names {' and '.join(whole)}, which each make a whole bundle",
            hint="write one bundle for each of them, with --output",
        )
    own = whole[0] if whole else plan.target
    return Targets(own=own, beside=tuple(name for name in names if name not in whole))


def _every(plan: Plan, overlays: tuple[Path, ...]) -> Targets:
    beside: list[str] = []
    refused: list[str] = []
    for name in available_targets(overlays):
        manifest = load_manifest(name, overlays)
        if manifest.role == "bundle":
            continue
        why = refusal(plan, manifest)
        if why is None:
            beside.append(name)
        else:
            refused.append(f"the target {name!r} cannot express {why}")
    return Targets(own=plan.target, beside=tuple(beside), refused=tuple(refused))

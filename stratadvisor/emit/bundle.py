"""A bundle: all files of a plan, rendered in memory, written as a whole, read back with what changed since."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stratadvisor import store
from stratadvisor.emit.check import check_file
from stratadvisor.emit.figures import figures
from stratadvisor.emit.isolation import render_apart
from stratadvisor.emit.launch import launch_facts
from stratadvisor.emit.lock import digest_file, drifted_files, lock_file, read_lock
from stratadvisor.emit.manifest import TARGETS_FOLDER, EmitterManifest, OutputSpec
from stratadvisor.emit.render import make_environment, render
from stratadvisor.emit.runtime_files import runtime_files
from stratadvisor.emit.targets import check_target
from stratadvisor.emit.train_config import train_config
from stratadvisor.emit.write import FileVerdict, write_files
from stratadvisor.errors import DriftError, EmitError, UsageError
from stratadvisor.schema.emission import CLUSTER_NAME, LOCK_NAME, PLAN_NAME, EmittedFile, Lock
from stratadvisor.schema.plan import Plan
from stratadvisor.schema.profile import ClusterProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A bundle as it lies on disk."""

    directory: Path
    plan: Plan
    profile: ClusterProfile
    lock: Lock
    drifted: tuple[str, ...]
    """Files that are missing or differ from what was written."""


def render_bundle(
    plan: Plan,
    profile: ClusterProfile,
    target: str | None = None,
    overlays: tuple[Path, ...] = (),
    *,
    beside: tuple[str, ...] = (),
) -> tuple[EmittedFile, ...]:
    """Return every file of a plan's bundle, each parsed by its own format, the lock last. Nothing is written.

    ``beside``: further targets, whose files go to ``targets/NAME/``.
    Templates of overlays are rendered in a process of their own (see ``isolation``).

    Raises:
        EmitError: no such target, a target that cannot express the plan, or a template that fails (file and line).

    """
    if any((overlay / "templates").is_dir() for overlay in overlays):
        return render_apart(plan, profile, target, overlays, beside)
    return render_here(plan, profile, target, overlays, beside=beside)


def render_here(
    plan: Plan,
    profile: ClusterProfile,
    target: str | None = None,
    overlays: tuple[Path, ...] = (),
    *,
    beside: tuple[str, ...] = (),
    output_bytes: int | None = None,
) -> tuple[EmittedFile, ...]:
    """Return what ``render_bundle`` returns, computed in this process; ``output_bytes`` bounds the rendered texts."""
    name = target or plan.target
    manifest = _manifest(plan, name, "bundle", overlays)
    others = {other: _manifest(plan, other, "beside", overlays) for other in dict.fromkeys(beside)}
    launch = launch_facts(plan, profile)
    config = train_config(plan)
    context = {
        "plan": plan,
        "profile": profile,
        "workload": plan.workload,
        "provenance": plan.provenance,
        "train_needs": dict(sorted(manifest.requires.items())),
        "launch": launch,
        "figures": figures(plan),
        "train_config": config,
        "plan_digest": store.digest(plan),
    }
    environment = make_environment(overlays)
    made = {"always"} | ({"several_nodes"} if launch.num_nodes > 1 else set())
    made |= {"zero"} if config["engine"] == "deepspeed" else set()

    def outputs(folder: str, name: str, manifest: EmitterManifest) -> list[EmittedFile]:
        here = {**context, "target": name, "requires": dict(sorted(manifest.requires.items()))}
        return [_output(o, folder, render(environment, o.template, here)) for o in manifest.outputs if o.when in made]

    rendered = outputs("", name, manifest)
    for other, other_manifest in others.items():
        rendered += outputs(f"{TARGETS_FOLDER}/{other}/", other, other_manifest)
    if output_bytes is not None and sum(len(file.content) for file in rendered) > output_bytes:
        raise EmitError(f"the templates make more than {output_bytes // 1024**2} MiB of text")
    files = [
        EmittedFile(path=PLAN_NAME, content=store.dump(plan), format="json"),
        EmittedFile(path=CLUSTER_NAME, content=store.dump_profile(profile), format="json"),
        *rendered,
        *runtime_files([file for file in rendered if file.format == "python"], str(config["engine"])),
    ]
    for file in files:
        check_file(file)
    return (*files, lock_file(files, manifest.entrypoint))


def _output(output: OutputSpec, folder: str, content: str) -> EmittedFile:
    return EmittedFile(path=folder + output.path, content=content, format=output.format, executable=output.executable)


def _manifest(plan: Plan, name: str, role: str, overlays: tuple[Path, ...]) -> EmitterManifest:
    manifest = check_target(plan, name, overlays)
    if manifest.role != role:
        place = "beside a bundle, not in its place" if role == "bundle" else "in place of the plan's own, not beside it"
        raise EmitError(f"the target {name!r} is written {place}")
    return manifest


def write_bundle(files: tuple[EmittedFile, ...], directory: Path, force: bool = False) -> tuple[FileVerdict, ...]:
    """Write the files of a bundle and return what was done to each (see ``write.write_files``)."""
    return write_files(files, directory, force=force)


def read_bundle(directory: Path) -> Bundle:
    """Return the bundle in a directory, with the names of the files that changed since it was written.

    Raises:
        UsageError: it is no bundle, or its plan, cluster or lock cannot be read.

    """
    if not directory.is_dir():
        raise UsageError(f"{directory} is not a directory", hint="write a bundle with stratadvisor recommend")
    lock = read_lock(directory, UsageError)
    if lock is None:
        raise UsageError(
            f"{directory} is not a bundle: it has no {LOCK_NAME}",
            hint="write one with stratadvisor recommend --output DIRECTORY",
        )
    return Bundle(
        directory=directory,
        plan=store.read_plan(directory / PLAN_NAME),
        profile=store.read_profile(directory / CLUSTER_NAME),
        lock=lock,
        drifted=drifted_files(directory, lock),
    )


def refresh_lock(directory: Path, paths: tuple[str, ...]) -> None:
    """Accept the present content of ``paths`` as written by stratadvisor itself.

    Raises:
        DriftError: a path is none of the bundle's files, or is missing.

    """
    bundle_lock = read_lock(directory, UsageError)
    if bundle_lock is None:
        raise UsageError(f"{directory} is not a bundle: it has no {LOCK_NAME}")
    digests = dict(bundle_lock.digests)
    for path in paths:
        found = digest_file(directory / path)
        if path not in digests or found is None:
            raise DriftError(f"{directory / path} is not a file of this bundle")
        digests[path] = found
    store.write_document(directory / LOCK_NAME, bundle_lock.model_copy(update={"digests": digests}))

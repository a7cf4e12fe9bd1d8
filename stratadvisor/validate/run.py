"""One validation run: a bundle's launcher for a few steps, then predicted beside measured, or the cause."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from stratadvisor.costs.energy import carbon_grams
from stratadvisor.errors import StratadvisorError, UsageError
from stratadvisor.schema.metrics import METRICS_NAME, RUN_FOLDER
from stratadvisor.schema.plan import Plan
from stratadvisor.schema.profile import ClusterProfile
from stratadvisor.schema.validation import ValidationResult
from stratadvisor.units import format_seconds
from stratadvisor.validate.classify import classify
from stratadvisor.validate.compare import comparisons, measure
from stratadvisor.validate.launch import Ended, Limits, run_launcher
from stratadvisor.validate.metrics import RunMetrics, column, read_metrics

__all__ = ["Limits", "run_bundle"]

LOG_NAME = "output.log"
MAX_LOG_BYTES = 8 * 1024 * 1024
FEWEST_STEPS = 2
"""The first step is not counted."""


def _limits(asked: Limits, plan: Plan, steps: int) -> Limits:
    """Return when to give up on a plan's run.

    Raises:
        UsageError: not even the fastest that is predicted ends in time.

    """
    step = plan.predicted.step_seconds
    if step.low * steps > asked.total_seconds:
        enough = int(asked.total_seconds / step.high)
        fewer = f"--steps {enough}, " if enough >= FEWEST_STEPS else ""
        raise UsageError(
            f"{steps} steps are predicted to take {format_seconds(step.low * steps)} or more, longer than the time"
            f" limit of {format_seconds(asked.total_seconds)}",
            hint=f"{fewer}--time-limit {math.ceil(steps * step.high)}, or a smaller model",
        )
    return replace(asked, stall_seconds=asked.silence_seconds(step.high))


def run_bundle(
    directory: Path,
    plan: Plan,
    profile: ClusterProfile,
    *,
    steps: int,
    data: Path | None = None,
    limits: Limits | None = None,
    proxy: str = "",
    progress: Callable[[str, float | None], None] | None = None,
    environment: dict[str, str] | None = None,
) -> ValidationResult:
    """Run ``launch.sh --steps N`` of a bundle and return what was measured. ``proxy`` says how it is scaled down."""
    launcher = directory / "launch.sh"
    if not launcher.is_file():
        raise StratadvisorError(f"{launcher} does not exist", hint="write the bundle with recommend first")
    run_directory = directory.resolve() / RUN_FOLDER
    if run_directory.is_symlink():
        raise StratadvisorError(f"{run_directory} is a symbolic link; it is not replaced")
    chosen = _limits(limits or Limits(), plan, steps)
    with _alone(directory):
        return _run(directory, plan, profile, run_directory, steps, data, chosen, proxy, progress, environment)


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Hold a bundle: a second run would delete the first one's files. The kernel frees it however this process ends."""
    handle = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StratadvisorError(
                f"another run-config is running in {directory}",
                hint="wait for its end, or write the plan into another folder with recommend --output",
            ) from None
        except OSError:  # a file system without locks: the run is worth more than the guard
            pass
        yield
    finally:
        os.close(handle)


def _run(
    directory: Path,
    plan: Plan,
    profile: ClusterProfile,
    run_directory: Path,
    steps: int,
    data: Path | None,
    limits: Limits,
    proxy: str,
    progress: Callable[[str, float | None], None] | None,
    environment: dict[str, str] | None,
) -> ValidationResult:
    launcher = directory / "launch.sh"
    shutil.rmtree(run_directory, ignore_errors=True)
    try:
        run_directory.mkdir()
    except OSError as problem:
        raise StratadvisorError(f"{run_directory} cannot be made: {problem.strerror}") from None
    metrics_path, log_path = run_directory / METRICS_NAME, run_directory / LOG_NAME
    report = progress or _silent

    def show() -> None:
        metrics = read_metrics(metrics_path)
        if metrics.steps:
            report(f"{plan.strategy}: step {metrics.last_step} of {steps}", min(0.99, metrics.last_step / steps))
        else:
            report(f"{plan.strategy}: starting ranks", 0.0)

    report(f"{plan.strategy}: starting ranks", 0.0)
    command = ["bash", str(launcher.resolve()), "--steps", str(steps)]
    if data is not None:
        command += ["--data", str(data.resolve())]
    ended = run_launcher(
        command,
        directory=directory,
        run_directory=run_directory,
        log_path=log_path,
        watch=metrics_path,
        limits=limits,
        environment=environment or {},
        on_progress=show,
    )
    report(f"{plan.strategy}: done", 1.0)
    metrics = read_metrics(metrics_path)
    return _result(plan, profile, steps, ended, metrics, log_path, proxy)


def _silent(_what: str, _fraction: float | None) -> None:
    return None


def _result(
    plan: Plan,
    profile: ClusterProfile,
    steps: int,
    ended: Ended,
    metrics: RunMetrics,
    log_path: Path,
    proxy: str,
) -> ValidationResult:
    # a run that did every step and said so has completed, whatever its launcher did afterwards
    complete = metrics.end is not None and metrics.last_step >= steps and ended.how != "interrupted"
    measured = measure(metrics, plan)
    notes = list(measured.notes)
    cause = None
    if complete:
        outcome = "completed"
        if ended.exit_code != 0:
            how = ended.exit_code if ended.how == "exit" else ended.how
            notes.append(f"all steps were done, then the launcher ended with {how}")
    else:
        outcome = {"exit": "failed", "stalled": "hung", "time_limit": "hung", "interrupted": "interrupted"}[ended.how]
        cause = classify(ended, _log(log_path), plan, memory_limit_bytes=_memory_limit(profile))
    return ValidationResult(
        strategy=plan.strategy,
        outcome=outcome,
        exit_code=ended.exit_code,
        steps_asked=steps,
        steps_done=metrics.last_step,
        wall_seconds=ended.wall_seconds,
        comparisons=comparisons(plan, measured) if metrics.steps else (),
        data_wait_fraction=measured.data_wait_fraction,
        communication_fraction=measured.communication_fraction,
        straggler_fraction=measured.straggler_fraction,
        energy_joules_per_thousand_samples=measured.energy.joules_per_thousand_samples,
        energy_origin=measured.energy.origin,
        carbon_grams_per_thousand_samples=_carbon(plan, measured.energy.joules_per_thousand_samples),
        loss_first=measured.loss_first,
        loss_last=measured.loss_last,
        loss_falling=measured.loss_falling,
        tokens_per_second=measured.tokens_per_second,
        proxy=proxy,
        cause=cause,
        log_path=str(log_path),
        notes=tuple(notes),
        step_seconds=tuple(column(metrics.steps, "step_seconds")),
    )


def _carbon(plan: Plan, joules: float | None) -> float | None:
    grid = plan.workload.grid_carbon_grams_per_kilowatt_hour
    return None if joules is None or grid is None else carbon_grams(joules, grid)


def _log(path: Path) -> str:
    """Return the log, its first and last parts when it is long."""
    with contextlib.suppress(OSError), path.open("rb") as stream:
        size = path.stat().st_size
        if size <= MAX_LOG_BYTES:
            return stream.read().decode("utf-8", errors="replace")
        head = stream.read(MAX_LOG_BYTES // 2)
        stream.seek(size - MAX_LOG_BYTES // 2)
        return (head + b"\n...\n" + stream.read()).decode("utf-8", errors="replace")
    return ""


def _memory_limit(profile: ClusterProfile) -> float | None:
    memory = profile.nodes[0].host_memory
    return memory.limit_bytes.value or memory.total_bytes.value

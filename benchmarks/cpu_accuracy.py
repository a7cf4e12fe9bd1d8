"""Step time and memory of real runs on this machine's CPUs: predicted against measured, after one calibrating run.

For every strategy one run calibrates; then other micro-batches, accumulation, model sizes, number formats and
activation checkpointing are predicted and run. Everything goes through the tool: probe, recommend, run-config. By the
clock, so the machine must be quiet; about six minutes on two cores.

    python benchmarks/cpu_accuracy.py [--output DIR]

Finished runs are kept in DIR and not repeated; DIR/results.json and DIR/results.md are rewritten after each.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from stratadvisor import pipeline, planner
from stratadvisor.catalog.sizes import shape_for_size
from stratadvisor.errors import StratadvisorError
from stratadvisor.store import read_profile

STEPS = 12
SEQUENCE_LENGTH = 256


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run: two numbers of sequences decide micro-batch and accumulation."""

    strategy: str
    parameters: float = 1e7
    global_batch_size: int = 8
    micro_batch_size: int = 4
    precision: str = "fp32"
    checkpointing: str = "none"

    @property
    def name(self) -> str:
        """A name for a folder."""
        size = f"{self.parameters / 1e6:.0f}M"
        parts = (self.strategy, size, f"b{self.global_batch_size}", f"m{self.micro_batch_size}", self.precision)
        return "-".join((*parts, self.checkpointing))


CALIBRATING = tuple(Job(strategy=name) for name in ("ddp", "zero1", "zero2", "zero3", "fsdp2"))
PREDICTED = (
    Job(strategy="ddp", global_batch_size=16, micro_batch_size=2),
    Job(strategy="ddp", parameters=3e7, global_batch_size=4, micro_batch_size=2),
    Job(strategy="ddp", checkpointing="full"),
    Job(strategy="ddp", precision="bf16"),
    Job(strategy="zero1", parameters=3e7, global_batch_size=4, micro_batch_size=2),
    Job(strategy="zero2", global_batch_size=16, micro_batch_size=2),
    Job(strategy="zero3", parameters=3e7, global_batch_size=4, micro_batch_size=2),
    Job(strategy="zero3", checkpointing="full"),
    Job(strategy="fsdp2", parameters=3e7, global_batch_size=4, micro_batch_size=2),
)


@contextmanager
def narrowed(job: Job) -> Iterator[None]:
    """Leave the planner only the micro-batch and the checkpointing that the job asks for."""
    everything = planner.enumerate_candidates

    def some(*given: Any, **named: Any) -> Any:
        return tuple(
            c
            for c in everything(*given, **named)
            if c.layout.activation_checkpointing == job.checkpointing
            and c.layout.micro_batch_size == job.micro_batch_size
            and c.layout.world_size > 1
        )

    with patch.object(planner, "enumerate_candidates", some):
        yield


class Neighbours:
    """How much of the machine others took while a run went on: their processor time over all there was (Linux)."""

    def __init__(self) -> None:
        self._busy, self._own, self._begin = self._now()

    @staticmethod
    def _now() -> tuple[float, float, float]:
        fields = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        busy = sum(fields) - fields[3] - fields[4]  # all but idle and iowait; stolen time counts as taken by others
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        own = sum(u.ru_utime + u.ru_stime for u in used)
        return busy / os.sysconf("SC_CLK_TCK"), own, time.perf_counter()

    def share(self) -> float:
        """Return it since the start."""
        busy, own, end = self._now()
        taken = max(0.0, (busy - self._busy) - (own - self._own))
        return taken / ((end - self._begin) * (os.cpu_count() or 1))


def run(job: Job, profile: Path, folder: Path) -> dict[str, Any]:
    """Plan with ``profile``, run, and return predicted and measured; the profile keeps the calibration."""
    workload = pipeline.make_workload(
        shape_for_size(job.parameters),
        sequence_length=SEQUENCE_LENGTH,
        global_batch_size=job.global_batch_size,
        precision=job.precision,
        total_tokens="50M",
    )
    with narrowed(job):
        plan = pipeline.recommend(read_profile(profile), workload, strategy=job.strategy)
    shutil.rmtree(folder, ignore_errors=True)
    pipeline.write_bundle(plan, folder)
    neighbours = Neighbours() if Path("/proc/stat").exists() else None
    outcome = pipeline.run_config(folder, steps=STEPS, cluster=profile, time_limit_seconds=300.0)
    result = outcome.results[0]
    rows = {c.quantity: c for c in result.comparisons}
    found: dict[str, Any] = {"job": job.name, "strategy": job.strategy, "outcome": result.outcome}
    for key, quantity in (("step", "step time"), ("memory", "peak memory per device")):
        row = rows.get(quantity)
        if row is not None and row.predicted is not None and row.measured is not None:
            found[key] = {
                "predicted": row.predicted.likely,
                "low": row.predicted.low,
                "high": row.predicted.high,
                "measured": row.measured,
            }
    found["terms_seconds"] = plan.plan.predicted.time_terms_seconds
    if neighbours is not None:
        found["others"] = neighbours.share()
    steady = sorted(result.step_seconds[2:])
    if len(steady) > 3:  # how quiet the machine was
        found["spread"] = (steady[-2] - steady[0]) / statistics.median(steady)
    return found


def table(results: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    lines = [
        "| run | calibrated by | predicted s | measured s | predicted / measured"
        " | uncalibrated | memory | spread | others |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    errors = []
    for entry in results.values():
        step = entry.get("step")
        if step is None:
            lines.append(f"| {entry['job']} | | | {entry['outcome']} | | | | | |")
            continue
        ratio = step["predicted"] / step["measured"]
        before = ratio / entry.get("time_ratio", 1.0)
        memory = entry.get("memory")
        by = entry.get("calibrated_by", "")
        if by:
            errors.append(abs(ratio - 1))
        cells = (
            entry["job"],
            by or "calibrates",
            f"{step['predicted']:.3f}",
            f"{step['measured']:.3f}",
            f"{ratio:.2f}",
            f"{before:.2f}",
            f"{memory['predicted'] / memory['measured']:.2f}" if memory else "",
            f"{entry['spread']:.0%}" if "spread" in entry else "",
            f"{entry['others']:.0%}" if "others" in entry else "",
        )
        lines.append(f"| {' | '.join(cells)} |")
    if errors:
        within = sum(e <= 0.10 for e in errors)
        lines += [
            "",
            f"{within} of {len(errors)} predicted within 10 %; mean error {statistics.mean(errors):.1%},"
            f" largest {max(errors):.1%}. Memory is predicted / measured, calibrated too; spread is the range of the"
            " steps over their median, and others is what other programs took of the processors: with more than a few"
            " percent of either the machine was not quiet and the times say little.",
        ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("cpu-accuracy"), metavar="DIR")
    folder: Path = parser.parse_args().output.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("PYTHON", sys.executable)
    probed = folder / "cluster.json"
    if not probed.exists():
        subprocess.run([sys.executable, "-m", "stratadvisor", "probe", "--output", str(probed)], check=True)
    kept = folder / "results.json"
    results: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    for first in CALIBRATING:
        profile = folder / f"calibrated-{first.strategy}.json"
        for job in (first, *(j for j in PREDICTED if j.strategy == first.strategy)):
            if results.get(job.name, {}).get("outcome") == "completed":
                continue
            used = profile
            if job is first:
                shutil.copyfile(probed, profile)
            else:  # what this run would add must not reach the next
                used = folder / "thrown-away.json"
                shutil.copyfile(profile, used)
            try:
                entry = run(job, used, folder / job.name)
            except StratadvisorError as problem:
                entry = {"job": job.name, "strategy": job.strategy, "outcome": str(problem)}
            if job is not first:
                entry["calibrated_by"] = first.name
                ratios = [c.time_ratio for c in read_profile(profile).calibrations if c.strategy == job.strategy]
                entry["time_ratio"] = ratios[-1] if ratios else 1.0
            results[job.name] = entry
            kept.write_text(json.dumps(results, indent=2) + "\n")
            (folder / "results.md").write_text(table(results))
            print(entry["job"], entry["outcome"], entry.get("step"), file=sys.stderr, flush=True)
    print(table(results))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

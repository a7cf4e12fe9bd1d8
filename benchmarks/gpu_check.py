"""Everything that needs a GPU, in one go: probe, recommend, a real run, predicted beside measured. One result file.

    python benchmarks/gpu_check.py [--result gpu_check.json] [--model-size 350M] [--minutes 8]

Each step is the command a user would type, in a process of its own with a time limit, and a step that fails is
written down and the next one runs. ``--allow-cpu`` tries the script itself on a machine without a GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

STRATEGIES = ("single", "ddp", "fsdp2", "zero2", "diloco")
PEAK_SHARE = (0.30, 1.10)
"""Measured matrix rate over published peak; outside of this the measurement or the catalog is wrong."""

NEEDED = (
    "memory_total_bytes",
    "memory_free_bytes",
    "memory_bandwidth_bytes_per_second",
    "host_to_device_bytes_per_second",
    "device_to_host_bytes_per_second",
)
"""Readings that every GPU must have."""


def run(arguments: list[str], limit_seconds: float) -> dict[str, Any]:
    """Run one command of the tool and return its exit code, output, last errors and time."""
    begin = time.monotonic()
    command = [sys.executable, "-m", "stratadvisor", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=max(1.0, limit_seconds), check=False)
        code, out, errors = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired:
        code, out, errors = None, "", f"no end within {limit_seconds:.0f} s"
    step = {
        "command": " ".join(["stratadvisor", *arguments]),
        "exit_code": code,
        "seconds": round(time.monotonic() - begin, 1),
        "errors": errors.splitlines()[-15:],
    }
    try:
        step["result"] = json.loads(out)
    except json.JSONDecodeError:
        step["output"] = out.splitlines()[-15:]
    return step


def check_probe(profile: dict[str, Any], allow_cpu: bool) -> list[str]:
    """Return what is wrong with a profile of a machine with GPUs, one sentence each."""
    from stratadvisor.catalog import devices as catalog

    wrong = [
        f"sub-probe {o['probe']}: {o['status']}: {o['reason']}"
        for o in profile["observations"]
        if o["status"] in ("failed", "timed_out", "denied")
    ]
    devices = profile["nodes"][0]["devices"]
    if not allow_cpu and not any(device["kind"] in ("cuda", "rocm") for device in devices):
        wrong.append("no GPU was found")
    for device in devices:
        if device["kind"] == "cpu":
            continue
        name = f"device {device['index']} ({device['name']})"
        spec = catalog.lookup(device["catalog_key"] or device["name"])
        if spec is None:
            wrong.append(f"{name} is not in the catalog")
        wrong += [f"{name} has no {field}: {device[field]['detail']}" for field in NEEDED if not device[field]["value"]]
        for precision, reading in device["matmul_flops_per_second"].items():
            peak = spec.peak_flops_per_second.get(precision) if spec is not None else None
            share = reading["value"] / peak if reading["value"] and peak else None
            if share is not None and not PEAK_SHARE[0] <= share <= PEAK_SHARE[1]:
                wrong.append(f"{name}: {precision} products reach {share:.0%} of the published peak")
    return wrong


def summary(result: dict[str, Any]) -> list[str]:
    """Return predicted beside measured, a line per quantity."""
    lines = []
    for entry in result.get("results", ()):
        lines.append(f"  {entry['strategy']}: {entry['outcome']}, loss {entry['loss_first']} -> {entry['loss_last']}")
        for comparison in entry["comparisons"]:
            predicted, measured = comparison["predicted"], comparison["measured"]
            if predicted is not None and measured is not None:
                lines.append(
                    f"    {comparison['quantity']}: predicted {predicted['likely']:.4g} "
                    f"[{predicted['low']:.4g}, {predicted['high']:.4g}], measured {measured:.4g} {comparison['unit']}"
                )
    return lines


def main() -> int:
    """Run all steps and write the result; 0 when nothing was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--result", type=Path, default=Path("gpu_check.json"))
    parser.add_argument("--model-size", default="350M")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--strategies", nargs="*", default=list(STRATEGIES))
    parser.add_argument("--allow-cpu", action="store_true")
    options = parser.parse_args()
    end = time.monotonic() + options.minutes * 60
    report: dict[str, Any] = {"steps": [], "wrong": []}
    with tempfile.TemporaryDirectory(prefix="stratadvisor-gpu-check-") as folder:
        profile_file = Path(folder) / "cluster.json"
        probe = run(["probe", "--json", "--output", str(profile_file)], min(120.0, options.minutes * 60))
        report["steps"].append(probe)
        if probe["exit_code"] != 0 or "result" not in probe:
            report["wrong"].append(f"probe ended with {probe['exit_code']}: {probe['errors'][-1:]}")
        else:
            report["wrong"] += check_probe(probe["result"], options.allow_cpu)
            for strategy in options.strategies:
                _try_strategy(report, strategy, profile_file, Path(folder) / strategy, options, end)
    options.result.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for line in report["wrong"]:
        print(f"WRONG {line}")
    print(f"{len(report['steps'])} steps, {len(report['wrong'])} things wrong, written to {options.result}")
    return 1 if report["wrong"] else 0


def _try_strategy(
    report: dict[str, Any], strategy: str, profile: Path, bundle: Path, options: argparse.Namespace, end: float
) -> None:
    left = end - time.monotonic()
    if left < 30:
        report["wrong"].append(f"{strategy} was not tried: the time was used up")
        return
    asked = ["recommend", "--model-size", options.model_size, "--cluster", str(profile), "--strategy", strategy]
    plan = run([*asked, "--seq-len", "1024", "--json", "--output", str(bundle)], min(60.0, left))
    report["steps"].append(plan)
    if plan["exit_code"] == 6:  # NoFeasiblePlanError: one card cannot run what needs several
        return
    if plan["exit_code"] != 0:
        report["wrong"].append(f"recommend --strategy {strategy} ended with {plan['exit_code']}: {plan['errors'][-2:]}")
        return
    limit = min(150.0, end - time.monotonic())
    trial = run(["run-config", str(bundle), "--steps", str(options.steps), "--json"], limit)
    report["steps"].append(trial)
    if trial["exit_code"] not in (0, 9):  # 9: it ran, and the prediction was off; that is a result
        report["wrong"].append(f"run-config of {strategy} ended with {trial['exit_code']}: {trial['errors'][-2:]}")
    for line in summary(trial.get("result", {})):
        print(line)


if __name__ == "__main__":
    raise SystemExit(main())

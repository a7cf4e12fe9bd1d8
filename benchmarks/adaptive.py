"""Adaptive control against fixed choices while the cluster changes: time to a loss, on hosts of the network lab.

    sudo python -m benchmarks.adaptive [--repeats 3] [--seconds 100] [--target 2.45] [--policy NAME ...]

Two hosts train a byte-level transformer on this project's own documents and code. After ``--slowed`` seconds of
training the second host is cut to a third of its processor, after ``--cut`` seconds its link from 1 Gb/s to 50 Mb/s.
Every policy gets the same cluster and the same moments. The loss is the mean of the last steps' training losses, each
on samples not seen before; the time is this machine's, read as the log grows. Needs root (see docs/lab.md).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import lab
from stratadvisor.runtime import adaptive_engine, data, ddp, diloco, model
from stratadvisor.runtime.program import main as train

ROOT = Path(__file__).resolve().parents[1]
PROCESSORS = 0.6
RATE = "1Gb/s"
CUT_BYTES_PER_SECOND = 50e6 / 8
BATCH = 16
SMOOTHED_STEPS = 24
POLL_SECONDS = 0.1
LOADED = (adaptive_engine, ddp, diloco)
"""Engines, imported before ranks are forked, so that none begins later than another."""
SHAPE = {
    "name": "bytes",
    "num_layers": 4,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "ffn_hidden_size": 384,
    "vocab_size": 256,
    "max_sequence_length": 64,
}
PLAIN = {"outer_learning_rate": 1.0, "outer_momentum": 0.0}


def groups(first: int, second: int) -> list[dict[str, Any]]:
    return [
        {
            "num_nodes": 1,
            "devices_per_node": 1,
            "micro_batch_size": BATCH,
            "gradient_accumulation_steps": 1,
            "batch_per_device": share,
        }
        for share in (first, second)
    ]


EVEN, UNEVEN = groups(8, 8), groups(12, 4)
POLICIES: dict[str, dict[str, Any]] = {
    "adaptive": {"engine": "adaptive", "groups": EVEN},
    "ddp 8/8": {"engine": "ddp", "groups": EVEN},
    "ddp 12/4": {"engine": "ddp", "groups": UNEVEN},
    "local 8 8/8": {"engine": "diloco", "groups": EVEN, "sync_interval_steps": 8, "settings": PLAIN},
    "local 8 12/4": {"engine": "diloco", "groups": UNEVEN, "sync_interval_steps": 8, "settings": PLAIN},
    "local 32 12/4": {"engine": "diloco", "groups": UNEVEN, "sync_interval_steps": 32, "settings": PLAIN},
    "diloco 32 8/8": {"engine": "diloco", "groups": EVEN, "sync_interval_steps": 32},
}


def text(folder: Path) -> Path:
    """Return a file with this project's documents and code."""
    path = folder / "text.txt"
    parts = [
        ROOT / "LICENSE",
        ROOT / "README.md",
        *sorted(ROOT.glob("docs/*.md")),
        *sorted(ROOT.glob("stratadvisor/**/*.py")),
    ]
    path.write_bytes(b"\n".join(part.read_bytes() for part in parts))
    return path


def rank_process(c: Any, rank: Any, bundle: Path, corpus: Path) -> None:
    """Be one rank, in a forked child; does not return."""
    code = 1
    try:
        c.place(rank.host.name).enter()
        log = os.open(bundle / f"rank-{rank.rank}.log", os.O_WRONLY | os.O_CREAT, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(c.rank_environment(rank))
        torch.set_num_threads(1)
        code = train(model.build, data.token_dataset, bundle, ["--data", str(corpus), "--steps", "1000000"])
    finally:
        os._exit(code)


def run(
    name: str, chosen: argparse.Namespace, corpus: Path, bundle: Path
) -> tuple[list[tuple[float, float]], list[str]]:
    """Return (seconds of training, smoothed loss) as they came, and the changes told."""
    config = {"strategy": name, "model": SHAPE, "sequence_length": 64, "learning_rate": 2e-3, "seed": 5}
    (bundle / "train_config.json").write_text(json.dumps(config | POLICIES[name]))
    metrics = bundle / "run" / "metrics.jsonl"
    spec = lab.Spec(hosts=tuple(lab.spec.host(h, {"rate": RATE, "cpu": PROCESSORS}) for h in ("h1", "h2")))
    curve: list[tuple[float, float]] = []
    changes: list[str] = []
    losses: list[float] = []
    with lab.cluster(spec) as c:
        children = []
        for rank in c.ranks():
            child = os.fork()
            if child == 0:
                rank_process(c, rank, bundle, corpus)
            children.append(child)
        begun = 0.0
        read, done = 0, {"slowed": False, "cut": False}
        waited_from = time.monotonic()
        while True:
            time.sleep(POLL_SECONDS)
            now = time.monotonic()
            lines = metrics.read_text().splitlines()[read:] if metrics.is_file() else []
            for line in lines:
                event = json.loads(line)
                if event["event"] == "step":
                    begun = begun or now
                    losses.append(event["loss"])
                    curve.append((now - begun, statistics.fmean(losses[-SMOOTHED_STEPS:])))
                elif event["event"] == "change":
                    changes.append(f"{now - begun:.0f} s: {event['reason']}")
            read += len(lines)
            if not begun and now - waited_from > 300:
                raise SystemExit(f"{name} did not start: {(bundle / 'rank-0.log').read_text()[-2000:]}")
            elapsed = now - begun if begun else 0.0
            if elapsed > chosen.slowed and not done["slowed"]:
                c.set_cpu("h2", PROCESSORS / 3)
                done["slowed"] = True
            if elapsed > chosen.cut and not done["cut"]:
                c.set_rate("h2", CUT_BYTES_PER_SECOND, CUT_BYTES_PER_SECOND)
                done["cut"] = True
            if elapsed > chosen.seconds:
                break
            if any(os.waitpid(child, os.WNOHANG)[0] for child in children):
                raise SystemExit(f"a rank of {name} ended: {(bundle / 'rank-0.log').read_text()[-2000:]}")
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return curve, changes


def reached(curve: Sequence[tuple[float, float]], target: float) -> float | None:
    """Return when the smoothed loss first was at the target; the first steps smooth too little."""
    return next((when for when, loss in curve[SMOOTHED_STEPS:] if loss <= target), None)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--slowed", type=float, default=20.0)
    parser.add_argument("--cut", type=float, default=45.0)
    parser.add_argument("--target", type=float, nargs="+", default=[2.5])
    parser.add_argument("--policy", nargs="+", default=list(POLICIES), choices=list(POLICIES))
    parser.add_argument("--out", type=Path, default=None, help="Keep the curves here (JSON).")
    chosen = parser.parse_args()
    if reason := lab.unavailable():
        raise SystemExit(reason)
    found: dict[str, list[list[tuple[float, float]]]] = {name: [] for name in chosen.policy}
    with tempfile.TemporaryDirectory() as folder:
        corpus = text(Path(folder))
        print(f"{corpus.stat().st_size / 1e6:.2f} MB of text, {chosen.seconds:g} s for each run", flush=True)
        for repeat in range(chosen.repeats):
            for name in chosen.policy:
                bundle = Path(folder) / f"{name.replace(' ', '-').replace('/', '-')}-{repeat}"
                bundle.mkdir()
                curve, changes = run(name, chosen, corpus, bundle)
                found[name].append(curve)
                print(f"{name:<15} {len(curve)} steps, loss {curve[-1][1]:.3f} at {curve[-1][0]:.0f} s", flush=True)
                for change in changes:
                    print(f"    {change}", flush=True)
                if chosen.out is not None:
                    chosen.out.write_text(json.dumps(found))
    for target in chosen.target:
        print(f"seconds to a loss of {target:g}, every run, and the loss at the end")
        for name, curves in found.items():
            times = [reached(curve, target) for curve in curves]
            shown = ", ".join("not reached" if t is None else f"{t:.0f}" for t in times)
            ends = ", ".join(f"{curve[-1][1]:.3f}" for curve in curves)
            print(f"  {name:<15} {shown:<24} {ends}")


if __name__ == "__main__":
    main()

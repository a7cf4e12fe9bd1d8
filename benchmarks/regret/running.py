"""Run one training configuration on a cluster of the lab until the loss is reached, with the runtime of the bundles."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.regret.forked import Child, fork
from benchmarks.regret.tasks import WINDOW_SEQUENCES
from lab.cluster import Cluster
from lab.spec import Host

START_SECONDS = 60.0
"""Joining, building the model, reading the text: more than this is a fault."""
STEPS_FACTOR = 3
"""A run ends after so many times the planned steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended."""

    seconds: float | None
    """Training time to the target loss, the first step not counted; None when it was not reached."""
    steps: int
    """Steps to the target, or all that were made."""
    step_seconds: float
    """Mean after the first."""
    last_loss: float
    """Mean over the window at the end."""
    reason: str
    """reached, too slow (the limit passed), not reached (all steps made), failed."""
    said: str = ""
    """What a failed run printed."""


def _train(config: Path, data: Path, folder: Path, steps: int) -> int:
    """Do what a bundle's train.py does."""
    from stratadvisor.runtime import data as data_module
    from stratadvisor.runtime import loop, model, program, telemetry

    def stamp(self: Any, event: dict[str, Any]) -> None:
        original(self, {**event, "clock": time.monotonic()})

    # measuring the loader is a pause once in every run, as long as some of these runs
    loop.Loop._consider_loader = lambda *_: None  # type: ignore[method-assign]  # noqa: SLF001
    original = telemetry.Telemetry._write  # noqa: SLF001
    telemetry.Telemetry._write = stamp  # type: ignore[method-assign]  # noqa: SLF001
    arguments = ["--config", str(config), "--data", str(data), "--run-dir", str(folder), "--steps", str(steps)]
    return program.main(model.build, data_module.token_dataset, folder, arguments)


BY_CLOCK = ("diloco", "hierarchical", "async_sgd")
"""Engines whose ranks do not step together; of the others the longest rank's step seconds add up to the time."""
TOGETHER_SECONDS = 0.002
"""Lines of steps between two exchanges come in a row, closer than any step is long."""


class Curve:
    """Loss over time, from the lines of metrics.jsonl as they come."""

    def __init__(self, engine: str, target_loss: float) -> None:
        self.engine, self.target_loss = engine, target_loss
        self.begin = 0.0
        """Clock at the start event: everything is built, the first step comes."""
        self.events: list[dict[str, Any]] = []
        self._checked = 0
        self._reached: int | None = None

    def add(self, event: dict[str, Any]) -> None:
        """Take a line."""
        if event["event"] == "start":
            self.begin = event["clock"]
        elif event["event"] == "step":
            self.events.append(event)

    def seconds(self) -> list[float]:
        """Return the time of the end of each step; steps between two exchanges share their time evenly."""
        clocks = [event["clock"] - self.begin for event in self.events]
        if self.engine not in BY_CLOCK:
            return list(itertools.accumulate(float(event["step_seconds"]) for event in self.events))
        times: list[float] = []
        before = 0.0
        while len(times) < len(clocks):
            first = len(times)
            last = first
            while last + 1 < len(clocks) and clocks[last + 1] - clocks[last] < TOGETHER_SECONDS:
                last += 1
            many = last - first + 1
            times += [before + (clocks[last] - before) * (i + 1) / many for i in range(many)]
            before = clocks[last]
        return times

    def window_loss(self, end: int) -> float | None:
        """Return the mean loss over the last WINDOW_SEQUENCES sequences up to step ``end``; None when too few."""
        total, weight = 0.0, 0
        for event in reversed(self.events[:end]):
            total += float(event["loss"]) * int(event["samples"])
            weight += int(event["samples"])
            if weight >= WINDOW_SEQUENCES:
                return total / weight
        return None

    def reached(self) -> int | None:
        """Return the number of steps after which the loss was reached."""
        while self._reached is None and self._checked < len(self.events):
            self._checked += 1
            loss = self.window_loss(self._checked)
            if loss is not None and loss <= self.target_loss:
                self._reached = self._checked
        return self._reached


def run(
    cluster: Cluster,
    config: dict[str, Any],
    hostnames: list[str],
    *,
    data: Path,
    folder: Path,
    target_loss: float,
    total_steps: int,
    limit_seconds: float,
    tick: Callable[[], None],
) -> Outcome:
    """Start a rank for every device of the plan, watch the loss, and end the run when it is reached or hopeless."""
    folder.mkdir(parents=True, exist_ok=True)
    metrics = folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    path = folder / "train_config.json"
    path.write_text(json.dumps(config))
    hosts = [cluster.host(name) for name in hostnames]
    per_host = {
        group_host: group["devices_per_node"] for group in config["groups"] for group_host in group["hostnames"]
    }
    world_size = sum(per_host[host.name] for host in hosts)
    for host in hosts:
        _leave_idle(cluster, host, per_host[host.name])
    children: list[Child] = []
    logs: list[Path] = []
    steps = STEPS_FACTOR * total_steps
    for node_rank, host in enumerate(hosts):
        for local_rank in range(per_host[host.name]):
            rank = len(children)
            environment = {
                "RANK": str(rank),
                "LOCAL_RANK": str(local_rank),
                "WORLD_SIZE": str(world_size),
                "LOCAL_WORLD_SIZE": str(per_host[host.name]),
                "GROUP_RANK": str(node_rank),
                "MASTER_ADDR": cluster.addresses[hosts[0].name],
                "MASTER_PORT": "29500",
                "GLOO_SOCKET_IFNAME": "lo" if len(hosts) == 1 else cluster.device,
                "OMP_NUM_THREADS": "1",
            }
            logs.append(folder / f"rank-{rank}.log")
            logs[-1].write_text("")
            action = lambda: _train(path, data, folder, steps)  # noqa: E731
            children.append(fork(action, cluster.place(host.name), environment, logs[-1]))
    curve = Curve(config["engine"], target_loss)
    reason, end = "", time.monotonic() + START_SECONDS
    position = 0
    try:
        while not reason:
            tick()
            time.sleep(0.02)
            position = _read(metrics, position, curve)
            now = time.monotonic()
            if curve.reached() is not None:
                reason = "reached"
            elif any(child.poll() for child in children):
                reason = "failed"
            elif all(child.poll() == 0 for child in children):
                _read(metrics, position, curve)
                reason = "reached" if curve.reached() is not None else "not reached"
            elif curve.begin and now - curve.begin > limit_seconds:
                reason = "too slow"
            elif not curve.begin and now > end:
                reason = "failed"
    finally:
        for child in children:
            child.kill()
        for host in hosts:
            _leave_idle(cluster, host, host.ranks)
    return _outcome(curve, reason, logs)


def _leave_idle(cluster: Cluster, host: Host, used: int) -> None:
    """Let ranks that a plan leaves idle keep their part of the host's processors: a rank stands for a device."""
    if host.cpu is not None and host.ranks > 1:
        cluster.set_cpu(host.name, host.cpu * used / host.ranks)


def _read(metrics: Path, position: int, curve: Curve) -> int:
    """Take the lines that are new and whole; return where the next begin."""
    if not metrics.exists():
        return position
    with metrics.open("rb") as stream:
        stream.seek(position)
        text = stream.read()
    whole = text[: text.rfind(b"\n") + 1]
    for line in whole.splitlines():
        curve.add(json.loads(line))
    return position + len(whole)


def _outcome(curve: Curve, reason: str, logs: list[Path]) -> Outcome:
    reached, times = curve.reached(), curve.seconds()
    steps = reached if reached is not None else len(times)
    said = ""
    if reason == "failed":
        said = " | ".join(log.read_text(errors="replace").strip()[-300:] for log in logs)
    loss = curve.window_loss(steps) if steps else None
    return Outcome(
        seconds=None if reached is None else times[reached - 1],
        steps=steps,
        step_seconds=(times[steps - 1] - times[0]) / (steps - 1) if steps > 1 else float("nan"),
        last_loss=float("nan") if loss is None else loss,
        reason=reason,
        said=" ".join(said.split()),
    )

"""Three contests between strategies, on clusters where one of them should win: python -m benchmarks.regret contests.

Uneven against equal shares at speeds of one to two; DiLoCo against DDP over 50 Mb/s; asynchronous SGD with delay
compensation against without and against synchronous, where the speed of one host keeps changing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lab
from benchmarks.regret import measuring, plans, probing, records, running
from benchmarks.regret.clusters import CASES, Case
from benchmarks.regret.tasks import TASKS, Task, text
from stratadvisor import pipeline, planner, store
from stratadvisor.planner import ranking

FIELDS = ("when", "commit", "contest", "cluster", "task", "way", "repeat", "seconds", "steps", "step_seconds", "reason")
LIMIT_SECONDS = 40.0
LONG = replace(TASKS[0], total_steps=300, target_loss=1.75)
"""Long enough for DiLoCo, which the planner offers from 30 exchanges on."""
CONTESTS = {
    "uneven shares at 1 to 2": ("one-half-unshaped", ("ddp", "uneven_ddp"), TASKS[0]),
    "asynchronous, changing speed": (
        "two-changing-1G",
        ("ddp", "async_sgd", "async_sgd without compensation"),
        TASKS[0],
    ),
    "DiLoCo over 50 Mb/s": ("two-equal-50M", ("ddp", "diloco"), LONG),
}


def run(settings: measuring.Settings) -> None:
    """Run every contest, its ways in turn, ``settings.repeats`` times; finished runs are not repeated."""
    table = settings.tables / "contests.csv"
    data = settings.work / "text"
    settings.work.mkdir(parents=True, exist_ok=True)
    data.write_bytes(text())
    for contest, (name, ways, task) in CONTESTS.items():
        case = next(c for c in CASES if c.name == name)
        folder = settings.work / name
        folder.mkdir(parents=True, exist_ok=True)
        with lab.cluster(case.spec) as cluster:
            tick = measuring.ticker(cluster, case)
            if not (folder / "cluster.json").exists():
                probing.probe(cluster, folder, quick=settings.short, tick=tick)
            configs = dict(_configurations(folder / "cluster.json", task, settings.work, ways))
            for repeat in range(1, settings.repeats + 1):
                for way in ways:
                    done = [r for r in records.read(table) if (r["contest"], r["way"]) == (contest, way)]
                    if any(int(r["repeat"]) == repeat for r in done) or time.monotonic() > settings.until:
                        continue
                    line = _one(cluster, case, task, configs[way], data, tick)
                    line |= {"contest": contest, "way": way, "repeat": repeat, "commit": settings.commit}
                    records.append(table, FIELDS, line)
                    measuring.say(f"{contest}: {way} ({repeat}): {line['seconds'] or line['reason']}")


def _configurations(
    profile: Path, task: Task, work_folder: Path, ways: tuple[str, ...]
) -> Iterator[tuple[str, tuple[dict[str, Any], list[str]]]]:
    """Yield each way with its training configuration and hosts: the best candidate over all hosts."""
    from stratadvisor.derive import cluster as derive_cluster

    known = store.read_profile(profile)
    work = plans.workload(task, work_folder / "models")
    view = derive_cluster.planning_view(known)
    everything = planner.enumerate_candidates(view.cluster, work)
    for way in ways:
        strategy = way.split()[0]
        mine = [c for c in everything if c.strategy == strategy and c.num_devices == view.cluster.num_devices]
        best = ranking.best(mine, view.cluster, "time")
        assert best is not None
        with patch.object(planner, "enumerate_candidates", lambda *_, chosen=best, **__: (chosen,)):
            plan = pipeline.recommend(known, work, strategy=strategy).plan
        choice = plans.Choice(plan=plan, config=plans.configuration(plan))
        if "without" in way:
            choice.config["settings"] |= {"delay_compensation": 0.0, "delay_compensation_adaptive": False}
        yield way, (choice.config, choice.hostnames)


def _one(
    cluster: lab.Cluster, case: Case, task: Task, how: tuple[dict[str, Any], list[str]], data: Path, tick: Any
) -> dict[str, Any]:
    outcome = running.run(
        cluster,
        how[0],
        how[1],
        data=data,
        folder=data.parent / case.name / "run",
        target_loss=task.target_loss,
        total_steps=task.total_steps,
        limit_seconds=LIMIT_SECONDS,
        tick=tick,
    )
    return {
        "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cluster": case.name,
        "task": task.name,
        "seconds": "" if outcome.seconds is None else f"{outcome.seconds:.3f}",
        "steps": outcome.steps,
        "step_seconds": f"{outcome.step_seconds:.5f}",
        "reason": outcome.reason,
    }

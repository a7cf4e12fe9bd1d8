"""What is run on a cluster: the recommendation, what the flowchart as commonly written takes, and all else there is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.regret.tasks import LEARNING_RATE, Task
from stratadvisor import pipeline, planner
from stratadvisor.emit.train_config import train_config
from stratadvisor.errors import StratadvisorError
from stratadvisor.planner import ranking
from stratadvisor.schema.layout import Candidate
from stratadvisor.schema.plan import Plan
from stratadvisor.schema.profile import ClusterProfile
from stratadvisor.schema.workload import Workload
from stratadvisor.strategies import STRATEGIES

FLOWCHART = Path(__file__).with_name("flowchart")
LEFT_OUT = {
    "zero1": "DeepSpeed",
    "zero2": "DeepSpeed",
    "zero3": "DeepSpeed",
    "zero_offload": "DeepSpeed",
    "fsdp2": "divides",
    "hsdp": "divides",
    "tp_fsdp2": "divides",
    "megatron_3d": "another program",
}
"""Strategies that are not run, and why: they divide what fits whole, which adds communication to DDP's (FSDP2 took 1.6
to 3 times DDP's time on the clusters where it was tried). DeepSpeed would compile for a minute on every host."""


@dataclass(slots=True)
class Choice:
    """One way to train that is run: a training configuration, and who asked for it."""

    plan: Plan
    config: dict[str, Any]
    roles: set[str] = field(default_factory=set)
    """recommended, flowchart, plain; empty for the other candidates."""

    @property
    def key(self) -> str:
        """A short name that is the same for the same configuration."""
        text = json.dumps(self.config, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    @property
    def hostnames(self) -> list[str]:
        """The hosts it uses, in the order of ranks."""
        return [name for group in self.plan.groups for name in group.hostnames]

    @property
    def label(self) -> str:
        """Strategy, and the shares of the batch."""
        shares = ":".join(str(g.batch_per_device) for g in self.plan.groups for _ in g.hostnames)
        interval = self.plan.synchronization.sync_interval_steps
        return f"{self.plan.strategy} {shares}" + (f" every {interval}" if interval > 1 else "")


def workload(task: Task, folder: Path) -> Workload:
    """Return the workload, as the command line's options would give it."""
    shape = pipeline.resolve_model(model_size=None, model=str(task.write_config(folder)))
    return pipeline.make_workload(
        shape,
        sequence_length=task.sequence_length,
        global_batch_size=task.global_batch_size,
        precision="fp32",
        total_tokens=str(task.total_tokens),
    )


def configuration(plan: Plan) -> dict[str, Any]:
    """Return the training configuration of a plan's bundle, with the learning rate that all runs share."""
    config: dict[str, Any] = json.loads(json.dumps(train_config(plan), default=str))
    config["learning_rate"] = LEARNING_RATE
    config["checkpoint_interval_steps"] = 0  # writing files is no part of the comparison
    return config


def choices(profile: ClusterProfile, work: Workload) -> list[Choice]:
    """Return everything to run, the recommendation first; the same configuration comes once, with all its roles."""
    found: dict[str, Choice] = {}

    def add(plan: Plan, role: str = "") -> None:
        choice = Choice(plan=plan, config=configuration(plan))
        choice = found.setdefault(choice.key, choice)
        if role:
            choice.roles.add(role)

    add(pipeline.recommend(profile, work).plan, "recommended")
    common = _common_strategy(pipeline.recommend(profile, work, overlays=(FLOWCHART,)).plan)
    per_node = {len(node.devices) for node in profile.nodes}
    if common == "hierarchical" and per_node == {1}:
        common = "ddp"  # groups of one rank that average in every step
    for candidate in _best_of_each(profile, work):
        try:
            with _only(candidate):
                plan = pipeline.recommend(profile, work, strategy=candidate.strategy).plan
        except StratadvisorError:
            continue
        whole = candidate.num_devices == _num_devices(profile)
        if whole and candidate.strategy == common:
            add(plan, "flowchart")
        add(plan, "plain" if whole and candidate.strategy == "ddp" else "")
    return list(found.values())


_COMMON = {"synchronous": "ddp", "hierarchical": "hierarchical", "asynchronous": "async_sgd"}
"""What the common flowchart means by its three answers: over all nodes, with equal shares."""


def _common_strategy(plan: Plan) -> str:
    families = [decision.sets["family"] for decision in plan.decisions if "family" in decision.sets]
    return _COMMON[str(families[-1])]


def _num_devices(profile: ClusterProfile) -> int:
    return sum(len(node.devices) for node in profile.nodes)


def _best_of_each(profile: ClusterProfile, work: Workload) -> list[Candidate]:
    """Return, for each strategy and part of the cluster, the candidate with the best prediction."""
    from stratadvisor.derive import cluster as derive_cluster

    view = derive_cluster.planning_view(profile)
    groups: dict[tuple[Any, ...], list[Candidate]] = {}
    for candidate in planner.enumerate_candidates(view.cluster, work):
        if candidate.feasible and candidate.strategy not in LEFT_OUT:
            part = tuple((s.node_class, s.num_nodes) for s in candidate.shares)
            groups.setdefault((candidate.strategy, part), []).append(candidate)
    best = [ranking.best(group, view.cluster, "time") for group in groups.values()]
    order = list(STRATEGIES)
    return sorted((c for c in best if c is not None), key=lambda c: order.index(c.strategy))


@contextmanager
def _only(candidate: Candidate) -> Iterator[None]:
    """Leave the planner this one candidate."""
    with patch.object(planner, "enumerate_candidates", lambda *_, **__: (candidate,)):
        yield

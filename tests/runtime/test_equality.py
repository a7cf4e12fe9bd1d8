"""Every exact strategy trains as one process does; what was killed goes on as if it had not been.

Ragged, padded and masked sequences, unequal shares, accumulation, batches across the ends of epochs; 50 steps.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from runtime_bundle import events, losses
from runtime_jobs import IN_STEP, LONG, NODES, STEPS, WHOLE, codes, furthest, kill, one, output, run_jobs, weights

pytestmark = pytest.mark.process
ROUNDING = 2e-5
"""Weights are near 1; sums in another order differ by 1e-7 a step."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("equal")
    unclipped = {"gradient_clip_norm": 0.0, "groups": [WHOLE]}
    plain_outer = {"outer_learning_rate": 1.0, "outer_momentum": 0.0}
    alone = one(micro_batch_size=2, gradient_accumulation_steps=4, batch_per_device=8)
    every_four = {"sync_interval_steps": 4}
    momentum = {"optimizer": "adamw", "learning_rate": 3e-3}
    run_jobs(
        folder,
        [
            {"name": "single", "ranks": 1, "config": {"engine": "single", "groups": [WHOLE]}},
            {"name": "single_unclipped", "ranks": 1, "config": {"engine": "single", **unclipped}},
            {"name": "single_adam", "ranks": 1, "config": {"engine": "single", "groups": [WHOLE], **momentum}},
            {"name": "uneven", "config": {"engine": "ddp"}},
            {"name": "fsdp2", "config": {"engine": "fsdp2", "groups": [LONG, IN_STEP]}},
            {"name": "hierarchical", "config": {"engine": "hierarchical", "settings": NODES}},
            {"name": "hierarchical_adam", "config": {"engine": "hierarchical", "settings": NODES, **momentum}},
            {"name": "diloco", "config": {"engine": "diloco", "settings": plain_outer, "gradient_clip_norm": 0.0}},
            {
                "name": "diloco_nodes",
                "config": {"engine": "diloco_nodes", "settings": NODES | plain_outer, "gradient_clip_norm": 0.0},
            },
            {"name": "async", "ranks": 1, "config": {"engine": "async_sgd", "groups": [alone]}},
            {
                "name": "async_local",
                "ranks": 1,
                "config": {"engine": "async_sgd", "groups": [alone], "settings": plain_outer, **every_four, **momentum},
            },
            {"name": "diloco_four", "config": {"engine": "diloco", **every_four, **momentum}},
            {
                "name": "async_lockstep",
                "config": {"engine": "async_sgd", "settings": {"staleness_bound": 0}, **every_four, **momentum},
            },
        ],
    )
    return folder


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("uneven", "single"),
        ("hierarchical", "single"),
        ("hierarchical_adam", "single_adam"),
        ("diloco", "single_unclipped"),
        ("diloco_nodes", "single_unclipped"),
        ("async", "single"),
        ("async_local", "single_adam"),
        ("async_lockstep", "diloco_four"),
    ],
)
def test_training_equals_one_process(runs: Path, name: str, reference: str) -> None:
    assert set(codes(runs / name)) == {0}, output(runs / name)
    assert len(losses(runs / name)) == STEPS
    assert losses(runs / name) == pytest.approx(losses(runs / reference), abs=ROUNDING)
    assert [e["tokens"] for e in events(runs / name)] == [e["tokens"] for e in events(runs / reference)]
    assert furthest(weights(runs / name), weights(runs / reference)) < ROUNDING


def test_sharded_training_equals_one_process(runs: Path) -> None:
    assert losses(runs / "fsdp2") == pytest.approx(losses(runs / "single"), abs=ROUNDING)


def test_the_references_learn_and_differ(runs: Path) -> None:
    for name in ("single", "single_unclipped", "single_adam"):
        assert losses(runs / name)[-1] < losses(runs / name)[0] - 0.1
    assert furthest(weights(runs / "single"), weights(runs / "single_unclipped")) > 100 * ROUNDING
    assert len({e["tokens"] for e in events(runs / "single")}) > 5  # masks and padding: no two batches alike


KILLED: dict[str, dict[str, Any]] = {
    "ddp": {"engine": "ddp"},
    "fsdp2": {"engine": "fsdp2", "groups": [LONG, IN_STEP]},
    "hierarchical": {
        "engine": "hierarchical",
        "sync_interval_steps": 4,
        "settings": NODES | {"delay_steps": 2, "momentum": 0.9},
    },
    "diloco": {"engine": "diloco", "sync_interval_steps": 4, "settings": {"fragments": 2, "delay_steps": 1}},
    "diloco_nodes": {"engine": "diloco_nodes", "sync_interval_steps": 4, "settings": NODES | {"delay_steps": 1}},
    "async": {
        "engine": "async_sgd",
        "settings": {"staleness_bound": 0, "momentum": 0.5},
    },
    "async_local": {
        "engine": "async_sgd",
        "sync_interval_steps": 4,
        "optimizer": "adamw",
        "learning_rate": 3e-3,
        "settings": {"staleness_bound": 0},
    },
}


@pytest.fixture(scope="module")
def killed_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For each strategy a run in one go, and one killed with SIGKILL at a step drawn at random and resumed."""
    folder = tmp_path_factory.mktemp("killed")
    draw = random.Random(20261201)
    jobs: list[dict[str, Any]] = []
    for name, changes in KILLED.items():
        config = {"checkpoint_interval_steps": 4, **changes}
        jobs += [
            {"name": f"{name}-whole", "config": config, "program": "dropout"},
            {"name": name, "config": config, "program": "dropout", "events": kill(draw.randint(5, 40))},
            {"name": name, "program": "dropout", "options": ["--resume"]},
        ]
    run_jobs(folder, jobs)
    return folder


@pytest.mark.parametrize("name", KILLED)
def test_a_killed_run_goes_on_as_if_it_had_not_been(killed_runs: Path, name: str) -> None:
    whole, resumed = killed_runs / f"{name}-whole", killed_runs / name
    assert set(codes(resumed)) == {0}, output(resumed)
    found = {event["step"]: event for event in events(resumed)}  # of a step done twice the later line
    assert sorted(found) == list(range(1, STEPS + 1))
    expected = events(whole)
    for key in ("loss", "learning_rate", "tokens"):
        assert [found[step][key] for step in sorted(found)] == pytest.approx([e[key] for e in expected], abs=1e-6), key
    ends = [resumed, whole]
    if name != "fsdp2":
        assert furthest(*(weights(bundle) for bundle in ends)) < 1e-6

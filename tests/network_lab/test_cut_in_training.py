"""Training between two hosts whose cable is pulled for twenty seconds."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from runtime_bundle import environment, events, group, make_bundle

import lab

pytestmark = pytest.mark.process
SPEC = lab.uniform(2)
STEPS, CUT_SECONDS, PATIENCE_SECONDS = 400, 20.0, 240.0


@pytest.mark.parametrize("engine", ["ddp", "async_sgd"])
def test_a_network_that_is_gone_for_twenty_seconds_costs_time_and_no_step(engine: str, tmp_path: Path) -> None:
    reason = lab.unavailable(SPEC)
    if reason is not None:
        pytest.skip(reason)
    hosts = [group(num_nodes=2, devices_per_node=1)]
    bundle = make_bundle(tmp_path / "bundle", engine=engine, groups=hosts, total_steps=STEPS)
    with lab.cluster(SPEC) as cluster:
        ranks = []
        for rank in cluster.ranks():
            with (tmp_path / f"{rank.rank}.log").open("wb") as log:
                argv = [sys.executable, str(bundle / "train.py"), "--run-dir", str(bundle / "run")]
                own = environment() | cluster.rank_environment(rank)
                ranks.append(cluster.popen(rank.host.name, argv, own, stdout=log, stderr=log))
        said = [tmp_path / f"{rank}.log" for rank in range(2)]
        wait_for_steps(bundle, 10, ranks, said)
        cluster.cut("h2")
        time.sleep(CUT_SECONDS / 2)
        first = len(events(bundle))
        time.sleep(CUT_SECONDS / 2)
        if engine == "ddp":
            assert len(events(bundle)) == first < STEPS  # everybody waits
        cluster.mend("h2")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while any(process.poll() is None for process in ranks) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert [process.poll() for process in ranks] == [0, 0], [path.read_text()[-800:] for path in said]
    assert [event["step"] for event in events(bundle)] == list(range(1, STEPS + 1))


def wait_for_steps(bundle: Path, many: int, ranks: list, said: list[Path]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    path = bundle / "run" / "metrics.jsonl"
    while not path.is_file() or len(events(bundle)) < many:
        assert all(process.poll() is None for process in ranks), [p.read_text()[-800:] for p in said]
        assert time.monotonic() < deadline
        time.sleep(0.02)

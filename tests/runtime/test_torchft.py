"""DiLoCo replicas that come and go, brought together by torchft; real lighthouse, processes, kills."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from runtime_bundle import configuration, environment, events, group, make_bundle
from runtime_jobs import furthest

from stratadvisor.runtime import distributed, model
from stratadvisor.runtime.config import ConfigError, TrainingError, parse
from stratadvisor.runtime.torchft_engine import Part, TorchftEngine, own_address

try:
    from torchft.coordination import LighthouseServer
except ImportError as problem:
    ABSENT = f"torchft cannot be imported: {problem} (pip install torchft)"
else:
    ABSENT = ""
needs_torchft = pytest.mark.skipif(bool(ABSENT), reason=ABSENT)
STEPS, INTERVAL = 1200, 6  # long enough that one which starts later still meets the other
PATIENCE_SECONDS = 240


def test_replicas_read_every_item_once_between_them() -> None:
    parts = [Part(list(range(10)), replica, 3) for replica in range(3)]
    assert [len(part) for part in parts] == [3, 3, 3]
    assert sorted(part[i] for part in parts for i in range(3)) == list(range(9))


def test_the_address_is_that_of_the_way_to_the_lighthouse() -> None:
    assert own_address("http://127.0.0.1:29510") == "127.0.0.1"
    with pytest.raises(ValueError, match="HOST:PORT"):
        own_address("127.0.0.1")


def engine(**settings: object) -> TorchftEngine:
    config = parse(configuration(engine="diloco", settings={"torchft": True, **settings}))
    facts = [("host", "", 0, "")]
    context = distributed._context(config, 0, 0, torch.device("cpu"), facts, None, None)
    return TorchftEngine(config, context, model.build(config))


@pytest.mark.parametrize(
    ("replica", "lighthouse", "settings", "said"),
    [
        ("2", "", {}, "STRATADVISOR_REPLICA, a number from 0 to 1, not '2'"),
        ("", "", {}, "STRATADVISOR_REPLICA"),
        ("0", "", {"fragments": 2}, "neither compression, delay_steps nor fragments"),
        ("0", "", {}, "TORCHFT_LIGHTHOUSE" if not ABSENT else "pip install torchft"),
    ],
)
def test_what_is_missing_is_said(
    replica: str, lighthouse: str, settings: dict[str, object], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATADVISOR_REPLICA", replica)
    monkeypatch.setenv("TORCHFT_LIGHTHOUSE", lighthouse)
    with pytest.raises(ConfigError, match=said):
        engine(**settings)


@needs_torchft
def test_an_absent_lighthouse_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("STRATADVISOR_REPLICA", "0")
    monkeypatch.setenv("TORCHFT_LIGHTHOUSE", address)
    monkeypatch.setenv("TORCHFT_CONNECT_TIMEOUT_SEC", "2")
    with pytest.raises(TrainingError, match=f"lighthouse at {address}"):
        engine()


class Replicas:
    """Jobs of one process each."""

    def __init__(self, folder: Path, lighthouse: str) -> None:
        self.folder, self._lighthouse = folder, lighthouse
        self.bundle = make_bundle(
            folder / "bundle",
            engine="diloco",
            sync_interval_steps=INTERVAL,
            total_steps=STEPS,
            settings={"torchft": True, "exchange_seconds": 60, "timeout_seconds": PATIENCE_SECONDS},
            groups=[group(micro_batch_size=1, gradient_accumulation_steps=1, batch_per_device=1)],
        )
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, replica: int, run: str) -> subprocess.Popen[bytes]:
        own = {"TORCHFT_LIGHTHOUSE": self._lighthouse, "STRATADVISOR_REPLICA": str(replica), "RUST_LOG": "warn"}
        with (self.folder / f"{run}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, str(self.bundle / "train.py"), "--run-dir", str(self.bundle / run)],
                env=environment() | own,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.processes.append(process)
        return process

    def said(self, run: str) -> str:
        return (self.folder / f"{run}.log").read_text()

    def wait_for_steps(self, run: str, many: int) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        path = self.bundle / run / "metrics.jsonl"
        while not path.is_file() or len(events(self.bundle, run=run)) < many:
            assert time.monotonic() < deadline, self.said(run)
            assert all(p.poll() in (None, 0, -signal.SIGKILL) for p in self.processes), self.said(run)
            time.sleep(0.05)


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[Replicas]:
    lighthouse = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=30000, quorum_tick_ms=20, heartbeat_timeout_ms=2000
    )
    own = Replicas(tmp_path, lighthouse.address().replace(socket.gethostname(), "127.0.0.1"))
    yield own
    for process in own.processes:
        if process.poll() is None:
            process.kill()
            process.wait()
    lighthouse.shutdown()


@needs_torchft
@pytest.mark.process
def test_a_lost_replica_is_left_out_and_one_that_comes_goes_on_with_the_others(replicas: Replicas) -> None:
    first, second = replicas.start(0, "first"), replicas.start(1, "second")
    replicas.wait_for_steps("first", 2 * INTERVAL)  # whichever of them began
    replicas.wait_for_steps("second", 2 * INTERVAL)
    os.kill(second.pid, signal.SIGKILL)
    done = len(events(replicas.bundle, run="first"))
    replicas.wait_for_steps("first", done + 3 * INTERVAL)  # alone
    again = replicas.start(1, "again")
    assert [process.wait(PATIENCE_SECONDS) for process in (first, again)] == [0, 0], replicas.said("again")
    assert "replica 1 joins at step" in replicas.said("again")
    stayed = [e["step"] for e in events(replicas.bundle, run="first")]
    assert stayed == list(range(stayed[0], STEPS + 1))
    came = [e["step"] for e in events(replicas.bundle, run="again")]
    assert came == list(range(came[0], STEPS + 1))  # where the others stood, not from the beginning
    assert came[0] > stayed[done - 1]
    ends = [torch.load(checkpoint(replicas.bundle / run), weights_only=True)["model"] for run in ("first", "again")]
    assert furthest(*ends) < 1e-6  # together at the last exchange
    losses = [e["loss"] for e in events(replicas.bundle, run="first")]
    assert sum(losses[-20:]) / 20 < sum(losses[:20]) / 20 - 0.1


def checkpoint(run: Path) -> Path:
    return run / "checkpoints" / f"step-{STEPS:08d}" / "state.pt"

"""The Flower bundle: its project file, its scripts, and a run of a server and two sites on this machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import plan_examples
import pytest
from plan_examples import SynchronizationPlan, group, make_plan

from stratadvisor.emit.bundle import render_bundle, write_bundle
from stratadvisor.emit.targets import choose_targets
from stratadvisor.errors import EmitError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FLOWER = Path(sys.prefix) / "flower" / "bin"
"""The environment that ``make dev`` gives Flower."""
bash = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
ROUNDS, LOCAL_STEPS, LIMIT_SECONDS = 2, 8, 500


def plan(strategy: str = "federated"):
    """Two sites of one device: 3 sequences a step at the first, 1 at the second."""
    return make_plan(
        strategy,
        "flower",
        (group("large", devices=1, micro=3), group("small", devices=1, micro=1)),
        synchronization=SynchronizationPlan(mode="local_sgd", sync_interval_steps=LOCAL_STEPS),
        settings={"outer_learning_rate": 1.0, "outer_momentum": 0.0, "learning_rate": 0.01},
    )


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("flower") / "a bundle"
    write_bundle(render_bundle(plan(), plan_examples.profile()), directory)
    return directory


def test_the_project_file_names_the_apps_and_what_goes_to_the_sites(bundle):
    project = tomllib.loads((bundle / "pyproject.toml").read_text())
    app = project["tool"]["flwr"]["app"]
    assert app["components"] == {"serverapp": "server_app:app", "clientapp": "client_app:app"}
    # 5000 steps in rounds of 8
    assert app["config"]["rounds"] == 5000 / LOCAL_STEPS
    assert (app["config"]["local-steps"], app["config"]["clients"]) == (LOCAL_STEPS, 2)
    sent = [p for pattern in app["fab-include"] for p in bundle.glob(pattern)]
    assert {"train.py", "train_config.json", "client_app.py", "server_app.py", "federated.py"} <= {p.name for p in sent}
    assert not {"plan.json", "cluster.json"} & {p.name for p in sent}  # names of hosts stay here
    for pattern in app["fab-include"]:
        assert list(bundle.glob(pattern)), pattern


def test_diloco_goes_to_flower_as_well_and_other_ways_do_not():
    assert choose_targets(plan("diloco"), ("flower",)).own == "flower"
    with pytest.raises(EmitError, match="gradients in every step") as caught:
        choose_targets(make_plan("ddp", "torchrun"), ("flower",))
    assert caught.value.hint.startswith("the nearest target that can: torchrun")


def script(bundle: Path, name: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"]} | variables
    command = ["bash", str(bundle / name), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


@bash
@pytest.mark.parametrize(
    ("name", "arguments", "variables", "sentence"),
    [
        ("server.sh", (), {}, "set SSL_CERTFILE, SSL_KEYFILE and SSL_CA_CERTFILE, or INSECURE=1"),
        ("client.sh", (), {}, "say where the server is"),
        ("client.sh", ("server:8000",), {}, "set SSL_CA_CERTFILE"),
        (
            "client.sh",
            ("server:8000",),
            {"GROUP": "2", "INSECURE": "1"},
            "GROUP is '2', but the plan has groups 0 to 1",
        ),
        ("client.sh", ("server:8000",), {"DATA": "/nowhere", "INSECURE": "1"}, "DATA names /nowhere"),
        ("submit.sh", (), {}, "say where the server is"),
        ("submit.sh", ("a b",), {}, "'a b' is no HOST:PORT"),
    ],
)
def test_what_is_missing_is_one_sentence(bundle, tmp_path, name, arguments, variables, sentence):
    done = script(bundle, name, *arguments, STRATADVISOR_RUN_DIR=str(tmp_path), **variables)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


@bash
def test_each_device_of_a_site_is_a_client_with_its_part_of_the_data(tmp_path):
    site = make_plan(
        "federated",
        "flower",
        (group("two", nodes=2, devices=2),),
        synchronization=SynchronizationPlan(mode="local_sgd", sync_interval_steps=8),
        settings={"outer_learning_rate": 1.0, "outer_momentum": 0.0},
    )
    write_bundle(render_bundle(site, plan_examples.profile()), tmp_path / "b")
    tools, told = tmp_path / "tools", tmp_path / "told"
    for folder in (tools, told):
        folder.mkdir()
    tool = tools / "flower-supernode"
    tool.write_text('#!/usr/bin/env bash\nprintf \'%s\\0\' "$@" >"$TOLD/$5"\nexec sleep 60\n')
    tool.chmod(0o755)
    data = tmp_path / 'my "data".txt'
    data.write_text("text")
    variables = {"FLOWER_BIN": str(tools), "TOLD": str(told), "INSECURE": "1", "DATA": str(data), "FIRST_PORT": "9200"}
    environment = {"PATH": os.environ["PATH"], "STRATADVISOR_RUN_DIR": str(tmp_path / "run")} | variables
    running = subprocess.Popen(["bash", str(tmp_path / "b" / "client.sh"), "server:8000"], env=environment)
    try:
        wait_for(lambda: all((told / p).exists() and (told / p).read_text().endswith("\0") for p in ("9200", "9201")))
    finally:
        running.send_signal(signal.SIGTERM)
        running.wait(60)
    for part, port in enumerate(("9200", "9201")):
        arguments = (told / port).read_text().split("\0")[:-1]
        assert arguments[:3] == ["--superlink", "server:8000", "--insecure"]
        given = tomllib.loads("\n".join(arguments[-1].replace(" ", "\n", 4).split("\n")[:4]))
        assert given == {"partition-id": part, "num-partitions": 2, "device": part, "group": 0}
        rest = tomllib.loads(
            arguments[-1].replace(" directory=", "\ndirectory=").replace(" data=", "\ndata=").split("\n", 1)[1]
        )
        assert rest == {"directory": str(tmp_path / "run" / f"client-{part}"), "data": str(data)}


def wait_for(ready, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.2)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def background(command: list[str], environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run in a group of its own, all of which ends with the block."""
    with log.open("wb") as stream:
        running = subprocess.Popen(
            command, env=environment, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield running
    finally:
        for number, seconds in ((signal.SIGTERM, 20), (signal.SIGKILL, 20)):
            try:
                os.killpg(running.pid, number)
                running.wait(seconds)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


@bash
@pytest.mark.process
@pytest.mark.skipif(not (FLOWER / "flwr").exists(), reason="make dev gives Flower an environment from Python 3.11 on")
def test_a_server_and_two_sites_lower_the_loss_and_data_is_not_sent(bundle, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FLWR_", "STRATADVISOR_", "PYTHON"))}
    ours = {"PATH": f"{FLOWER}:{os.environ['PATH']}", "HOME": str(home), "INSECURE": "1", "OMP_NUM_THREADS": "1"}
    environment = kept | ours
    port = free_port()
    server = f"127.0.0.1:{port}"
    serve = ["bash", str(bundle / "server.sh")]
    with background(serve, environment | {"HOST": "127.0.0.1", "PORT": str(port)}, tmp_path / "server.log"):
        wait_for(lambda: answers(port))
        sites = []
        for index in range(2):
            folder = str(tmp_path / f"site-{index}")
            place = {"GROUP": str(index), "FIRST_PORT": str(free_port()), "STRATADVISOR_RUN_DIR": folder}
            command = ["bash", str(bundle / "client.sh"), server]
            sites.append(background(command, environment | place, tmp_path / f"site-{index}.log"))
        with sites[0], sites[1]:
            chosen = f'rounds={ROUNDS} run-directory="{tmp_path / "weights"}"'
            done = subprocess.run(
                ["bash", str(bundle / "submit.sh"), server, "--run-config", chosen],
                env=environment | {"STRATADVISOR_RUN_DIR": str(tmp_path / "user")},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=LIMIT_SECONDS,
            )
    logs = "\n".join(path.read_text(errors="replace") for path in tmp_path.glob("*.log"))
    assert done.returncode == 0, done.stdout + logs
    lines = (tmp_path / "weights" / "rounds.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines]
    assert len(losses) == ROUNDS
    # 256 tokens of equal probability at first: ln 256 = 5.545
    assert losses[0] == pytest.approx(5.4, abs=0.4)
    assert losses[-1] < losses[0] - 0.2
    for index in range(2):
        assert (tmp_path / f"site-{index}" / "client-0" / "site.pt").is_file()
    assert sorted(p.name for p in (tmp_path / "weights").glob("*.pt")) == ["server.pt", "weights.pt"]

"""Every command with texts of strangers: what it prints moves no terminal, and it ends with a documented code."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import plan_examples
import pytest
from hostile_inputs import FEW_NAMES, MOVES_A_TERMINAL, ask, tree

from stratadvisor import pipeline, store

HOSTILE = "\x1b]0;t\x07\x9b2J\u202e\u200b\r<script>{{ x }}$(id)"
PROFILE = pipeline.load_cluster(cluster=None, gpus="2x2xA100-80GB", inter_node="10Gb/s", intra_node=None)


def hostile_plan():
    plan = plan_examples.examples()["ddp_cpu"]
    document = json.loads(store.dump(plan))

    def spoil(value):
        if isinstance(value, dict):
            return {key: spoil(item) for key, item in value.items()}
        return [spoil(item) for item in value] if isinstance(value, list) else value

    document = spoil(document)
    document["variant"] = document["workload"]["model"]["name"] = HOSTILE
    document["strategy"] = "ddp"
    document["warnings"] = document["assumptions"] = [HOSTILE]
    document["alternatives"] = [{"strategy": "zero3", "variant": HOSTILE, "feasible": False, "reason": HOSTILE}]
    document["flips"] = [{"fact": HOSTILE, "now": HOSTILE, "threshold": HOSTILE, "then": HOSTILE}]
    document["decisions"] = [
        {
            "question": HOSTILE,
            "ask": HOSTILE,
            "branch": HOSTILE,
            "name": HOSTILE,
            "because": HOSTILE,
            "sets": {HOSTILE: HOSTILE},
            "sources": [HOSTILE],
            "passed_over": [HOSTILE],
            "clauses": [
                {"fact": HOSTILE, "operator": "<", "expected": HOSTILE, "actual": HOSTILE, "outcome": True},
            ],
        }
    ]
    for group in document["groups"]:
        group["node_class"] = group["device_name"] = HOSTILE
    return document


@pytest.mark.parametrize("options", [[], ["--json"], ["--why-not", "zero3"], ["--why-not", HOSTILE]])
def test_explain(capsys, tmp_path, options):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(hostile_plan()))
    code, out, _ = ask(["explain", path, *options], capsys)
    assert code == (2 if HOSTILE in options else 0)
    assert bool(out) == (code == 0)


def test_probe_merges_profiles_of_strangers(capsys, tmp_path):
    paths = []
    for number in (1, 2):
        document = json.loads(store.dump(PROFILE))
        document["nodes"] = document["nodes"][:1]
        node = document["nodes"][0]
        node["hostname"] = f"{HOSTILE}{number}"
        node["cpu"]["model_name"] = HOSTILE
        node["software"]["versions"] = {HOSTILE: HOSTILE}
        document["verdicts"] = [{"level": "problem", "subject": HOSTILE, "message": HOSTILE, "advice": HOSTILE}]
        document["observations"] = [{"probe": HOSTILE, "status": "failed", "reason": HOSTILE}]
        for device in node["devices"]:
            device.update(name=HOSTILE, health_reason=HOSTILE, throttle_reasons=[HOSTILE], uuid=HOSTILE)
        paths.append(tmp_path / f"{number}.json")
        paths[-1].write_text(json.dumps(document))
    for options in ([], ["--json"]):
        code, out, _ = ask(
            ["probe", "--merge", paths[0], "--merge", paths[1], "-o", tmp_path / "all.json", *options], capsys
        )
        assert code == 0
        assert out


RULE = """\
schema_version = 1
[question]
id = "node_speeds"
mode = "extend"
[[branch]]
id = "MY01"
name = "mine"
when.all = ["cluster.num_devices >= 1000000"]
because = {text}
sources = [{text}]
warn = {text}
set = {{ environment.MY_VARIABLE = {text} }}
before = "SA4501"
[[example]]
facts = {{ "cluster.num_devices" = 2000000 }}
takes = "MY01"
note = {text}
"""


@pytest.mark.parametrize("command", ["list", "show", "check", "test", "graph", "mermaid", "markdown"])
def test_rules_of_strangers(capsys, tmp_path, command):
    folder = tmp_path / "rules"
    folder.mkdir()
    text = json.dumps(HOSTILE)
    (folder / "50_mine.toml").write_text(RULE.format(text=text))
    arguments = ["rules", command, "--overlay", tmp_path]
    if command == "show":
        arguments = ["rules", "show", "MY01", "--overlay", tmp_path]
    if command in ("mermaid", "markdown"):
        arguments = ["rules", "graph", "--format", command, "--overlay", tmp_path]
    for options in ([], ["--json"]):
        code, _, _ = ask([*arguments, *options], capsys)
        assert code in (0, 5)


@pytest.mark.parametrize("name", [n for n in FEW_NAMES if n])
@pytest.mark.parametrize(
    "command",
    [
        ["recommend", "--gpus", "{}", "--model-size", "1B", "--no-write"],
        ["recommend", "--gpus", "8xA100-80GB", "--model", "{}", "--no-write"],
        ["recommend", "--gpus", "8xA100-80GB", "--model-size", "{}", "--no-write"],
        ["recommend", "--gpus", "8xA100-80GB", "--model-size", "1B", "--strategy", "{}", "--no-write"],
        ["recommend", "--gpus", "8xA100-80GB", "--model-size", "1B", "--overlay", "{}", "--no-write"],
        ["recommend", "--cluster", "{}", "--model-size", "1B", "--no-write"],
        ["rules", "show", "{}"],
        ["explain", "{}"],
        ["run-config", "{}"],
        ["{}"],
    ],
)
def test_a_name_on_the_command_line(capsys, tmp_path, monkeypatch, command, name):
    monkeypatch.chdir(tmp_path)
    code, out, _ = ask([part.format(name) if "{}" in part else part for part in command], capsys)
    assert code != 0 or "help" in name
    assert out == "" or "help" in name
    assert tree(tmp_path) == set()


@pytest.mark.parametrize(
    ("variables", "arguments", "code"),
    [
        ({"STRATADVISOR_OVERLAYS": "/no/such:" + "x" * 300}, ["rules", "list"], 0),
        ({"STRATADVISOR_OVERLAYS": "/no/such"}, ["recommend", "--model-size", "1B", "--gpus", "8xT4", "--no-write"], 2),
        ({"RANK": "$(id)", "WORLD_SIZE": "2"}, ["probe", "-o", "p.json"], 2),
        ({"RANK": "0", "WORLD_SIZE": "9" * 5000}, ["probe", "-o", "p.json"], 2),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, ["probe", "-o", "p.json"], 2),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "0"}, ["probe", "-o", "p.json"], 2),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_PORT": "99999"}, ["probe", "-o", "p"], 2),
        ({"SLURM_PROCID": "x", "SLURM_STEP_NUM_TASKS": "2"}, ["probe", "-o", "p.json"], 2),
        ({"COLUMNS": "-5", "LINES": "x", "TERM": "\x1b"}, ["explain", "--help"], 0),
        ({"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}, ["explain", "plan.json"], 0),
        ({"LANG": "xx_YY.nope", "LC_ALL": "xx_YY.nope"}, ["explain", "plan.json"], 0),
    ],
)
def test_a_hostile_environment(tmp_path, variables, arguments, code):
    document = hostile_plan()
    document["variant"] = "\u00b5\u6f22"
    (tmp_path / "plan.json").write_text(json.dumps(document))
    done = subprocess.run(
        [sys.executable, "-m", "stratadvisor", *arguments],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), "HOME": str(tmp_path)} | variables,
        capture_output=True,
        check=False,
        timeout=300,
    )
    text = (done.stdout + done.stderr).decode(errors="replace")
    assert done.returncode == code, text
    assert "Traceback" not in text
    assert MOVES_A_TERMINAL.search(text) is None
    assert tree(tmp_path) == {"plan.json"}


def test_a_path_that_is_no_text(tmp_path):
    folder = os.fsencode(tmp_path) + b"/\xff\x1b[31m"
    os.mkdir(folder)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "stratadvisor",
            "recommend",
            "--model-size",
            "350M",
            "--gpus",
            "1xT4",
            "-o",
            folder + b"/b",
        ],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert b"\x1b" not in done.stdout + done.stderr
    assert os.path.isfile(folder + b"/b/launch.sh")

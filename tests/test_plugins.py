"""Plug-ins of an installed distribution: used when they are sound, named and left out when they are not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ENTRY_POINTS = """\
[console_scripts]
something = lab_plugin.cli:main

[stratadvisor.strategies]
lab_ddp = lab_plugin.strategies:LAB_DDP
ddp = lab_plugin.strategies:LAB_DDP
lab_other = lab_plugin.strategies:OTHER
lab_raises = lab_plugin.strategies:RAISES
lab_absent = lab_plugin.no_such_module:X
lab_text = lab_plugin.strategies:TEXT
lab_exits = lab_exits:X

[stratadvisor.probes]
lab_room = lab_plugin.probes:ROOM
lab_wrong = lab_plugin.probes:WRONG

[stratadvisor.rules]
lab = lab_plugin
lab_faulty = lab_faulty
lab_empty = lab_empty

[stratadvisor.targets]
lab = lab_plugin
"""
STRATEGIES = """\
from dataclasses import replace
from stratadvisor.strategies.base import Strategy
from stratadvisor.strategies.ddp import candidates as ddp

def renamed(cluster, workload):
    for candidate in ddp(cluster, workload):
        yield replace(candidate, strategy="lab_ddp")

def raises(cluster, workload):
    raise ValueError("no idea")
    yield

COMMON = dict(title="the lab's own", family="synchronous", target="torchrun")
LAB_DDP = Strategy(name="lab_ddp", candidates=renamed, **COMMON)
OTHER = Strategy(name="another", candidates=renamed, **COMMON)
RAISES = Strategy(name="lab_raises", candidates=raises, **COMMON)
TEXT = "not a strategy"
"""
PROBES = """\
from stratadvisor.probe import Probe
from stratadvisor.schema.profile import Verdict

ROOM = Probe(title="the room", target="lab_plugin.probes:room", limit_seconds=10)
WRONG = Probe(title="nothing", target="lab_plugin.probes:wrong", limit_seconds=10)

def room():
    return [Verdict(level="warning", subject="room", message="it is warm in here", advice="open a window")]

def wrong():
    return 7
"""
RULES = """\
schema_version = 1

[question]
id = "node_speeds"
mode = "extend"

[[branch]]
id = "LAB01"
name = "lab-rule"
before = "SA4001"
when.all = ["cluster.num_devices <= 4"]
next = "network_of_equal_nodes"
warn = "The lab's rule was here."
because = "A test says so."
sources = ["the lab"]

[[example]]
facts = { "cluster.num_devices" = 4 }
takes = "LAB01"
"""
MANIFEST = """\
summary = "the lab's own file"
since = "1"
role = "beside"
strategies = ["single", "ddp", "fsdp2", "zero1", "zero2", "zero3"]
entrypoint = "go.sh"

[[output]]
template = "lab/go.sh.j2"
path = "go.sh"
format = "shell"
executable = true
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """A folder as site-packages is: packages, and the metadata that an installer leaves."""
    root = tmp_path_factory.mktemp("site")
    files = {
        "lab_plugin-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: lab-plugin\nVersion: 1.0\n",
        "lab_plugin-1.0.dist-info/entry_points.txt": ENTRY_POINTS,
        "lab_plugin/__init__.py": "",
        "lab_plugin/strategies.py": STRATEGIES,
        "lab_plugin/probes.py": PROBES,
        "lab_plugin/rules/50_lab.toml": RULES,
        "lab_plugin/templates/lab/emitter.toml": MANIFEST,
        "lab_plugin/templates/lab/go.sh.j2": "#!/usr/bin/env bash\necho {{ plan.strategy | sh }}\n",
        "lab_faulty/__init__.py": "",
        "lab_faulty/rules/x.toml": RULES.replace("num_devices <=", "no_such_fact <=").replace("LAB01", "LAB02"),
        "lab_empty/__init__.py": "",
        "lab_exits.py": "raise SystemExit(3)\n",
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def command(site: Path, where: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stratadvisor", *arguments],
        cwd=where,
        env={**os.environ, "PYTHONPATH": str(site), **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


RECOMMEND = ("recommend", "--model-size", "350M", "--gpus", "4xRTX4090", "--output", "b", "--json")


def test_each_plug_in_is_listed_and_the_broken_ones_say_why(site, tmp_path):
    done = command(site, tmp_path, "plugins", "--json")
    assert done.returncode == 0, done.stderr
    listed = {(p["group"].rpartition(".")[2], p["name"]): p["problem"] for p in json.loads(done.stdout)}
    sound = {("strategies", "lab_ddp"), ("strategies", "lab_raises"), ("probes", "lab_room"), ("probes", "lab_wrong")}
    sound |= {("rules", "lab"), ("targets", "lab")}
    assert {key for key, problem in listed.items() if problem is None} == sound
    for key, words in (
        (("strategies", "ddp"), "one of that name itself"),
        (("strategies", "lab_other"), "calls itself 'another'"),
        (("strategies", "lab_absent"), "ModuleNotFoundError"),
        (("strategies", "lab_text"), "is a str, not a Strategy"),
        (("strategies", "lab_exits"), "SystemExit"),
        (("rules", "lab_faulty"), "no_such_fact"),
        (("rules", "lab_empty"), "no folder rules/"),
    ):
        assert words in listed[key]


def test_a_plan_uses_the_sound_and_names_the_broken(site, tmp_path):
    done = command(site, tmp_path, *RECOMMEND, "--target", "lab")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["strategy"] in {"ddp", "fsdp2", "zero1", "zero2", "zero3"}
    assert "lab_ddp" in {a["strategy"] for a in plan["alternatives"]}
    assert "LAB01" in {d["branch"] for d in plan["decisions"]}
    warnings = " ".join(plan["warnings"])
    assert "The lab's rule was here." in warnings
    assert "plug-in 'lab_absent' of lab_plugin-1.0 (stratadvisor.strategies) is left out" in warnings
    assert "'lab_raises'" in warnings
    assert "ValueError: no idea" in warnings
    assert "'lab_faulty'" in warnings
    assert (tmp_path / "b" / "targets" / "lab" / "go.sh").read_text().endswith(f"echo {plan['strategy']}\n")


def test_without_plug_ins_nothing_of_them_is_seen(site, tmp_path):
    done = command(site, tmp_path, *RECOMMEND, STRATADVISOR_NO_PLUGINS="1")
    assert done.returncode == 0, done.stderr
    assert "lab_" not in done.stdout
    assert "no plug-in is installed" in command(site, tmp_path, "plugins", STRATADVISOR_NO_PLUGINS="1").stdout


def test_a_probe_of_a_plug_in_adds_a_finding_and_a_wrong_one_an_observation(site, tmp_path):
    done = command(site, tmp_path, "probe", "--only", "lab_room", "--only", "lab_wrong", "--json")
    assert done.returncode == 0, done.stderr
    profile = json.loads(done.stdout)
    assert "it is warm in here" in {v["message"] for v in profile["verdicts"]}
    (wrong,) = [o for o in profile["observations"] if o["probe"] == "lab_wrong"]
    assert (wrong["status"], wrong["reason"]) == ("failed", "returned a int, not a list of Verdict")


def test_looking_for_plug_ins_imports_neither_metadata_nor_a_plug_in_that_is_not_needed(site):
    program = (
        "import sys; from stratadvisor import plugins; found = plugins.installed();"
        "print(len(found), sorted({'importlib.metadata', 'lab_plugin', 'configparser'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{Path(__file__).parents[1]}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split(maxsplit=1)[1].strip() == "[]"
    assert int(done.stdout.split()[0]) == ENTRY_POINTS.count(" = lab_") - 1  # without the console script


def test_a_folder_that_somebody_stands_in_brings_no_plug_in(site):
    done = command(Path(), site, "plugins")
    assert done.returncode == 0, done.stderr
    assert "no plug-in is installed" in done.stdout

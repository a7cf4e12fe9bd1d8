from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import plan_examples
import pytest

from stratadvisor import store
from stratadvisor.emit.bundle import read_bundle, refresh_lock, render_bundle, write_bundle
from stratadvisor.errors import DriftError, EmitError, StratadvisorError, UsageError
from stratadvisor.runtime import config as runtime_config
from stratadvisor.schema.emission import EmittedFile, Lock

EXAMPLES = plan_examples.examples()
GOLDEN = Path(__file__).parent / "golden"
NOT_GOLDEN = ("plan.json", "cluster.json", "train.py", "stratadvisor.lock.json")
"""Documents of other parts, and digests of all; the runtime's own tests cover its modules."""
UPDATE = os.environ.get("STRATADVISOR_UPDATE_GOLDEN") == "1"


def rendered(plan, **options) -> dict[str, EmittedFile]:
    return {file.path: file for file in render_bundle(plan, plan_examples.profile(), **options)}


@pytest.mark.parametrize("name", EXAMPLES)
def test_files_are_the_golden_ones(name):
    plan = EXAMPLES[name]
    files = {
        path: file.content.replace(store.digest(plan), "PLAN_DIGEST")  # a new optional field of Plan is no change here
        for path, file in rendered(plan).items()
        if path not in NOT_GOLDEN and "/" not in path
    }
    folder = GOLDEN / name
    if UPDATE:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for path, text in files.items():
            (folder / path).write_text(text, encoding="utf-8")
    expected = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    assert files == expected


def test_no_golden_folder_is_left_over():
    assert {folder.name for folder in GOLDEN.iterdir()} == {*EXAMPLES, "targets"}  # targets: see test_targets_files.py


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_bundle_has_its_standard_files_and_an_executable_launcher(name):
    files = rendered(EXAMPLES[name])
    standard = {"plan.json", "cluster.json", "train.py", "train_config.json", "launch.sh", "README.md"}
    assert standard | {"stratadvisor.lock.json", "stratadvisor_runtime/__init__.py"} <= set(files)
    assert [path for path, file in files.items() if file.executable] == ["launch.sh"]
    assert ("ds_config.json" in files) == (EXAMPLES[name].target == "deepspeed")
    several = sum(g.num_nodes for g in EXAMPLES[name].groups) > 1
    assert ("hostfile" in files) == (EXAMPLES[name].target == "deepspeed" and several)
    lock = Lock.model_validate_json(files["stratadvisor.lock.json"].content)
    assert set(lock.digests) == set(files) - {"stratadvisor.lock.json"}
    assert lock.entrypoint == "launch.sh"


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_file_is_read_by_its_own_parser(name, tmp_path):
    write_bundle(render_bundle(EXAMPLES[name], plan_examples.profile()), tmp_path / "b")
    for path in (tmp_path / "b").rglob("*"):
        if path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".py":
            ast.parse(path.read_text())
    assert store.read_plan(tmp_path / "b" / "plan.json") == EXAMPLES[name]
    assert store.read_profile(tmp_path / "b" / "cluster.json") == plan_examples.profile()
    loaded = runtime_config.load(tmp_path / "b" / "train_config.json")
    assert loaded.strategy == EXAMPLES[name].strategy
    if shutil.which("bash"):
        subprocess.run(["bash", "-n", str(tmp_path / "b" / "launch.sh")], check=True, timeout=300)


def test_shellcheck_finds_nothing_in_any_launcher(tmp_path):
    beside = Path(sys.executable).with_name("shellcheck")
    shellcheck = str(beside) if beside.exists() else shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed")
    paths = []
    for name, plan in EXAMPLES.items():
        paths.append(tmp_path / f"{name}.sh")
        paths[-1].write_text(rendered(plan)["launch.sh"].content)
    result = subprocess.run(
        [shellcheck, "--norc", *map(str, paths)], capture_output=True, text=True, check=False, timeout=300
    )
    assert result.stdout == ""
    assert result.returncode == 0


def test_the_same_plan_gives_the_same_bytes():
    for plan in EXAMPLES.values():
        assert rendered(plan) == rendered(plan)


DIGEST_OF_ALL = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
import plan_examples
from stratadvisor.emit.bundle import render_bundle
whole = hashlib.sha256()
for plan in plan_examples.examples().values():
    for file in render_bundle(plan, plan_examples.profile()):
        whole.update(f"{file.path}\\0{file.content}\\0".encode())
print(whole.hexdigest(), sorted(set(sys.modules) & {"torch", "pandas", "pynvml", "psutil", "deepspeed"}))
"""


def test_another_process_gives_the_same_bytes_and_loads_no_heavy_library():
    tests = str(Path(plan_examples.__file__).parent)
    answers = {
        subprocess.run(
            [sys.executable, "-c", DIGEST_OF_ALL, tests],
            env=os.environ | {"PYTHONHASHSEED": seed, "LC_ALL": "C"},
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(answers) == 1
    assert answers.pop().endswith(" []\n")


HOSTILE = "x\"; touch pwned; $(touch pwned) `touch pwned` \n# {{ 7 * 7 }} {% raw %} | <b> \\ ' ü"


def hostile_plan(strategy: str, target: str):
    groups = tuple(
        plan_examples.group(name + HOSTILE, devices=devices, device_name=HOSTILE, hostnames=(name + HOSTILE,))
        for name, devices in (("a", 2), ("b", 1))
    )
    model = plan_examples.small_model().model_copy(update={"name": HOSTILE, "source": HOSTILE})
    return plan_examples.make_plan(
        strategy,
        target,
        groups,
        model=model,
        variant=HOSTILE,
        environment={"NCCL_DEBUG": HOSTILE},
        settings={"note": HOSTILE, "nvme_path": HOSTILE},
        assumptions=(HOSTILE,),
        warnings=(HOSTILE,),
        memory=plan_examples.MemoryPlan(zero_stage=3, optimizer_offload="nvme", parameter_offload="nvme")
        if target == "deepspeed"
        else None,
    )


@pytest.mark.parametrize(
    ("strategy", "target"),
    [("uneven_ddp", "torchrun"), ("zero3", "deepspeed"), ("diloco", "async"), ("async_sgd", "async")],
)
def test_names_with_shell_template_and_markup_signs_stay_names(strategy, target, tmp_path):
    plan = hostile_plan(strategy, target)
    files = rendered(plan)
    config = json.loads(files["train_config.json"].content)
    assert config["model"]["name"] == HOSTILE
    assert config["groups"][0]["hostnames"] == [f"a{HOSTILE}"]
    for path in ("launch.sh", "README.md"):  # 7 x 7 would stand there if a name were read as a template
        assert "49" not in files[path].content.replace(store.digest(plan), ""), path
    for line in files["README.md"].content.splitlines():
        if "touch pwned" in line:
            assert "\\`touch pwned\\`" in line
            assert "\\<b>" in line
    if target == "deepspeed":
        offload = json.loads(files["ds_config.json"].content)["zero_optimization"]["offload_optimizer"]
        assert offload["nvme_path"] == HOSTILE
        hosts = [line for line in files["hostfile"].content.splitlines() if not line.startswith("#")]
        assert hosts == ["node-0.invalid slots=2", "node-1.invalid slots=1"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_a_launcher_with_hostile_names_runs_nothing_of_them(tmp_path):
    bundle = tmp_path / "b"
    write_bundle(render_bundle(hostile_plan("uneven_ddp", "torchrun"), plan_examples.profile()), bundle)
    tell = tmp_path / "tell"
    tell.write_text(f"#!{sys.executable}\nimport os\nprint(repr(os.environ['NCCL_DEBUG']))\n")
    tell.chmod(0o755)
    base = {"PATH": os.environ["PATH"], "PYTHON": str(tell)}
    slurm = {
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_NODEID": "1",
        "SLURMD_NODENAME": "b",
        "SLURM_STEP_NODELIST": "a,b",
    }
    by_hand = {"NODE_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}
    for environment in (base | by_hand, base | slurm):
        result = subprocess.run(
            ["bash", "--norc", str(bundle / "launch.sh")],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
        assert ast.literal_eval(result.stdout) == HOSTILE
    assert not list(tmp_path.rglob("pwned"))


def test_a_variable_with_a_nul_is_refused_before_anything_is_written(tmp_path):
    plan = plan_examples.make_plan("ddp", "torchrun", environment={"A": "x\0y"})
    with pytest.raises(EmitError, match=r"environment\.sh\.j2, line \d+: ValueError: a text with a NUL"):
        render_bundle(plan, plan_examples.profile())


def test_a_target_that_cannot_express_the_plan_names_one_that_can():
    with pytest.raises(EmitError, match="'async' cannot express the strategy 'ddp'") as caught:
        rendered(EXAMPLES["ddp_cpu"], target="async")
    assert caught.value.hint.startswith("the nearest target that can: torchrun")


def overlay(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / "templates" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_an_overlay_changes_one_block_of_a_shipped_launcher(tmp_path):
    text = (
        '{% extends "bundled/torchrun/launch.sh.j2" %}\n{% block environment %}\n{{ super() }}\n'
        "set_default MINE 1\n{% endblock %}\n"
    )
    mine = overlay(tmp_path, {"torchrun/launch.sh.j2": text})
    plain, changed = (rendered(EXAMPLES["ddp_cpu"], overlays=o) for o in ((), (mine,)))
    assert "set_default MINE 1\n" in changed["launch.sh"].content
    added = set(changed["launch.sh"].content.splitlines()) - set(plain["launch.sh"].content.splitlines())
    assert added == {"set_default MINE 1"}
    same = {path for path in plain if plain[path] == changed[path]}
    assert same == set(plain) - {"launch.sh", "stratadvisor.lock.json"}


def test_an_overlay_that_shadows_a_shared_part_reaches_every_target(tmp_path):
    mine = overlay(tmp_path, {"_shared/environment.sh.j2": "export ONLY=mine\n"})
    for plan in EXAMPLES.values():
        assert "export ONLY=mine\n" in rendered(plan, overlays=(mine,))["launch.sh"].content


def test_an_overlay_brings_a_target_of_its_own(tmp_path):
    manifest = (
        'summary = "job file"\nsince = "0.1.0"\nstrategies = ["ddp"]\nentrypoint = "go.sh"\n'
        '[[output]]\ntemplate = "job/go.sh.j2"\npath = "go.sh"\nformat = "shell"\nexecutable = true\n'
        '[[output]]\ntemplate = "job/job.toml.j2"\npath = "conf/job.toml"\nformat = "toml"\n'
    )
    mine = overlay(
        tmp_path,
        {
            "job/emitter.toml": manifest,
            "job/go.sh.j2": "echo {{ plan.strategy | sh }}\n",
            "job/job.toml.j2": "nodes = {{ launch.num_nodes }}\n",
        },
    )
    files = rendered(EXAMPLES["ddp_cpu"], target="job", overlays=(mine,))
    assert files["go.sh"].content == "echo ddp\n"
    assert files["conf/job.toml"].content == "nodes = 1\n"
    assert json.loads(files["stratadvisor.lock.json"].content)["entrypoint"] == "go.sh"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("#!/bin/bash\necho {{ plan.strateg }}\n", "launch.sh.j2, line 2: "),
        ("{% if %}\n", "launch.sh.j2, line 1: "),
        ("if true; then\n", "launch.sh would not be valid shell"),
    ],
)
def test_a_broken_overlay_is_an_error_and_nothing_is_written(tmp_path, text, reason):
    if "valid shell" in reason and shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    mine = overlay(tmp_path / "overlay", {"torchrun/launch.sh.j2": text})
    with pytest.raises(EmitError) as caught:
        rendered(EXAMPLES["ddp_cpu"], overlays=(mine,))
    assert reason in caught.value.message
    assert "\n" not in caught.value.message


def write(tmp_path: Path) -> Path:
    write_bundle(render_bundle(EXAMPLES["ddp_cpu"], plan_examples.profile()), tmp_path / "b")
    return tmp_path / "b"


def test_a_bundle_is_read_back_as_it_was(tmp_path):
    found = read_bundle(write(tmp_path))
    assert found.plan == EXAMPLES["ddp_cpu"]
    assert found.profile == plan_examples.profile()
    assert found.drifted == ()


def test_edits_are_seen_and_stop_the_next_write_unless_forced(tmp_path):
    directory = write(tmp_path)
    config = directory / "train_config.json"
    config.write_text(config.read_text().replace('"seed": 0', '"seed": 1'))
    assert read_bundle(directory).drifted == ("train_config.json",)
    files = render_bundle(EXAMPLES["ddp_cpu"], plan_examples.profile())
    with pytest.raises(EmitError, match=r"train_config\.json"):
        write_bundle(files, directory)
    assert {v.path: v.verdict for v in write_bundle(files, directory, force=True)}["train_config.json"] == "conflict"
    assert read_bundle(directory).drifted == ()


def test_changing_the_target_leaves_no_file_of_the_old_one(tmp_path):
    directory = tmp_path / "b"
    write_bundle(render_bundle(EXAMPLES["zero3_gpu"], plan_examples.profile()), directory)
    write_bundle(render_bundle(EXAMPLES["ddp_cpu"], plan_examples.profile()), directory)
    names = {str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file()}
    assert names == set(rendered(EXAMPLES["ddp_cpu"]))


def test_our_own_change_of_the_profile_is_accepted_into_the_lock(tmp_path):
    directory = write(tmp_path)
    cluster = directory / "cluster.json"
    cluster.write_text(cluster.read_text().replace('"example"', '"renamed"'))
    assert read_bundle(directory).drifted == ("cluster.json",)
    refresh_lock(directory, ("cluster.json",))
    assert read_bundle(directory).drifted == ()
    assert read_bundle(directory).profile.name == "renamed"
    with pytest.raises(DriftError, match="not a file of this bundle"):
        refresh_lock(directory, ("notes.txt",))


def test_what_is_no_bundle_is_said_to_be_none(tmp_path):
    with pytest.raises(UsageError, match="not a directory"):
        read_bundle(tmp_path / "absent")
    with pytest.raises(UsageError, match="is not a bundle"):
        read_bundle(tmp_path)
    with pytest.raises(UsageError, match="is not a bundle"):
        refresh_lock(tmp_path, ("plan.json",))


@pytest.mark.parametrize("name", ["plan.json", "cluster.json", "stratadvisor.lock.json"])
@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"schema_version": 99}', "\0"])
def test_a_damaged_document_is_one_sentence(tmp_path, name, text):
    directory = write(tmp_path)
    (directory / name).unlink()
    if text is not None:
        (directory / name).write_text(text)
    with pytest.raises(StratadvisorError) as caught:
        read_bundle(directory)
    assert name in caught.value.message
    assert "\n" not in caught.value.message

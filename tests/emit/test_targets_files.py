"""The files of every target, read by the target's own parser where it can be imported."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import plan_examples
import pytest
from plan_examples import MemoryPlan, group, large_model, make_plan

from stratadvisor import store
from stratadvisor.emit.bundle import render_bundle, write_bundle
from stratadvisor.emit.targets import choose_targets
from stratadvisor.lint.run import check_file

GOLDEN = Path(__file__).parent / "golden" / "targets"
UPDATE = os.environ.get("STRATADVISOR_UPDATE_GOLDEN") == "1"
A100 = {"device_name": "NVIDIA A100-SXM4-80GB", "micro": 4}
LARGE = {"model": large_model(), "sequence_length": 2048, "device_kind": "cuda", "precision": "bf16"}
PLANS = plan_examples.examples() | {
    "fsdp2_gpu": make_plan(
        "fsdp2",
        "torchrun",
        (group("a100", nodes=2, devices=8, accumulation=2, **A100),),
        shard_degree=16,
        memory=MemoryPlan(sharding="parameters", activation_checkpointing="full"),
        **LARGE,
    ),
    "ddp_gpu": make_plan("ddp", "torchrun", (group("a100", devices=4, **A100),), **LARGE),
}
IN_GOLDEN = ("ddp_cpu", "uneven_ddp_gpu", "hsdp_gpu", "zero3_gpu", "fsdp2_gpu")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory) -> dict[str, Path]:
    """Every example as a bundle with all targets that can express it."""
    root = tmp_path_factory.mktemp("bundles")
    for name, plan in PLANS.items():
        chosen = choose_targets(plan, ("all",))
        write_bundle(render_bundle(plan, plan_examples.profile(), beside=chosen.beside), root / name)
    return {name: root / name for name in PLANS}


def files_of(bundles: dict[str, Path], path: str) -> dict[str, Path]:
    found = {name: bundle / "targets" / path for name, bundle in bundles.items()}
    return {name: file for name, file in found.items() if file.exists()}


@pytest.mark.parametrize("name", IN_GOLDEN)
def test_files_are_the_golden_ones(bundles, name):
    folder = bundles[name] / "targets"
    found = {
        str(path.relative_to(folder)): path.read_text().replace(store.digest(PLANS[name]), "PLAN_DIGEST")
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    if UPDATE:
        shutil.rmtree(GOLDEN / name, ignore_errors=True)
        for path, text in found.items():
            (GOLDEN / name / path).parent.mkdir(parents=True, exist_ok=True)
            (GOLDEN / name / path).write_text(text)
    golden = GOLDEN / name
    assert found == {str(p.relative_to(golden)): p.read_text() for p in golden.rglob("*") if p.is_file()}


def test_no_golden_folder_is_left_over():
    assert {folder.name for folder in GOLDEN.iterdir()} == set(IN_GOLDEN)


def test_bash_and_shellcheck_find_nothing_in_any_script(bundles):
    scripts = [
        str(path) for b in bundles.values() for path in (b / "targets").rglob("*") if path.suffix in (".sh", ".sbatch")
    ]
    assert len(scripts) > 2 * len(PLANS)
    if shutil.which("bash"):
        for script in scripts:
            subprocess.run(["bash", "-n", script], check=True, timeout=300)
    beside = Path(sys.executable).with_name("shellcheck")
    shellcheck = str(beside) if beside.exists() else shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed")
    result = subprocess.run(
        [shellcheck, "--norc", "-s", "bash", *scripts], capture_output=True, text=True, check=False, timeout=300
    )
    assert result.stdout == ""


def test_no_line_of_a_program_is_longer_than_120_characters(bundles):
    for bundle in bundles.values():
        for path in (bundle / "targets").rglob("train_*.py"):
            compile(path.read_text(), str(path), "exec")
            assert max(map(len, path.read_text().splitlines())) <= 120, path


def test_our_own_check_finds_no_error_in_any_configuration(bundles):
    kinds = {
        "accelerate/accelerate.yaml": "accelerate",
        "lightning/trainer.json": "lightning",
        "huggingface/training_arguments.json": "transformers",
    }
    for place, kind in kinds.items():
        files = files_of(bundles, place)
        assert len(files) >= 4
        for name, path in files.items():
            checked = check_file(path, kind=kind, world_size=PLANS[name].parallelism.world_size)
            assert [f for f in checked.findings if f.severity == "error"] == [], path


@pytest.fixture
def accelerate_state():
    """Leave neither the variables nor the process-wide state that TrainingArguments sets."""
    state = pytest.importorskip("accelerate.state")
    before = dict(os.environ)
    state.AcceleratorState._reset_state(True)
    yield
    state.AcceleratorState._reset_state(True)
    os.environ.clear()
    os.environ.update(before)


def launch_arguments(path: Path):
    launch = pytest.importorskip("accelerate.commands.launch")
    arguments = launch.launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    return launch._validate_launch_command(arguments)[0]


@pytest.mark.usefixtures("accelerate_state")
def test_accelerates_own_loader_takes_every_file_and_reads_the_plan_in_it(bundles, monkeypatch):
    config_args = pytest.importorskip("accelerate.commands.config.config_args")
    for name, path in files_of(bundles, "accelerate/accelerate.yaml").items():
        plan = PLANS[name]
        monkeypatch.chdir(path.parent)  # deepspeed_config_file is named from here
        config = config_args.load_config_from_file(str(path))
        wanted = {
            "ddp_cpu": "MULTI_CPU",
            "ddp_gpu": "MULTI_GPU",
            "hsdp_gpu": "FSDP",
            "fsdp2_gpu": "FSDP",
        }.get(name, "DEEPSPEED")
        assert config.distributed_type == wanted, name
        assert config.num_processes == plan.parallelism.world_size
        assert config.num_machines == sum(g.num_nodes for g in plan.groups)
        arguments = launch_arguments(path)
        assert arguments.use_fsdp == (wanted == "FSDP")
        assert arguments.use_deepspeed == (wanted == "DEEPSPEED")
        if wanted == "FSDP":
            assert str(arguments.fsdp_version) == "2"
            assert arguments.mixed_precision == "bf16"
        if wanted == "DEEPSPEED":
            assert Path(arguments.deepspeed_config_file).is_file()
    arguments = launch_arguments(bundles["hsdp_gpu"] / "targets/accelerate/accelerate.yaml")
    # 16 nodes of 8 devices, sharded inside a node
    assert arguments.parallelism_config_dp_replicate_size == 16
    assert arguments.parallelism_config_dp_shard_size == 8


@pytest.mark.usefixtures("accelerate_state")
def test_accelerates_fsdp_plugin_takes_the_settings(bundles, monkeypatch):
    utils = pytest.importorskip("accelerate.utils")
    launch = pytest.importorskip("accelerate.utils.launch")
    path = bundles["fsdp2_gpu"] / "targets/accelerate/accelerate.yaml"
    arguments = launch_arguments(path)
    arguments.machine_rank = 0
    environment = launch.prepare_multi_gpu_env(arguments)
    for key in [k for k in environment if k.startswith(("FSDP_", "ACCELERATE_"))]:
        monkeypatch.setenv(key, environment[key])
    plugin = utils.FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == 2
    assert plugin.reshard_after_forward is True
    assert plugin.transformer_cls_names_to_wrap == ["Block"]
    assert plugin.cpu_ram_efficient_loading is True


def test_lightnings_trainer_takes_every_argument(bundles):
    lightning = pytest.importorskip("lightning")
    files = files_of(bundles, "lightning/trainer.json")
    assert {"ddp_cpu", "ddp_gpu", "fsdp2_gpu", "zero3_gpu"} == set(files) - {"zero2_cpu"}
    for name, path in files.items():
        arguments = json.loads(path.read_text())
        assert arguments["devices"] * arguments["num_nodes"] == PLANS[name].parallelism.world_size
        assert arguments["accumulate_grad_batches"] == PLANS[name].batch.gradient_accumulation_steps
        arguments |= {"accelerator": "cpu", "num_nodes": 1}  # no GPU is needed to have the rest judged
        trainer = lightning.Trainer(**arguments, enable_checkpointing=False)
        assert trainer.max_steps == PLANS[name].predicted.run_steps
        assert trainer.gradient_clip_val == 1.0


def test_lightnings_deepspeed_strategy_takes_what_is_left_of_the_settings(bundles):
    strategies = pytest.importorskip("lightning.pytorch.strategies")
    pytest.importorskip("deepspeed")
    settings = json.loads((bundles["zero3_gpu"] / "ds_config.json").read_text())
    for name in ("gradient_accumulation_steps", "train_batch_size"):
        settings.pop(name)
    strategy = strategies.DeepSpeedStrategy(config=settings)
    assert strategy.config["zero_optimization"]["stage"] == 3
    assert strategy.zero_stage_3


@pytest.mark.usefixtures("accelerate_state")
def test_transformers_takes_every_argument(bundles, tmp_path):
    transformers = pytest.importorskip("transformers")
    for name, path in files_of(bundles, "huggingface/training_arguments.json").items():
        plan = PLANS[name]
        given = json.loads(path.read_text())
        given.pop("deepspeed", None)
        given |= {"use_cpu": True, "output_dir": str(tmp_path), "fp16": False}  # no GPU is needed to judge the rest
        given.pop("ddp_backend", None)
        arguments = transformers.TrainingArguments(**given)
        assert arguments.bf16 == (plan.precision == "bf16")
        assert arguments.per_device_train_batch_size == plan.batch.micro_batch_size
        assert arguments.gradient_accumulation_steps == plan.batch.gradient_accumulation_steps
        assert arguments.get_warmup_steps(plan.predicted.run_steps) == json.loads(path.read_text())["warmup_steps"]
        if plan.strategy == "fsdp2":
            assert arguments.fsdp_config["version"] == 2
            assert arguments.fsdp_config["transformer_layer_cls_to_wrap"] == ["Block"]


@pytest.mark.usefixtures("accelerate_state")
def test_transformers_finds_no_contradiction_between_its_arguments_and_deepspeeds(bundles, tmp_path):
    transformers = pytest.importorskip("transformers")
    integration = pytest.importorskip("transformers.integrations.deepspeed")
    pytest.importorskip("deepspeed")
    for name in ("zero3_gpu", "zero_offload_gpu"):
        folder = bundles[name] / "targets" / "huggingface"
        given = json.loads((folder / "training_arguments.json").read_text())
        reference = folder / given.pop("deepspeed")
        precision = {key: given.pop(key) for key in ("bf16", "fp16")}
        given.pop("ddp_backend", None)
        arguments = transformers.TrainingArguments(**given | {"use_cpu": True, "output_dir": str(tmp_path)})
        arguments.bf16, arguments.fp16 = precision["bf16"], precision["fp16"]
        config = integration.HfTrainerDeepSpeedConfig(str(reference))
        config.trainer_config_process(arguments)
        # one process here, so only the product over all of them may differ
        assert [m for m in config.mismatches if "train_batch_size" not in m] == []


def directives(path: Path) -> list[list[str]]:
    """Return the options of each component of a batch script; Slurm stops reading at the first command."""
    components: list[list[str]] = [[]]
    for line in path.read_text().splitlines():
        if line == "#SBATCH hetjob":
            components.append([])
        elif line.startswith("#SBATCH "):
            components[-1].append(line.removeprefix("#SBATCH "))
        elif line and not line.startswith("#"):
            break
    assert path.read_text().count("#SBATCH ") == sum(map(len, components)) + len(components) - 1
    return components


def test_slurm_gets_one_component_for_each_group_and_one_task_on_each_node(bundles):
    for name, path in files_of(bundles, "slurm/job.sbatch").items():
        components = directives(path)
        assert len(components) == len(PLANS[name].groups)
        for options, nodes in zip(components, PLANS[name].groups, strict=True):
            assert f"--nodes={nodes.num_nodes}" in options
            assert "--ntasks-per-node=1" in options
            gpus = [f"--gpus-per-node={nodes.devices_per_node}"] if PLANS[name].device_kind == "cuda" else []
            assert [o for o in options if o.startswith("--gpus")] == gpus
    assert "--nodelist=slow-1" in directives(bundles["uneven_ddp_gpu"] / "targets/slurm/job.sbatch")[1]


def test_a_host_name_that_is_none_never_reaches_a_directive():
    names = ("good-1", "x\n#SBATCH --uid=0")
    plan = make_plan("ddp", "torchrun", (group(nodes=2, hostnames=names),))
    files = {f.path: f.content for f in render_bundle(plan, plan_examples.profile(), beside=("slurm",))}
    assert "--uid" not in files["targets/slurm/job.sbatch"]
    assert "--nodelist" not in files["targets/slurm/job.sbatch"]


def told(bundle: Path, tmp_path: Path, **environment: str) -> tuple[list[str], dict[str, str]]:
    """Run the batch script beside a srun that writes down what it is told; return arguments and variables."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "srun").write_text(
        '#!/usr/bin/env bash\nprintf \'%s\\0\' "$@" >"$TOLD.arguments"\n'
        'printf \'%s\\0\' "NNODES=${NNODES-}" "MASTER_ADDR=${MASTER_ADDR-}" >"$TOLD.variables"\n'
    )
    (tools / "scontrol").write_text(
        '#!/usr/bin/env bash\n[[ $1 $2 == "show hostnames" ]] && tr , "\\n" <<<"$3"\n'.replace("$1 $2", '"$1 $2"')
    )
    for tool in tools.iterdir():
        tool.chmod(0o755)
    script = bundle / "targets" / "slurm" / "job.sbatch"
    spooled = tmp_path / "slurm_script"  # Slurm runs a copy
    shutil.copy(script, spooled)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "STRATADVISOR"))}
    place = {"SLURM_SUBMIT_DIR": str(bundle), "TOLD": str(tmp_path / "told"), "PATH": f"{tools}:{os.environ['PATH']}"}
    subprocess.run(
        ["bash", str(spooled), "--steps", "7 8"], env=kept | place | environment, check=True, timeout=300, cwd="/"
    )
    arguments = (tmp_path / "told.arguments").read_text().split("\0")[:-1]
    variables = dict(v.split("=", 1) for v in (tmp_path / "told.variables").read_text().split("\0")[:-1])
    return arguments, variables


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_equal_nodes_are_started_by_one_srun(bundles, tmp_path):
    bundle = bundles["zero3_gpu"]
    arguments, variables = told(bundle, tmp_path, SLURM_CPUS_ON_NODE="64", NNODES="9", MASTER_ADDR="left-over")
    assert arguments[-4:] == ["bash", str(bundle / "launch.sh"), "--steps", "7 8"]
    assert "--cpus-per-task=64" in arguments
    assert "--nodes=2" in arguments
    assert variables == {"NNODES": "", "MASTER_ADDR": ""}  # launch.sh asks Slurm itself


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_unequal_groups_are_components_of_one_srun_in_the_order_of_the_plan(bundles, tmp_path):
    bundle = bundles["uneven_ddp_gpu"]
    arguments, variables = told(
        bundle,
        tmp_path,
        SLURM_JOB_ID="15007",
        SLURM_JOB_NODELIST_HET_GROUP_0="fast-1,fast-2",
        SLURM_JOB_CPUS_PER_NODE_HET_GROUP_0="64(x2)",
        SLURM_JOB_CPUS_PER_NODE_HET_GROUP_1="32",
    )
    middle = arguments.index(":")
    first, second = arguments[:middle], arguments[middle + 1 :]
    assert {"--het-group=0", "--cpus-per-task=64"} <= set(first)
    assert {"--het-group=1", "--cpus-per-task=32"} <= set(second)
    assert first[-3:] == second[-3:] == [str(bundle / "launch.sh"), "--steps", "7 8"]
    assert variables == {"NNODES": "3", "MASTER_ADDR": "fast-1"}


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_a_batch_script_away_from_its_bundle_says_so(bundles, tmp_path):
    script = bundles["zero3_gpu"] / "targets" / "slurm" / "job.sbatch"
    environment = {"PATH": os.environ["PATH"], "SLURM_SUBMIT_DIR": str(tmp_path)}
    done = subprocess.run(["bash", str(script)], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert "submit from the bundle's folder" in done.stderr

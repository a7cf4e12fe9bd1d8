"""Which targets a plan is written for, and what is said where one cannot express it."""

from __future__ import annotations

import json
from pathlib import Path

import plan_examples
import pytest
from plan_examples import MemoryPlan, group, make_plan

from stratadvisor import pipeline
from stratadvisor.cli import run
from stratadvisor.emit.bundle import read_bundle, render_bundle, write_bundle
from stratadvisor.emit.manifest import available_targets, load_manifest
from stratadvisor.emit.targets import choose_targets
from stratadvisor.emit.traits import TRAITS, plan_traits
from stratadvisor.errors import EmitError, UsageError

EXAMPLES = plan_examples.examples()
BESIDE = [name for name in available_targets() if load_manifest(name).role == "beside"]


def test_without_a_wish_a_plan_goes_to_its_own_target_alone():
    chosen = choose_targets(EXAMPLES["ddp_cpu"], ())
    assert (chosen.own, chosen.beside, chosen.refused) == ("torchrun", (), ())


def test_a_list_is_taken_in_order_and_the_plans_own_target_stays_in_place():
    chosen = choose_targets(EXAMPLES["ddp_cpu"], ("slurm", "torchrun", "accelerate", "slurm"))
    assert (chosen.own, chosen.beside) == ("torchrun", ("slurm", "accelerate"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_all_writes_what_it_can_and_says_why_it_leaves_the_others(name):
    chosen = choose_targets(EXAMPLES[name], ("all",))
    assert chosen.own == EXAMPLES[name].target
    assert "slurm" in chosen.beside
    left = set(BESIDE) - set(chosen.beside)
    assert len(chosen.refused) == len(left)
    for target in left:
        assert any(f"the target '{target}' cannot express" in sentence for sentence in chosen.refused)
    render_bundle(EXAMPLES[name], plan_examples.profile(), beside=chosen.beside)


def test_a_named_target_that_cannot_is_refused_with_the_reason_and_the_nearest_that_can():
    with pytest.raises(
        EmitError, match="'huggingface' cannot express the strategy 'hsdp': its FSDP settings"
    ) as caught:
        choose_targets(EXAMPLES["hsdp_gpu"], ("slurm", "huggingface"))
    assert caught.value.hint.startswith("the nearest target that can: accelerate")


def test_the_nearest_target_is_never_one_that_cannot_either():
    with pytest.raises(EmitError, match="'accelerate' cannot express the strategy 'uneven_ddp'") as caught:
        choose_targets(EXAMPLES["uneven_ddp_gpu"], ("accelerate",))
    assert caught.value.hint.startswith("the nearest target that can: torchrun")


def test_frameworks_that_would_silently_run_ddp_on_cpus_are_refused():
    zero = EXAMPLES["zero2_cpu"]
    fsdp = make_plan("fsdp2", "torchrun", shard_degree=2, memory=MemoryPlan(sharding="parameters"))
    for plan, targets in ((zero, ("accelerate", "lightning")), (fsdp, ("accelerate", "huggingface", "lightning"))):
        for target in targets:
            with pytest.raises(EmitError, match="CPU"):
                choose_targets(plan, (target,))
    assert choose_targets(zero, ("huggingface",)).beside == ("huggingface",)  # see test_targets_start.py


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [(("all", "slurm"), "already names every target"), (("deepspeed", "torchrun"), "cannot express the strategy")],
)
def test_lists_that_contradict_themselves_are_refused(wanted, sentence):
    with pytest.raises((UsageError, EmitError), match=sentence):
        choose_targets(EXAMPLES["ddp_cpu"], wanted)


def test_a_target_is_never_put_in_the_wrong_place():
    plan, profile = EXAMPLES["ddp_cpu"], plan_examples.profile()
    with pytest.raises(EmitError, match="beside a bundle, not in its place"):
        render_bundle(plan, profile, "slurm")
    with pytest.raises(EmitError, match="not beside it"):
        render_bundle(plan, profile, beside=("torchrun",))


def test_traits_are_found_where_the_plan_has_them():
    assert plan_traits(EXAMPLES["ddp_cpu"]) == {"cpu"}
    assert {"unequal_shares", "unequal_nodes", "several_nodes"} <= plan_traits(EXAMPLES["uneven_ddp_gpu"])
    assert {"fp16", "half_precision", "offload_cpu"} == plan_traits(EXAMPLES["zero_offload_gpu"])
    # 3 sequences in two micro-batches of up to 2: the second has one
    uneven = group().model_copy(update={"gradient_accumulation_steps": 2, "batch_per_device": 3})
    assert "unequal_shares" in plan_traits(make_plan("ddp", "torchrun", (uneven,)))
    assert all(plan_traits(plan) <= set(TRAITS) for plan in EXAMPLES.values())


def test_files_beside_a_bundle_are_in_its_lock_and_go_when_no_longer_wanted(tmp_path):
    plan, profile = EXAMPLES["ddp_cpu"], plan_examples.profile()
    write_bundle(render_bundle(plan, profile, beside=("slurm", "accelerate")), tmp_path / "b")
    (tmp_path / "b" / "targets" / "slurm" / "job.sbatch").open("a").write("# mine\n")
    assert read_bundle(tmp_path / "b").drifted == ("targets/slurm/job.sbatch",)
    verdicts = {v.path: v.verdict for v in write_bundle(render_bundle(plan, profile), tmp_path / "b")}
    assert verdicts["targets/slurm/job.sbatch"] == "kept"
    assert verdicts["targets/accelerate/launch.sh"] == "removed"
    assert not (tmp_path / "b" / "targets" / "accelerate").exists()


def test_an_overlay_adds_a_target_beside_the_bundle_and_shadows_a_shipped_one(tmp_path):
    folder = tmp_path / "templates" / "mine"
    folder.mkdir(parents=True)
    (folder / "emitter.toml").write_text(
        'summary = "s"\nsince = "0.1.0"\nrole = "beside"\nstrategies = ["ddp"]\nentrypoint = "go.sh"\n'
        '[refuses]\nfp16 = "no"\n[[output]]\ntemplate = "mine/go.sh.j2"\npath = "go.sh"\n'
        'format = "shell"\nexecutable = true\n'
    )
    (folder / "go.sh.j2").write_text("echo {{ target | sh }} {{ plan.strategy | sh }}\n")
    files = render_bundle(EXAMPLES["ddp_cpu"], plan_examples.profile(), overlays=(tmp_path,), beside=("mine", "slurm"))
    made = {file.path: file for file in files}
    assert made["targets/mine/go.sh"].content == "echo mine ddp\n"
    assert made["targets/mine/go.sh"].executable
    assert "targets/slurm/job.sbatch" in made


def recommend(directory: Path, *options: str) -> int:
    hardware = ["--gpus", "2xA100-80GB", "--intra-node", "300GB/s"]
    return run(["recommend", "--model-size", "125M", *hardware, "--output", str(directory), *options])


def test_the_command_line_writes_targets_beside_the_bundle(tmp_path, capsys):
    assert recommend(tmp_path / "b", "--strategy", "ddp", "--target", "accelerate, slurm") == 0
    capsys.readouterr()
    assert {p.name for p in (tmp_path / "b" / "targets").iterdir()} == {"accelerate", "slurm"}
    lock = json.loads((tmp_path / "b" / "stratadvisor.lock.json").read_text())
    assert lock["entrypoint"] == "launch.sh"


@pytest.mark.parametrize(
    ("target", "code", "sentence"),
    [
        ("nonsense", 7, "there is no target 'nonsense'"),
        (",", 2, "--target names no target"),
        ("slurm,all", 2, "already names every target"),
        ("async", 7, "the nearest target that can: torchrun"),
    ],
)
def test_the_command_line_refuses_in_one_sentence_and_writes_nothing(tmp_path, capsys, target, code, sentence):
    assert recommend(tmp_path / "b", "--strategy", "ddp", "--target", target) == code
    said = " ".join(capsys.readouterr().err.split())
    assert sentence in said
    assert not (tmp_path / "b").exists()


def test_the_library_takes_the_same_list(tmp_path):
    chosen = pipeline.choose_targets(EXAMPLES["ddp_cpu"], "slurm, lightning")
    assert chosen.beside == ("slurm", "lightning")
    assert pipeline.choose_targets(EXAMPLES["ddp_cpu"], None).beside == ()


def test_the_documentation_names_every_target():
    table = (Path(__file__).parents[2] / "docs" / "targets.md").read_text(encoding="utf-8")
    named = [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")]
    assert sorted(named) == sorted(available_targets())

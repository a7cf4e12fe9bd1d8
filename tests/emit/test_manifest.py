from __future__ import annotations

from pathlib import Path

import pytest

from stratadvisor.emit.manifest import MAX_MEMBER_BYTES, available_targets, check_relative, load_manifest
from stratadvisor.emit.train_config import ENGINES
from stratadvisor.errors import EmitError
from stratadvisor.strategies import STRATEGIES

GOOD = """
summary = "a target"
since = "0.1.0"
strategies = ["ddp"]
entrypoint = "go.sh"
[[output]]
template = "mine/go.sh.j2"
path = "go.sh"
format = "shell"
executable = true
"""


def overlay(root: Path, name: str, text: str) -> Path:
    folder = root / "templates" / name
    folder.mkdir(parents=True)
    (folder / "emitter.toml").write_text(text)
    return root


WHOLE = ("async", "deepspeed", "flower", "megatron", "torchrun")
"""Targets that make a bundle; all others lie beside one."""


def test_five_shipped_targets_make_a_bundle():
    assert tuple(t for t in available_targets() if load_manifest(t).role == "bundle") == WHOLE


def test_the_target_of_every_strategy_makes_its_bundle():
    assert set(STRATEGIES) == set(ENGINES)
    for name, strategy in STRATEGIES.items():
        assert strategy.target in WHOLE, name
        assert name in load_manifest(strategy.target).strategies


def test_every_target_beside_a_bundle_knows_each_strategy_or_says_why_not():
    for target in set(available_targets()) - set(WHOLE):
        manifest = load_manifest(target)
        assert sorted((*manifest.strategies, *manifest.without)) == sorted(ENGINES), target
        assert set(manifest.nearest) <= set(available_targets()), target


def test_shipped_templates_exist_and_every_target_starts_with_launch_sh():
    from stratadvisor.resources import bundled

    for target in available_targets():
        manifest = load_manifest(target)
        assert manifest.entrypoint == {"slurm": "job.sbatch", "kubeflow": "submit.sh"}.get(target, "launch.sh")
        for output in manifest.outputs:
            assert bundled("templates").joinpath(*output.template.split("/")).is_file(), output.template


def test_an_unknown_target_is_answered_with_the_known_ones():
    with pytest.raises(EmitError, match="no target 'kubernetes'") as caught:
        load_manifest("kubernetes")
    assert all(name in caught.value.hint for name in WHOLE)


@pytest.mark.parametrize("name", ["", "..", "../torchrun", "/etc", "Torch Run", "a\nb", "_shared"])
def test_a_target_name_is_never_used_as_a_path(name):
    with pytest.raises(EmitError, match="no target"):
        load_manifest(name)


def test_an_overlay_adds_a_target_and_the_last_overlay_wins(tmp_path):
    first = overlay(tmp_path / "one", "mine", GOOD)
    second = overlay(tmp_path / "two", "mine", GOOD.replace("a target", "another"))
    assert "mine" in available_targets((first,))
    assert load_manifest("mine", (first, second)).summary == "another"
    assert load_manifest("mine", (second, first)).summary == "a target"


def test_an_overlay_that_is_no_directory_is_named(tmp_path):
    with pytest.raises(EmitError, match="absent is not a directory"):
        load_manifest("torchrun", (tmp_path / "absent",))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("summary =", "sumary ="), "summary: Field required"),
        (('entrypoint = "go.sh"', 'entrypoint = "run.sh"'), "entrypoint 'run.sh' is none of the outputs go.sh"),
        (("executable = true", ""), "must be an executable output"),
        (("executable = true", 'executable = true\nwhen = "several_nodes"'), "always made"),
        (('path = "go.sh"', 'path = "../go.sh"'), "not a plain relative path"),
        (('path = "go.sh"', 'path = "/go.sh"'), "not a plain relative path"),
        (('template = "mine/go.sh.j2"', 'template = "../../etc/passwd"'), "not a plain relative path"),
        (('format = "shell"', 'format = "perl"'), "format"),
        (('strategies = ["ddp"]', "strategies = []"), "strategies"),
        (('path = "go.sh"', 'path = "plan.json"'), "every bundle has that file"),
        (('path = "go.sh"', 'path = "targets/x/go.sh"'), "every bundle has that file"),
        (('entrypoint = "go.sh"', 'entrypoint = "go.sh"\nrefuses = {haste = "no"}'), "refuses.haste is no trait"),
        (('path = "go.sh"', 'path = "stratadvisor_runtime/x.py"'), "every bundle has that file"),
        (("[[output]]", "[[output"), "not usable TOML"),
        (('since = "0.1.0"', "since = 0.1.0"), "not usable TOML"),
    ],
)
def test_a_wrong_manifest_is_reported_with_its_file_and_what_is_wrong(tmp_path, change, expected):
    root = overlay(tmp_path, "mine", GOOD.replace(*change))
    with pytest.raises(EmitError) as caught:
        load_manifest("mine", (root,))
    assert str(tmp_path / "templates" / "mine" / "emitter.toml") in caught.value.message
    assert expected in caught.value.message
    assert "\n" not in caught.value.message


def test_two_outputs_of_one_path_are_refused(tmp_path):
    twice = GOOD + GOOD[GOOD.index("[[output]]") :]
    with pytest.raises(EmitError, match=r"two outputs are written to 'go\.sh'"):
        load_manifest("mine", (overlay(tmp_path, "mine", twice),))


@pytest.mark.parametrize("path", ["", "/a", "..", "a/../b", "a//b", "./a", "a/", "a\\b", "a\0b"])
def test_paths_that_could_lead_out_are_refused(path):
    with pytest.raises(ValueError, match="plain relative path"):
        check_relative(path)


@pytest.mark.parametrize("path", ["a", "a/b.py", "a b", ".hidden", "a..b"])
def test_plain_paths_are_returned_unchanged(path):
    assert check_relative(path) == path


def test_an_overlay_of_rules_alone_adds_no_target(tmp_path):
    (tmp_path / "rules").mkdir()
    assert available_targets((tmp_path,)) == available_targets()


def test_a_template_is_a_file_of_the_overlay_itself_and_no_book(tmp_path):
    secret = tmp_path / "secret.toml"
    secret.write_text(GOOD)
    there = tmp_path / "mine"
    folder = there / "templates" / "mine"
    folder.mkdir(parents=True)
    (folder / "emitter.toml").symlink_to(secret)
    with pytest.raises(EmitError, match="is a symbolic link that leads out of"):
        load_manifest("mine", (there,))
    (folder / "emitter.toml").unlink()
    (folder / "emitter.toml").write_text(GOOD + "#" * MAX_MEMBER_BYTES)
    with pytest.raises(EmitError, match=f"is larger than {MAX_MEMBER_BYTES // 1024} KiB"):
        load_manifest("mine", (there,))

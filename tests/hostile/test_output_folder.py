"""Nothing is written outside the output folder, whatever lies in it, and nothing in it makes a command wait."""

from __future__ import annotations

import json
import os

import plan_examples
import pytest
from hostile_inputs import ask, tree

from stratadvisor import pipeline
from stratadvisor.cli import run
from stratadvisor.emit.bundle import render_bundle, write_bundle
from stratadvisor.emit.write import write_files
from stratadvisor.errors import EmitError, StratadvisorError, UsageError
from stratadvisor.schema.emission import EmittedFile

ASK = ["recommend", "--model-size", "350M", "--gpus", "2xA100-80GB"]


@pytest.fixture
def outside(tmp_path):
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "mine").write_text("precious")
    return folder


@pytest.mark.parametrize("inside", ["train.py", "launch.sh", "plan.json", "stratadvisor.lock.json"])
@pytest.mark.parametrize("force", [True, False])
def test_a_link_to_a_file_outside_is_not_followed(capsys, tmp_path, outside, inside, force):
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / inside).symlink_to(outside / "mine")
    code, _, _ = ask([*ASK, "--output", bundle, *(["--force"] if force else [])], capsys)
    assert code == 7
    assert (outside / "mine").read_text() == "precious"
    assert tree(bundle) == {inside}


def test_a_link_to_a_folder_outside_is_not_followed(capsys, tmp_path, outside):
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "stratadvisor_runtime").symlink_to(outside)
    code, _, err = ask([*ASK, "--output", bundle, "--force"], capsys)
    assert code == 7
    assert "symbolic link that leads out" in err
    assert tree(outside) == {"mine"}


@pytest.mark.parametrize("inside", ["train.py", "launch.sh", "stratadvisor.lock.json"])
def test_a_pipe_in_the_folder_does_not_wait_for_ever(capsys, tmp_path, inside):
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    os.mkfifo(bundle / inside)
    code, _, err = ask([*ASK, "--output", bundle], capsys)
    assert code == 7
    assert inside in err


@pytest.mark.parametrize("path", ["../escape", "/tmp/escape", "a/../../escape", "a\\..\\escape", "", "./a", "a//b"])
def test_a_file_with_a_path_that_leads_out_is_refused(tmp_path, path):
    bundle = tmp_path / "bundle"
    with pytest.raises(EmitError, match="not a plain relative path"):
        write_files([EmittedFile(path=path, content="x", format="text")], bundle)
    assert tree(tmp_path) == set()


@pytest.mark.parametrize("name", ["../outside/mine", "/etc/hostname", "a/../../outside/mine"])
def test_a_lock_of_a_stranger_cannot_remove_or_read_files_elsewhere(capsys, tmp_path, outside, name):
    bundle = tmp_path / "bundle"
    files = render_bundle(plan_examples.examples()["ddp_cpu"], plan_examples.profile())
    write_bundle(files, bundle)
    lock = json.loads((bundle / "stratadvisor.lock.json").read_text())
    lock["digests"][name] = "0" * 64
    (bundle / "stratadvisor.lock.json").write_text(json.dumps(lock))
    code, _, err = ask([*ASK, "--output", bundle], capsys)
    assert code == 7
    assert "not a plain relative path" in err
    assert (outside / "mine").read_text() == "precious"
    code, _, err = ask(["run-config", bundle], capsys)
    assert code == 2
    assert "not a plain relative path" in err


@pytest.mark.parametrize("folder", ["proxy", "compare", "compare/zero2"])
def test_run_config_is_not_led_out_of_a_bundle(tmp_path, outside, folder):
    bundle = tmp_path / "bundle"
    write_bundle(render_bundle(plan_examples.examples()["hsdp_gpu"], plan_examples.profile()), bundle)
    (bundle / folder).parent.mkdir(exist_ok=True)
    (bundle / folder).symlink_to(outside)
    with pytest.raises(UsageError, match="symbolic link that leads out"):
        pipeline.run_config(bundle, steps=2)
    assert tree(outside) == {"mine"}


def test_nothing_is_left_where_a_name_of_the_folder_is_a_file(capsys, tmp_path):
    (tmp_path / "bundle").write_text("mine")
    code, _, _ = ask([*ASK, "--output", tmp_path / "bundle"], capsys)
    assert code == 7
    assert tree(tmp_path) == {"bundle"}


def test_a_bundle_goes_where_it_is_told_and_nowhere_else(capsys, tmp_path, monkeypatch):
    home, place = tmp_path / "home", tmp_path / "place"
    home.mkdir()
    place.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    monkeypatch.chdir(place)
    assert run([*ASK, "--output", "b"]) == 0
    capsys.readouterr()
    assert tree(home) == set()
    assert {path.split("/")[0] for path in tree(place)} == {"b"}


def test_temporary_files_are_for_their_owner_alone(tmp_path, monkeypatch):
    from stratadvisor import store

    seen = []
    real = os.fsync

    def look(handle: int) -> None:
        seen.append(os.fstat(handle).st_mode & 0o777)
        real(handle)

    monkeypatch.setattr(os, "fsync", look)
    old = os.umask(0)
    try:
        store.atomic_write(tmp_path / "profile.json", "{}")
    finally:
        os.umask(old)
    assert seen == [0o600]
    assert tree(tmp_path) == {"profile.json"}


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    from stratadvisor import store

    path = tmp_path / "profile.json"
    path.write_text("old")

    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StratadvisorError, match="No space left"):
        store.atomic_write(path, "new")
    assert path.read_text() == "old"
    assert tree(tmp_path) == {"profile.json"}

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stratadvisor.emit import write
from stratadvisor.emit.lock import drifted_files, lock_file, read_lock
from stratadvisor.emit.write import compare, write_files
from stratadvisor.errors import EmitError
from stratadvisor.schema.emission import LOCK_NAME, EmittedFile

DEFAULT = {"launch.sh": "echo old\n", "config.json": "{}\n", "deep/er/module.py": "x = 1\n"}


def bundle(contents: dict[str, str] | None = None) -> tuple[EmittedFile, ...]:
    kinds = {".sh": "shell", ".json": "json", ".py": "python"}
    files = [
        EmittedFile(
            path=path, content=text, format=kinds.get(Path(path).suffix, "text"), executable=path.endswith(".sh")
        )
        for path, text in (DEFAULT if contents is None else contents).items()
    ]
    return (*files, lock_file(files, "launch.sh"))


def tree(directory: Path) -> dict[str, str]:
    return {str(p.relative_to(directory)): p.read_text() for p in directory.rglob("*") if p.is_file()}


def verdicts(result) -> dict[str, str]:
    return {v.path: v.verdict for v in result}


def test_a_new_bundle_is_created_complete_with_executable_bits(tmp_path):
    target = tmp_path / "not" / "yet" / "bundle"
    result = verdicts(write_files(bundle(), target))
    assert set(result.values()) == {"create"}
    assert tree(target) == {file.path: file.content for file in bundle()}
    assert os.access(target / "launch.sh", os.X_OK)
    assert not (target / "config.json").stat().st_mode & 0o111
    assert os.listdir(tmp_path / "not" / "yet") == ["bundle"]
    assert drifted_files(target, read_lock(target)) == ()


def test_new_files_get_the_permissions_of_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write_files(bundle(), tmp_path / "bundle")
    finally:
        os.umask(before)
    assert (tmp_path / "bundle" / "launch.sh").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "bundle" / "config.json").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "bundle").stat().st_mode & 0o777 == 0o750


def test_writing_the_same_again_touches_nothing(tmp_path):
    write_files(bundle(), tmp_path / "b")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "b").rglob("*")}
    assert set(verdicts(write_files(bundle(), tmp_path / "b")).values()) == {"identical"}
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "b").rglob("*")} == before


def test_untouched_files_are_replaced_and_new_ones_added(tmp_path):
    write_files(bundle(), tmp_path)
    changed = DEFAULT | {"launch.sh": "echo new\n", "more/new.py": "y = 2\n"}
    result = verdicts(write_files(bundle(changed), tmp_path))
    assert result["launch.sh"] == "changed"
    assert result["config.json"] == "identical"
    assert result["more/new.py"] == "create"
    assert tree(tmp_path) == {file.path: file.content for file in bundle(changed)}
    assert os.access(tmp_path / "launch.sh", os.X_OK)


def test_an_edited_file_stops_everything_without_force(tmp_path):
    write_files(bundle(), tmp_path)
    (tmp_path / "config.json").write_text('{"mine": 1}\n')
    before = tree(tmp_path)
    changed = bundle(DEFAULT | {"config.json": '{"new": 1}\n', "launch.sh": "echo new\n"})
    assert verdicts(compare(changed, tmp_path))["config.json"] == "conflict"
    with pytest.raises(EmitError, match=r"config\.json") as caught:
        write_files(changed, tmp_path)
    assert "--force" in caught.value.hint
    assert "launch.sh" not in caught.value.message
    assert tree(tmp_path) == before


def test_force_writes_over_an_edit(tmp_path):
    write_files(bundle(), tmp_path)
    (tmp_path / "config.json").write_text('{"mine": 1}\n')
    changed = bundle(DEFAULT | {"config.json": '{"new": 1}\n'})
    assert verdicts(write_files(changed, tmp_path, force=True))["config.json"] == "conflict"
    assert tree(tmp_path) == {file.path: file.content for file in changed}


def test_an_edit_that_equals_the_new_content_is_no_conflict(tmp_path):
    write_files(bundle(), tmp_path)
    (tmp_path / "config.json").write_text('{"new": 1}\n')
    changed = bundle(DEFAULT | {"config.json": '{"new": 1}\n'})
    assert verdicts(write_files(changed, tmp_path))["config.json"] == "identical"


def test_files_of_somebody_else_are_conflicts_and_unrelated_ones_stay(tmp_path):
    (tmp_path / "launch.sh").write_text("echo mine\n")
    (tmp_path / "notes.txt").write_text("keep\n")
    with pytest.raises(EmitError, match=r"written by somebody else: launch\.sh"):
        write_files(bundle(), tmp_path)
    assert tree(tmp_path) == {"launch.sh": "echo mine\n", "notes.txt": "keep\n"}
    write_files(bundle(), tmp_path, force=True)
    assert (tmp_path / "notes.txt").read_text() == "keep\n"


def test_many_conflicts_are_counted_not_listed_in_full(tmp_path):
    contents = {f"file{i}.txt": "new\n" for i in range(9)}
    for name in contents:
        (tmp_path / name).write_text("mine\n")
    with pytest.raises(EmitError, match="and 4 more"):
        write_files(bundle(contents), tmp_path)


def test_files_of_the_earlier_plan_go_unless_they_were_edited(tmp_path):
    write_files(bundle(DEFAULT | {"old/ds.json": "{}\n", "hostfile": "a slots=1\n"}), tmp_path)
    (tmp_path / "hostfile").write_text("b slots=1\n")
    result = verdicts(write_files(bundle(), tmp_path))
    assert result["old/ds.json"] == "removed"
    assert result["hostfile"] == "kept"
    assert not (tmp_path / "old").exists()
    assert (tmp_path / "hostfile").read_text() == "b slots=1\n"
    assert "hostfile" not in read_lock(tmp_path).digests


def test_a_lost_executable_bit_is_given_back(tmp_path):
    write_files(bundle(), tmp_path)
    (tmp_path / "launch.sh").chmod(0o644)
    if os.access(tmp_path / "launch.sh", os.X_OK):
        pytest.skip("this file system knows no executable bit")
    assert verdicts(write_files(bundle(), tmp_path))["launch.sh"] == "changed"
    assert os.access(tmp_path / "launch.sh", os.X_OK)


def test_a_symbolic_link_that_leads_outside_is_refused(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "er").mkdir()
    target = tmp_path / "bundle"
    target.mkdir()
    (target / "deep").symlink_to(outside)
    with pytest.raises(EmitError, match="symbolic link that leads out"):
        write_files(bundle(), target, force=True)
    assert tree(outside) == {}
    assert tree(target) == {}


def test_a_linked_file_outside_is_refused_and_stays(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret\n")
    target = tmp_path / "bundle"
    target.mkdir()
    (target / "config.json").symlink_to(secret)
    with pytest.raises(EmitError, match="symbolic link that leads out"):
        write_files(bundle(), target, force=True)
    assert secret.read_text() == "secret\n"


def test_a_link_in_a_circle_is_refused(tmp_path):
    (tmp_path / "deep").symlink_to("deep")
    with pytest.raises(EmitError, match="symbolic link"):
        write_files(bundle(), tmp_path)


def test_a_link_inside_the_bundle_is_replaced_not_followed(tmp_path):
    (tmp_path / "other.json").write_text('{"keep": 1}\n')
    (tmp_path / "config.json").symlink_to("other.json")
    write_files(bundle(), tmp_path, force=True)
    assert not (tmp_path / "config.json").is_symlink()
    assert (tmp_path / "other.json").read_text() == '{"keep": 1}\n'


def test_the_bundle_may_itself_be_reached_through_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    write_files(bundle(), tmp_path / "link")
    assert tree(tmp_path / "real") == {file.path: file.content for file in bundle()}


def test_a_file_in_place_of_the_directory_is_named(tmp_path):
    (tmp_path / "bundle").write_text("x")
    with pytest.raises(EmitError, match="is a file; a bundle is a directory"):
        write_files(bundle(), tmp_path / "bundle")
    with pytest.raises(EmitError, match="cannot be written"):
        write_files(bundle(), tmp_path / "bundle" / "below")


def test_a_directory_in_place_of_a_file_is_named(tmp_path):
    (tmp_path / "launch.sh").mkdir()
    with pytest.raises(EmitError, match="is a directory"):
        write_files(bundle(), tmp_path, force=True)


def test_a_file_in_place_of_a_folder_leaves_everything_as_it_was(tmp_path):
    (tmp_path / "deep").write_text("x")
    with pytest.raises(EmitError, match="as it was before"):
        write_files(bundle(), tmp_path, force=True)
    assert tree(tmp_path) == {"deep": "x"}


@pytest.mark.parametrize("path", ["../escape", "/tmp/escape", "a/../../escape"])
def test_paths_out_of_the_bundle_are_refused(tmp_path, path):
    file = EmittedFile(path=path, content="x", format="text")
    with pytest.raises(EmitError, match="plain relative path"):
        write_files((file,), tmp_path / "bundle", force=True)
    assert not (tmp_path / "bundle").exists()


def test_two_files_of_one_path_are_refused(tmp_path):
    file = EmittedFile(path="a", content="x", format="text")
    with pytest.raises(EmitError, match="two files are to be written to a"):
        write_files((file, file), tmp_path / "bundle")


@pytest.mark.parametrize("text", ["{", "[]", '{"stratadvisor_version": 1}', '{"schema_version": 1, "x": 2}', "\xff"])
def test_an_unreadable_lock_needs_force(tmp_path, text):
    write_files(bundle(), tmp_path)
    (tmp_path / LOCK_NAME).write_text(text, encoding="latin-1")
    with pytest.raises(EmitError) as caught:
        write_files(bundle(), tmp_path)
    assert "--force" in caught.value.hint
    write_files(bundle(), tmp_path, force=True)
    assert drifted_files(tmp_path, read_lock(tmp_path)) == ()


def test_a_lock_that_names_files_outside_is_refused(tmp_path):
    (tmp_path / "secret").write_text("x")
    target = tmp_path / "bundle"
    write_files(bundle(), target)
    lock = read_lock(target)
    evil = lock.model_copy(update={"digests": {"../secret": "0" * 64}})
    (target / LOCK_NAME).write_text(evil.model_dump_json())
    with pytest.raises(EmitError, match="plain relative path"):
        write_files(bundle(), target)
    assert (tmp_path / "secret").exists()


def replace_that_fails_at(count: int):
    """Return a Path.replace that fails like a full disk at its ``count``-th call on a staged file."""
    real, calls = Path.replace, [0]

    def replace(self, target):
        if self.parent.name == "new":
            calls[0] += 1
            if calls[0] == count:
                raise OSError(28, "No space left on device", str(target))
        return real(self, target)

    return replace


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_a_failure_at_any_step_puts_everything_back(tmp_path, monkeypatch, count):
    write_files(bundle(DEFAULT | {"gone.txt": "old\n"}), tmp_path)
    before = tree(tmp_path)
    changed = bundle({path: f"{text}# new\n" for path, text in DEFAULT.items()} | {"fresh/new.txt": "new\n"})
    assert len(changed) == 5
    monkeypatch.setattr(write.Path, "replace", replace_that_fails_at(count))
    with pytest.raises(EmitError, match="No space left on device"):
        write_files(changed, tmp_path)
    monkeypatch.undo()
    assert tree(tmp_path) == before
    assert not (tmp_path / "fresh").exists()
    assert (tmp_path / "launch.sh").stat().st_mode & 0o111 == (0o111 & ~current_umask())
    write_files(changed, tmp_path)
    assert tree(tmp_path) == {file.path: file.content for file in changed}


def current_umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def test_a_failure_while_staging_leaves_no_trace_of_a_new_bundle(tmp_path, monkeypatch):
    real, calls = write._stage, [0]

    def stage(file, place, umask):
        calls[0] += 1
        if calls[0] == 3:
            raise OSError(28, "No space left on device")
        real(file, place, umask)

    monkeypatch.setattr(write, "_stage", stage)
    with pytest.raises(EmitError, match="No space left"):
        write_files(bundle(), tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_by_the_user_puts_everything_back(tmp_path, monkeypatch):
    write_files(bundle(), tmp_path)
    before = tree(tmp_path)
    real = Path.replace

    def replace(self, target):
        result = real(self, target)
        if self.parent.name == "new":
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(write.Path, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        write_files(bundle({path: f"{text}# new\n" for path, text in DEFAULT.items()}), tmp_path)
    assert tree(tmp_path) == before


KILLED_AFTER_TWO = """
import json, os, sys
from pathlib import Path
from stratadvisor.emit.write import write_files
from stratadvisor.schema.emission import EmittedFile
real, calls = Path.replace, [0]
def replace(self, target):
    result = real(self, target)
    calls[0] += self.parent.name == "new"
    if calls[0] == 2:
        os._exit(9)  # no handler runs, as after kill -9
    return result
Path.replace = replace
files = [EmittedFile(**file) for file in json.loads(Path(sys.argv[1]).read_text())]
write_files(files, Path(sys.argv[2]))
"""


def test_a_process_killed_in_between_leaves_whole_files_that_the_lock_reports(tmp_path):
    write_files(bundle(), tmp_path)
    old = tree(tmp_path)
    changed = bundle({path: f"{text}# new\n" for path, text in DEFAULT.items()})
    new = {file.path: file.content for file in changed}
    asked = tmp_path.with_name("asked.json")
    asked.write_text(json.dumps([file.model_dump() for file in changed]))
    child = subprocess.run(
        [sys.executable, "-c", KILLED_AFTER_TWO, str(asked), str(tmp_path)], check=False, timeout=300
    )
    assert child.returncode == 9
    found = {path: text for path, text in tree(tmp_path).items() if not path.startswith(".stratadvisor-")}
    assert found.keys() == old.keys()
    assert all(text in (old[path], new[path]) for path, text in found.items())
    assert sum(found[path] == new[path] for path in DEFAULT) == 2
    assert len(drifted_files(tmp_path, read_lock(tmp_path))) == 2
    write_files(changed, tmp_path, force=True)
    assert {p: t for p, t in tree(tmp_path).items() if not p.startswith(".stratadvisor-")} == new


def test_a_read_only_directory_is_reported_and_left_alone(tmp_path):
    target = tmp_path / "bundle"
    write_files(bundle(), target)
    before = tree(target)
    changed = bundle(DEFAULT | {"launch.sh": "echo new\n"})
    target.chmod(0o555)
    user, modes = os.geteuid(), {}
    if user == 0:  # permissions do not stop root: act as somebody else, who may look
        modes = {folder: folder.stat().st_mode for folder in (tmp_path, *tmp_path.parents)}
        for folder, mode in modes.items():
            if mode & 0o005 != 0o005:
                folder.chmod(mode | 0o055)
    try:
        if user == 0:
            try:
                os.seteuid(65534)
            except OSError:
                pytest.skip("root here may not become another user")
        if not os.access(target, os.R_OK | os.X_OK, effective_ids=True):
            pytest.skip("another user cannot reach the temporary directory")
        with pytest.raises(EmitError, match="cannot be written") as caught:
            write_files(changed, target)
        with pytest.raises(EmitError, match="cannot be written"):
            write_files(bundle(), target / "below" / "new")
    finally:
        os.seteuid(user)
        target.chmod(0o755)
        for folder, mode in modes.items():
            folder.chmod(mode & 0o7777)
    assert "Permission denied" in caught.value.message
    assert tree(target) == before

from __future__ import annotations

import hashlib
import os

import pytest

from stratadvisor import __version__
from stratadvisor.emit.lock import digest_file, drifted_files, lock_file, read_lock
from stratadvisor.errors import EmitError, UsageError
from stratadvisor.schema.emission import LOCK_NAME, EmittedFile, Lock

FILES = [
    EmittedFile(path="b/two.txt", content="zwei ü\n", format="text"),
    EmittedFile(path="a.txt", content="one\n", format="text"),
]


def place(directory) -> Lock:
    for file in [*FILES, lock_file(FILES, "a.txt")]:
        path = directory / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.content, encoding="utf-8")
    lock = read_lock(directory)
    assert lock is not None
    return lock


def test_the_lock_holds_the_sha256_of_every_file_and_the_version(tmp_path):
    lock = place(tmp_path)
    assert lock.stratadvisor_version == __version__
    assert lock.entrypoint == "a.txt"
    assert lock.digests == {file.path: hashlib.sha256(file.content.encode()).hexdigest() for file in FILES}


def test_the_lock_does_not_depend_on_the_order_of_the_files():
    assert lock_file(FILES, "a.txt") == lock_file(FILES[::-1], "a.txt")


def test_untouched_files_have_not_drifted(tmp_path):
    assert drifted_files(tmp_path, place(tmp_path)) == ()


def test_edited_and_missing_files_have_drifted(tmp_path):
    lock = place(tmp_path)
    (tmp_path / "b" / "two.txt").unlink()
    assert drifted_files(tmp_path, lock) == ("b/two.txt",)
    (tmp_path / "a.txt").write_text("one \n")
    assert drifted_files(tmp_path, lock) == ("a.txt", "b/two.txt")


def test_further_files_are_not_drift(tmp_path):
    lock = place(tmp_path)
    (tmp_path / "mine.txt").write_text("x")
    assert drifted_files(tmp_path, lock) == ()


def test_a_file_that_is_not_there_has_no_digest(tmp_path):
    assert digest_file(tmp_path / "absent") is None
    (tmp_path / "file").write_text("")
    assert digest_file(tmp_path / "file" / "below") is None


def test_a_directory_without_a_lock_has_none(tmp_path):
    assert read_lock(tmp_path) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not JSON"),
        ("[1]", "JSON list"),
        ("{}", "stratadvisor_version"),
        ('{"stratadvisor_version": "1", "digest": {}}', "digest"),
        ('{"stratadvisor_version": "1", "digests": {"../x": "0"}}', "plain relative path"),
        ('{"stratadvisor_version": "1", "entrypoint": "/bin/sh"}', "plain relative path"),
    ],
)
def test_a_lock_that_cannot_be_read_is_reported_with_the_callers_error(tmp_path, text, reason):
    (tmp_path / LOCK_NAME).write_text(text)
    for kind in (EmitError, UsageError):
        with pytest.raises(kind, match=reason) as caught:
            read_lock(tmp_path, kind)
        assert LOCK_NAME in caught.value.message


def test_a_pipe_has_no_digest_and_what_cannot_be_read_says_why(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(EmitError, match="pipe is not a regular file"):
        digest_file(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(EmitError, match="loop cannot be read: "):
        digest_file(tmp_path / "loop")
    assert digest_file(tmp_path / "nothing") is None

"""Files made to fill the memory or the stack: refused with one sentence, in a process with a gigabyte and a half."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from stratadvisor import store
from stratadvisor.errors import ProfileError

RUN = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (3 * 1024**3 // 2,) * 2)
from stratadvisor.cli import run
sys.exit(run(sys.argv[1:]))
"""
HEAD = '{"nodes": [{"hostname": "a", "devices": '
BOMBS = {
    "a million wrong nodes": '{"nodes": [' + ",".join(["0"] * 1_000_000) + "]}",
    "a million wrong devices": HEAD + "[" + ",".join(["{}"] * 1_000_000) + "]}]}",
    "a million wrong texts": HEAD
    + '[{"index": 0, "kind": "cuda", "name": "x", "throttle_reasons": ['
    + ",".join(["0"] * 1_000_000)
    + "]}]}]}",
    "a million keys": '{"nodes": [], ' + ",".join(f'"k{i}": 0' for i in range(500_000)) + "}",
    "deep lists": '{"nodes": ' + "[" * 200_000 + "]" * 200_000 + "}",
    "deep objects": '{"nodes": ' * 100_000 + "0" + "}" * 100_000,
    "a number of a million digits": '{"nodes": [], "schema_version": ' + "9" * 1_000_000 + "}",
    "an exponent of a million digits": '{"nodes": [], "schema_version": 1e' + "9" * 1_000_000 + "}",
    "a name of ten megabytes": '{"nodes": [{"hostname": "' + "x" * 10_000_000 + '", "bogus": 1}]}',
    "a key of ten megabytes": '{"' + "x" * 10_000_000 + '": 1, "nodes": []}',
    "one surrogate": '{"nodes": [{"hostname": "\\ud800"}]}',
    "a NUL": '{"nodes": [{"hostname": "\\u0000", "x": 1}]}',
    "NaN": '{"nodes": [{"hostname": "a", "speed_variation": NaN}]}',
    "minus infinity": '{"nodes": [{"hostname": "a", "speed_variation": -1e999}]}',
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_json_bomb_is_one_sentence(tmp_path, kind):
    path = tmp_path / "cluster.json"
    path.write_text(BOMBS[kind])
    done = subprocess.run(
        [sys.executable, "-c", RUN, "recommend", "--model-size", "1B", "--cluster", str(path), "--no-write"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 4, done.stderr[-2000:]
    assert done.stdout == ""
    assert done.stderr.startswith("stratadvisor: ")
    assert len(done.stderr) < 3000


@pytest.mark.parametrize(
    "text",
    ["x = " + "[" * 100_000, "[" + "a." * 100_000 + "b]", "x = " + "9" * 100_000, "x = nan\n", "[[node]]\ncount = inf"],
)
def test_a_toml_bomb_is_one_sentence(tmp_path, text):
    from stratadvisor.derive.declared import read_cluster_file

    path = tmp_path / "cluster.toml"
    path.write_text(text)
    with pytest.raises(ProfileError) as caught:
        read_cluster_file(path)
    assert str(path) in caught.value.message


def test_a_pipe_that_nobody_writes_to_does_not_wait_for_ever(tmp_path):
    pipe = tmp_path / "cluster.json"
    os.mkfifo(pipe)
    with pytest.raises(ProfileError, match="not JSON"):
        store.read_profile(pipe)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null", "/dev/full"])
def test_a_device_is_no_file(device):
    from pathlib import Path

    with pytest.raises(ProfileError, match="is a device"):
        store.read_profile(Path(device))


def test_a_pipe_of_a_shell_is_read(tmp_path):
    # recommend --cluster <(ssh node cat cluster.json)
    read, write = os.pipe()
    os.write(write, json.dumps({"nodes": [{"hostname": "a"}]}).encode())
    os.close(write)
    try:
        from pathlib import Path

        assert store.read_profile(Path(f"/dev/fd/{read}")).nodes[0].hostname == "a"
    finally:
        os.close(read)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "latin-1", "cp037"])
def test_another_encoding_is_one_sentence(tmp_path, encoding):
    path = tmp_path / "cluster.json"
    path.write_bytes('{"nodes": [{"hostname": "\u00e9"}]}'.encode(encoding))
    with pytest.raises(ProfileError, match=r"not UTF-8|not JSON"):
        store.read_profile(path)

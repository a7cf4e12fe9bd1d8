"""Real ssh and a real sshd that ssh starts itself (inetd mode), so that no port is needed."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import openssh
import pytest

from stratadvisor.cli import run
from stratadvisor.errors import ProbeError, UsageError
from stratadvisor.probe.ssh import Asked, probe_hosts
from stratadvisor.store import dump, read_profile

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def reached(tmp_path_factory) -> str:
    """The ssh command whose hosts one and two are this machine, dead refuses and silent says nothing."""
    if openssh.missing() is not None:
        assert not os.environ.get("CI"), "the test machine must have openssh-server"
        pytest.skip(openssh.missing() or "")
    folder = tmp_path_factory.mktemp("ssh")
    hosts = (
        f"Host one two\n  ProxyCommand {openssh.SSHD} -i -f {folder}/sshd_config -E {folder}/log\n"
        "Host dead\n  ProxyCommand false\n"
        "Host silent\n  ProxyCommand sleep 3600\n"
    )
    _, client = openssh.write_settings(folder, ["one", "two"], hosts)
    command = f"ssh -F {shlex.quote(str(client))}"
    tried = subprocess.run(
        [*shlex.split(command), "-o", "BatchMode=yes", "one", "true"], capture_output=True, text=True, timeout=300
    )
    if tried.returncode != 0:
        log = (folder / "log").read_text() if (folder / "log").exists() else ""
        if "locked" in log:
            pytest.skip("the account that runs the tests is locked, so sshd lets nobody in")
        pytest.fail(tried.stderr + log)
    return command


@pytest.fixture
def python(tmp_path) -> str:
    """An interpreter of the other side that has the tool; a folder with a blank in its name."""
    folder = tmp_path / "of the node"
    folder.mkdir()
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} exec {shlex.quote(sys.executable)} "$@"\n')
    script.chmod(0o755)
    return str(script)


def test_hosts_are_probed_and_a_dead_one_is_named_and_left_out(reached, python, tmp_path, capsys):
    output = tmp_path / "cluster.json"
    words = ["probe", "--hosts", "one,dead,two", "--ssh", reached, "--remote-python", python, "--json"]
    words += ["--only", "host_cpu", "--only", "host_memory", "--time-limit", "300", "--output", str(output)]
    code = run(words)
    captured = capsys.readouterr()
    assert code == 0, captured.err
    document = json.loads(captured.out)
    # both names lead to this machine, so both nodes call themselves alike and are told apart
    first, second = (node["hostname"] for node in document["nodes"])
    assert (first[:-2], first[-2:], second[-2:]) == (second[:-2], "-0", "-2")
    assert all(node["cpu"]["logical_cpus"] >= 1 for node in document["nodes"])
    assert all(node["host_memory"]["total_bytes"]["value"] > 0 for node in document["nodes"])
    said = [o for o in document["observations"] if o["probe"] == "nodes"]
    assert [o["status"] for o in said] == ["failed"]
    assert "dead: " in said[0]["reason"]
    assert "ssh: " in said[0]["reason"]
    (pair,) = document["node_pairs"]
    assert {pair["a"], pair["b"]} == {first, second}
    assert [s["operation"] for s in document["collectives"]] == ["all_reduce", "send_recv"]
    assert any(v["subject"] == "dead" and "left out" in v["message"] for v in document["verdicts"])
    # the file leaves out what has its default, the screen does not
    assert json.loads(dump(read_profile(output))) == document


def test_a_host_that_says_nothing_is_given_up_at_its_limit(reached):
    with pytest.raises(ProbeError, match="no host could be probed: silent: it did not come within 2 s"):
        probe_hosts(["silent"], ssh=reached, limit_seconds=2)


def test_what_the_other_side_says_is_passed_on_in_one_line(reached, tmp_path):
    with pytest.raises(ProbeError, match=r"one: .*code 127: ") as caught:
        probe_hosts(["one"], ssh=reached, python=str(tmp_path / "no such python"))
    assert "\n" not in str(caught.value)


def hosts_that_say(tmp_path, *lines: str) -> str:
    """Return an interpreter of the other side that says these lines and then waits for the end of its input."""
    script = tmp_path / "liar"
    script.write_text("#!/bin/sh\n" + "".join(f"echo {shlex.quote(line)}\n" for line in lines) + "cat > /dev/null\n")
    script.chmod(0o755)
    return str(script)


HELLO = '{"hostname": "liar", "address": "127.0.0.1", "port": 1}'


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"kind": "document", "text": "{\\"nodes\\": 3}"}', "what it sends as its profile is none"),
        ('{"kind": "surprise"}', "a message that this version does not know"),
        ("[1, 2", "no message of this tool"),
    ],
)
def test_an_answer_that_is_no_profile_is_refused(reached, tmp_path, line, reason):
    with pytest.raises(ProbeError, match=f"one: .*{reason}"):
        probe_hosts(["one"], ssh=reached, python=hosts_that_say(tmp_path, "Welcome!", HELLO, line))


def test_an_answer_without_end_is_cut_off(reached, tmp_path):
    endless = tmp_path / "endless"
    endless.write_text(f"#!/bin/sh\necho {shlex.quote(HELLO)}\nexec tr '\\0' x < /dev/zero\n")
    endless.chmod(0o755)
    with pytest.raises(ProbeError, match=r"one: .*it sends more than [0-9]+ bytes in one message"):
        probe_hosts(["one"], ssh=reached, python=str(endless))


def test_no_ssh_is_a_sentence():
    with pytest.raises(ProbeError, match="/no/such/ssh does not start: No such file or directory"):
        probe_hosts(["one"], ssh="/no/such/ssh")
    with pytest.raises(UsageError, match="is not a command"):
        probe_hosts(["one"], ssh="ssh 'unclosed")


def test_nobody_is_asked_and_nothing_is_forwarded():
    words = Asked(ssh=("ssh",), python="python3", settings="{}").command("node1")
    assert words[: words.index("--")].count("-a") == 1
    assert "BatchMode=yes" in words
    assert "ClearAllForwardings=yes" in words
    assert not any("StrictHostKeyChecking" in word for word in words)
    assert words[words.index("--") + 1] == "node1"

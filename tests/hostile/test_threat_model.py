"""Claims of docs/threat-model.md that can be read off the code or the files; the others have tests of their own."""

from __future__ import annotations

import ast
import shlex
from pathlib import Path

import plan_examples
import pytest

import stratadvisor
from stratadvisor.emit.bundle import render_bundle
from stratadvisor.probe.ssh import Asked

PACKAGE = Path(stratadvisor.__file__).parent
CALLS = [
    (path.relative_to(PACKAGE), node)
    for path in sorted(PACKAGE.rglob("*.py"))
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    if isinstance(node, ast.Call)
]


def name_of(call: ast.Call) -> str:
    return ast.unparse(call.func)


def test_the_calls_were_found():
    assert len(CALLS) > 3000
    assert any(name_of(call) == "subprocess.Popen" for _, call in CALLS)


def test_no_text_becomes_a_program():
    forbidden = {"eval", "exec", "os.system", "os.popen", "pickle.load", "pickle.loads", "yaml.load", "marshal.loads"}
    assert [(str(path), name_of(c)) for path, c in CALLS if name_of(c) in forbidden] == []


def test_no_command_goes_through_a_shell():
    shells = [
        str(path) for path, c in CALLS for k in c.keywords if k.arg == "shell" and ast.unparse(k.value) != "False"
    ]
    assert shells == []


def test_checkpoints_of_the_runtime_are_read_as_tensors_only():
    loads = [c for _, c in CALLS if name_of(c) == "torch.load"]
    assert len(loads) >= 3
    for call in loads:
        assert any(k.arg == "weights_only" and ast.unparse(k.value) == "True" for k in call.keywords), ast.unparse(call)


def test_ssh_checks_host_keys_asks_nothing_and_takes_no_option_for_a_host():
    asked = Asked(ssh=("ssh",), python="/opt/a b; id/python", settings="{}")
    command = asked.command("-oProxyCommand=id")
    assert command[command.index("-oProxyCommand=id") - 1] == "--"
    options = " ".join(command[: command.index("--")])
    assert "StrictHostKeyChecking" not in options
    assert "UserKnownHostsFile" not in options
    assert "BatchMode=yes" in options
    assert "-a" in command  # no agent is lent to the other side
    assert "-x" in command  # nor a display
    assert shlex.split(command[-1])[:2] == ["/opt/a b; id/python", "-m"]  # one word for the other side's shell
    assert len(shlex.split(command[-1])) == 3  # what is measured goes through standard input


@pytest.mark.parametrize("example", ["ddp_cpu", "diloco_cpu", "zero2_cpu"])
def test_one_node_meets_on_the_loopback_and_several_where_they_are_told(example):
    plan = plan_examples.examples()[example]
    script = next(f.content for f in render_bundle(plan, plan_examples.profile()) if f.path == "launch.sh")
    assert "--standalone --local-addr=127.0.0.1" in script
    assert "set_default GLOO_SOCKET_IFNAME lo" in script
    assert "0.0.0.0" not in script

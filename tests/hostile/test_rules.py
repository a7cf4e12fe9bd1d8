"""Rules of strangers decide what is planned; they cannot decide which code runs."""

from __future__ import annotations

import json

import pytest
from hostile_inputs import ask

RULE = """\
schema_version = 1
[question]
id = "mine"
ask = "Mine?"
mode = "new"
[[branch]]
id = "MY01"
name = "mine"
when = "otherwise"
because = "So."
sources = ["me, myself"]
set = {{ {setting} }}
next = "end"
"""


def told(capsys, tmp_path, setting: str) -> tuple[int, str]:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "99_mine.toml").write_text(RULE.format(setting=setting))
    code, out, err = ask(["rules", "list", "--json", "--overlay", tmp_path], capsys)
    return code, out if code == 0 else err


@pytest.mark.parametrize(
    "variable",
    [
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "LD_AUDIT",
        "PYTHONPATH",
        "PYTHONSTARTUP",
        "PYTHON",
        "PATH",
        "BASH_ENV",
        "ENV",
        "IFS",
        "PS4",
        "NCCL_NET_PLUGIN",
        "NCCL_TUNER_PLUGIN",
        "CUDA_INJECTION64_PATH",
        "NCCL_CONF_FILE",
    ],
)
@pytest.mark.parametrize("value", ['"/tmp/evil"', '{ fact = "launch.socket_interface" }'])
def test_a_variable_that_names_code_is_refused(capsys, tmp_path, variable, value):
    code, err = told(capsys, tmp_path, f"environment.{variable} = {value}")
    assert code == 5
    assert variable in err
    assert "decides which code runs" in err


@pytest.mark.parametrize(
    "variable", ["NCCL_DEBUG", "GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS", "CUDA_DEVICE_ORDER", "MINE"]
)
def test_other_variables_are_set(capsys, tmp_path, variable):
    code, out = told(capsys, tmp_path, f'environment.{variable} = "x"')
    assert code == 0
    mine = next(branch for branch in json.loads(out) if branch["branch"] == "MY01")
    assert mine["sets"] == {f"environment.{variable}": "x"}


@pytest.mark.parametrize("name", ["a", "A B", "A=B", "A\\nB", "A$(id)", "1A", ""])
def test_a_variable_with_an_odd_name_is_refused(capsys, tmp_path, name):
    code, err = told(capsys, tmp_path, f'environment."{name}" = "x"')
    assert code == 5
    assert "no name of an environment variable" in err


@pytest.mark.parametrize(
    "value", ['"a\\nb"', '"a\\u0000b"', '"' + "x" * 2000 + '"', "nan", "1e999", "[1]", "{ x = 1 }"]
)
def test_a_value_that_is_no_line_is_refused(capsys, tmp_path, value):
    code, _ = told(capsys, tmp_path, f"environment.MINE = {value}")
    assert code == 5

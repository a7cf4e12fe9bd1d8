"""Shell completion, asked as the shells ask."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def answer(**environment: str) -> str:
    program = "from stratadvisor.cli import main; main([])"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


def test_bash_completes_a_command():
    said = answer(_STRATADVISOR_COMPLETE="complete_bash", COMP_WORDS="stratadvisor re", COMP_CWORD="1")
    assert said.split() == ["recommend", "report"]


def test_zsh_completes_an_option_with_its_meaning():
    said = answer(_STRATADVISOR_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS="stratadvisor recommend --mo")
    assert "--model-size" in said
    assert "Parameters" in said


def test_fish_completes_below_a_group():
    said = answer(
        _STRATADVISOR_COMPLETE="complete_fish",
        _TYPER_COMPLETE_FISH_ACTION="get-args",
        _TYPER_COMPLETE_ARGS="stratadvisor rules ",
    )
    assert {line.split("\t")[0] for line in said.splitlines()} == {"list", "show", "check", "test", "graph"}


@pytest.mark.parametrize(("shell", "word"), [("bash", "complete "), ("zsh", "compdef"), ("fish", "complete ")])
def test_a_script_is_printed_for_each_shell(shell, word):
    assert word in answer(_STRATADVISOR_COMPLETE=f"source_{shell}")

"""The generated pages are what the code says now."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from stratadvisor.cli.app import app
from stratadvisor.reference.__main__ import generated, main
from stratadvisor.reference.exits import exit_codes
from stratadvisor.reference.man import escape, manual
from stratadvisor.reference.options import commands

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", sorted(generated()))
def test_a_page_is_not_stale(name):
    assert (ROOT / name).read_text(encoding="utf-8") == generated()[name], "run: python -m stratadvisor.reference"


def test_writing_gives_every_page(tmp_path):
    main(tmp_path)
    assert {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()} == set(generated())


def test_every_command_and_option_of_the_help_is_on_the_page_and_in_the_manual(capsys):
    from stratadvisor.cli import run

    page, man = generated()["docs/reference/commands.md"], manual()
    for command in commands(app):
        assert run([*command.name.split(), "--help"]) == 0
        shown = capsys.readouterr().out
        assert f"\n## {command.name}\n" in page
        for parameter in (*command.arguments, *command.options):
            for name in parameter.names:
                assert name in shown, f"{command.name} --help does not show {name}"
                assert f"`{name}`" in page
                assert escape(name) in man


def test_a_default_and_a_repeatable_option_are_read_from_the_function():
    every = {c.name: c for c in commands(app)}
    steps = next(p for p in every["run-config"].options if p.names == ("--steps",))
    assert (steps.value, steps.default, steps.repeated, steps.required) == ("N", "12", False, False)
    clusters = every["compare"].arguments[0]
    assert (clusters.required, clusters.repeated) == (True, True)
    assert every["compare"].usage == "stratadvisor compare [OPTIONS] CLUSTERS..."


def test_the_codes_on_the_page_are_those_of_the_help(capsys):
    from stratadvisor.cli import run

    assert run(["--help"]) == 0
    said = " ".join(capsys.readouterr().out.split()).partition("Exit codes: ")[2]
    assert [int(part.split()[0]) for part in said.rstrip(".").split("; ")] == [code for code, _ in exit_codes()]


def test_nothing_in_a_text_acts_in_the_manual():
    assert escape(".SH x") == "\\&.SH x"
    assert escape("a\\b --c") == "a\\eb \\-\\-c"


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_groff_reads_the_manual_without_a_warning(tmp_path):
    page = tmp_path / "stratadvisor.1"
    page.write_text(manual(), encoding="utf-8")
    done = subprocess.run(
        ["groff", "-ww", "-man", "-Kutf8", "-Tutf8", str(page)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
    assert "Interrupted." in done.stdout

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratadvisor.emit.render import json_text, make_environment, markdown_text, render, shell_word
from stratadvisor.errors import EmitError
from stratadvisor.schema.plan import Interval

HOSTILE = [
    "",
    "a b",
    "$(touch pwned)",
    "`id`",
    "a;b|c&d>e<f",
    "it's",
    'say "no"',
    "two\nlines",
    "*?[x]",
    "~root",
    "-rf",
    "#comment",
    "!!",
    "\\",
    "{{ 7*7 }}",
    "{% raw %}",
    "tab\there",
    "\u2028",
    "é漢",
]


def write(root: Path, **templates: str) -> Path:
    for name, text in templates.items():
        path = root / "templates" / "mine" / f"{name}.j2"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_reads_back_every_hostile_word_as_it_was():
    script = "".join(f"printf '%s\\0' {shell_word(text)}\n" for text in HOSTILE)
    result = subprocess.run(["bash", "--norc"], input=script.encode(), capture_output=True, check=True, timeout=300)
    assert result.stdout.decode().split("\0")[:-1] == HOSTILE


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1))
def test_bash_reads_back_any_text(words):
    script = "".join(f"printf '%s\\0' {shell_word(text)}\n" for text in words)
    result = subprocess.run(["bash", "--norc"], input=script.encode(), capture_output=True, check=True, timeout=300)
    assert result.stdout.decode().split("\0")[:-1] == words


def test_a_nul_or_a_structure_is_no_shell_word():
    with pytest.raises(ValueError, match="NUL"):
        shell_word("a\0b")
    for value in (None, ["a"], {"a": 1}):
        with pytest.raises(TypeError, match="text or a number"):
            shell_word(value)


def test_booleans_are_shell_words_in_lower_case():
    assert [shell_word(True), shell_word(False), shell_word(8)] == ["true", "false", "8"]


@pytest.mark.parametrize("text", HOSTILE)
def test_json_is_one_line_of_ascii_that_reads_back(text):
    written = json_text({"b": text, "a": 1})
    assert json.loads(written) == {"a": 1, "b": text}
    assert len(written.splitlines()) == 1
    assert written.isascii()
    assert written.index('"a"') < written.index('"b"')


def test_json_takes_documents_and_refuses_what_json_has_not():
    assert json.loads(json_text(Interval(low=1, likely=2, high=3))) == {"low": 1.0, "likely": 2.0, "high": 3.0}
    with pytest.raises(ValueError, match="JSON"):
        json_text(float("nan"))
    with pytest.raises(TypeError, match="not object"):
        json_text(object())


@pytest.mark.parametrize("value", [2e-5, 1e-300, -3e22, 0.1, 1.5e-7, 1e16, 0.0])
def test_numbers_mean_the_same_in_yaml_as_in_json(value):
    yaml = pytest.importorskip("yaml")
    assert json.loads(json_text(value)) == yaml.safe_load(json_text(value)) == value


@pytest.mark.parametrize("text", [*HOSTILE, "a|b", "[x](javascript:y)", "<script>", "# title", "- item", "a\r\nb"])
def test_markdown_text_stays_one_line_without_markup(text):
    written = markdown_text(text)
    assert len(written.splitlines()) <= 1
    for sign in "`*[]<|~$#":
        assert written.count(sign) == written.count(f"\\{sign}")
    assert not written.startswith((">", "-", "+"))


def test_values_are_never_read_as_templates(tmp_path):
    environment = make_environment((write(tmp_path, t="{{ name }}"),))
    assert render(environment, "mine/t.j2", {"name": "{{ 7 * 7 }}{% raw %}"}) == "{{ 7 * 7 }}{% raw %}"


def test_the_last_newline_is_kept(tmp_path):
    assert render(make_environment((write(tmp_path, t="a\n"),)), "mine/t.j2", {}) == "a\n"


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("one\ntwo {{ plam }}\n", 2, "'plam' is undefined"),
        ("one\n\n{{ plan.strateg }}\n", 3, "has no attribute 'strateg'"),
        ("one\n{% if x %}\n", 2, "Unexpected end of template"),
        ("{% for a in %}\n", 1, "Expected an expression"),
        ("a\n{{ 'x' | shell }}\n", 2, "No filter named 'shell'"),
        ("a\nb\n{{ plan.__class__.__mro__ }}\n", 3, "unsafe"),
        ("a\n{{ 1 // 0 }}\n", 2, "ZeroDivisionError"),
        ("a\n{{ plan | json }}\n", 2, "the filter json takes plain values"),
        ("a\n{{ none | sh }}\n", 2, "the filter sh takes a text or a number"),
    ],
)
def test_a_broken_template_is_reported_with_its_file_and_line(tmp_path, text, line, reason):
    environment = make_environment((write(tmp_path, t=text),))

    class Plan:
        strategy = "ddp"

    with pytest.raises(EmitError) as caught:
        render(environment, "mine/t.j2", {"plan": Plan()})
    assert f"{tmp_path / 'templates' / 'mine' / 't.j2'}, line {line}: " in caught.value.message
    assert reason in caught.value.message


def test_an_error_in_an_included_template_names_the_included_file(tmp_path):
    root = write(tmp_path, t="a\n{% include 'mine/inner.j2' %}\n", inner="\n\n{{ absent }}\n")
    with pytest.raises(EmitError, match=r"inner\.j2, line 3: 'absent' is undefined"):
        render(make_environment((root,)), "mine/t.j2", {})


def test_a_missing_template_names_who_asked_for_it(tmp_path):
    environment = make_environment((write(tmp_path, t="{% include 'mine/absent.j2' %}"),))
    with pytest.raises(EmitError, match=r"no template 'mine/absent\.j2' \(asked for by mine/t\.j2\)"):
        render(environment, "mine/t.j2", {})


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "mine/../../secret"])
def test_templates_cannot_be_read_from_outside_the_roots(tmp_path, name):
    (tmp_path / "secret").write_text("secret")
    environment = make_environment((write(tmp_path, t=f"{{% include {name!r} %}}"),))
    with pytest.raises(EmitError, match="no template"):
        render(environment, "mine/t.j2", {})


def test_a_template_that_includes_itself_is_reported(tmp_path):
    environment = make_environment((write(tmp_path, t="{% include 'mine/t.j2' %}"),))
    with pytest.raises(EmitError, match=r"mine/t\.j2 includes or extends itself"):
        render(environment, "mine/t.j2", {})


def test_a_template_that_is_not_text_is_reported(tmp_path):
    write(tmp_path, t="")
    (tmp_path / "templates" / "mine" / "t.j2").write_bytes(b"a\xff")
    with pytest.raises(EmitError, match=r"mine/t\.j2 is not UTF-8"):
        render(make_environment((tmp_path,)), "mine/t.j2", {})


def test_an_overlay_shadows_a_shipped_template_and_extends_it_under_bundled(tmp_path):
    folder = tmp_path / "templates" / "_shared"
    folder.mkdir(parents=True)
    shipped = render(make_environment(), "_shared/train_config.json.j2", {"train_config": {"a": 1}})
    (folder / "train_config.json.j2").write_text("{# mine #}{% include 'bundled/_shared/train_config.json.j2' %}more\n")
    environment = make_environment((tmp_path,))
    assert render(environment, "_shared/train_config.json.j2", {"train_config": {"a": 1}}) == shipped + "more\n"

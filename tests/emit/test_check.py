from __future__ import annotations

import shutil

import pytest

from stratadvisor.emit.check import check_file, parse_python
from stratadvisor.errors import EmitError
from stratadvisor.schema.emission import EmittedFile


def emitted(text: str, kind: str) -> EmittedFile:
    return EmittedFile(path="out/file", content=text, format=kind)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json", '{"a": [1, 2.5, null, "x"]}\n'),
        ("toml", 'a = 1\n[b]\nc = "d"\n'),
        ("yaml", "a:\n  - 1\n"),
        ("python", "def f(x):\n    return x\n"),
        ("shell", "if true; then\n    echo 'a'\nfi\n"),
        ("markdown", "# any *text\n"),
        ("text", "any { text\n"),
    ],
)
def test_files_that_parse_pass(kind, text):
    check_file(emitted(text, kind))


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("json", '{"a": 1,}', "line 1"),
        ("json", "", "line 1"),
        ("json", '{"a": 1, "b": 2, "a": 3}', "the key 'a' appears twice"),
        ("json", '{"x": {"a": 1, "a": 1}}', "the key 'a' appears twice"),
        ("json", '{"a": NaN}', "NaN is not JSON"),
        ("json", '{"a": -Infinity}', "-Infinity is not JSON"),
        ("json", "[" * 100_000, ""),
        ("toml", "a = \n", "line 1"),
        ("python", "a = 1\ndef f(:\n", "line 2"),
        ("text", "a\0b", "NUL"),
        ("shell", "a\0b", "NUL"),
    ],
)
def test_files_that_do_not_parse_are_named_with_the_reason(kind, text, reason):
    with pytest.raises(EmitError) as caught:
        check_file(emitted(text, kind))
    assert caught.value.message.startswith("out/file would ")
    assert reason in caught.value.message


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize("text", ["if true; then\n", "echo 'open\n", "case x in\n", "f() {\n", "echo $(\n"])
def test_unfinished_shell_is_refused(text):
    with pytest.raises(EmitError, match="would not be valid shell"):
        check_file(emitted(text, "shell"))


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_checking_shell_does_not_run_it(tmp_path):
    target = tmp_path / "made"
    check_file(emitted(f"touch '{target}'\necho $(touch '{target}')\n", "shell"))
    assert not target.exists()


def test_broken_yaml_is_refused_where_a_library_for_it_exists():
    pytest.importorskip("yaml")
    with pytest.raises(EmitError, match="would not be valid yaml"):
        check_file(emitted("a: [1\nb: }\n", "yaml"))


@pytest.mark.parametrize("text", ["a: 2e-05\n", "a: [1, -3E+7]\n", "a:\n  b: 1e5 # comment\n"])
def test_a_number_that_yaml_reads_as_text_is_refused(text):
    yaml = pytest.importorskip("yaml")
    assert "str" in str([type(v) for v in _leaves(yaml.safe_load(text))])
    with pytest.raises(EmitError, match=r"line \d: \S+ has no dot, YAML 1.1 reads it as text"):
        check_file(emitted(text, "yaml"))


@pytest.mark.parametrize("text", ["a: 2.0e-05\n", 'a: "2e-05"\n', "a: 0x1e5\n", "a: x 1e5\n"])
def test_other_numbers_and_texts_of_yaml_pass(text):
    check_file(emitted(text, "yaml"))


def _leaves(value):
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)
    else:
        yield value


def test_a_lone_surrogate_is_refused_since_no_file_can_hold_it():
    with pytest.raises(EmitError, match="would not be valid text"):
        check_file(EmittedFile.model_construct(path="out/file", content="\ud800", format="text", executable=False))


def test_warnings_of_the_parser_stay_inside(recwarn):
    parse_python('x = "\\d"\n')
    assert not recwarn.list

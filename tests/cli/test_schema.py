"""Published schemas."""

from __future__ import annotations

import json

import pytest

from stratadvisor.cli import run


@pytest.mark.parametrize(("name", "field"), [("profile", "nodes"), ("plan", "groups"), ("validation", "results")])
def test_a_document_has_a_schema_with_descriptions(name, field, capsys):
    assert run(["schema", name]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert field in schema["properties"]
    assert "description" in json.dumps(schema)


def test_without_a_name_the_documents_are_listed(capsys):
    assert run(["schema"]) == 0
    assert "profile" in capsys.readouterr().out


def test_an_unknown_document_is_wrong_usage(capsys):
    assert run(["schema", "nothing"]) == 2
    assert "profile" in capsys.readouterr().err

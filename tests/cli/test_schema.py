"""Published schemas."""

from __future__ import annotations

import json

import pytest
from pydantic import ConfigDict

from stratadvisor.cli import run
from stratadvisor.schema.base import Document
from stratadvisor.schema.descriptions import json_schema


@pytest.mark.parametrize(("name", "field"), [("profile", "nodes"), ("plan", "groups"), ("validation", "results")])
def test_a_document_has_a_schema_with_descriptions(name, field, capsys):
    assert run(["schema", name]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert field in schema["properties"]
    assert "description" in json.dumps(schema)


class Part(Document):
    size: int = 0
    """How large it is."""
    plain: str = ""


class Whole(Part):
    parts: tuple[Part, ...] = ()
    """What it is made of:
    several parts."""


class DescribedByPydantic(Whole):
    model_config = ConfigDict(use_attribute_docstrings=True)

    parts: tuple[Part, ...] = ()
    """What it is made of:
    several parts."""


def test_descriptions_are_the_docstrings_below_the_fields_of_every_class():
    schema = json_schema(Whole)
    assert schema["properties"]["size"]["description"] == "How large it is."
    assert "description" not in schema["properties"]["plain"]
    assert schema["$defs"]["Part"]["properties"]["size"]["description"] == "How large it is."
    theirs = DescribedByPydantic.model_json_schema()["properties"]["parts"]["description"]
    assert schema["properties"]["parts"]["description"] == theirs


def test_without_a_name_the_documents_are_listed(capsys):
    assert run(["schema"]) == 0
    assert "profile" in capsys.readouterr().out


def test_an_unknown_document_is_wrong_usage(capsys):
    assert run(["schema", "nothing"]) == 2
    assert "profile" in capsys.readouterr().err

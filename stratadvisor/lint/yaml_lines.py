"""YAML into plain values with the line of every key: no objects, no aliases that grow without bound."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml

from stratadvisor.lint.finding import Path
from stratadvisor.lint.json_lines import Places

MAX_NODES = 50_000
"""Values after aliases are followed; a file of billion laughs has thousands of characters and 10^9 of them."""
MAX_DEPTH = 64
_MERGE = "tag:yaml.org,2002:merge"
_PLAIN = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


class YamlProblemError(Exception):
    """Why a text cannot be read as YAML: one clause, without the file's name."""


@dataclass(slots=True)
class _Reader:
    loader: yaml.SafeLoader
    found: Places = field(default_factory=Places)
    nodes: int = 0

    def value(self, node: yaml.Node, path: Path) -> Any:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise YamlProblemError(f"holds more than {MAX_NODES} values once its aliases are followed")
        if len(path) > MAX_DEPTH:
            raise YamlProblemError(f"is nested deeper than {MAX_DEPTH} levels")
        if not isinstance(node, yaml.ScalarNode) and node.tag not in _PLAIN:
            raise YamlProblemError(f"has the tag {node.tag[:60]} in line {_line(node)}, which is not plain YAML")
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self.found.lines[(*path, index)] = item.start_mark.line + 1
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        try:
            return self.loader.construct_object(node)
        except (ValueError, OverflowError, LookupError, TypeError, AttributeError):  # an empty !!int, a month 13, ...
            raise YamlProblemError(f"has a value in line {_line(node)} that is not what its tag says") from None

    def mapping(self, node: yaml.MappingNode, path: Path) -> dict[Any, Any]:
        result: dict[Any, Any] = {}
        merged: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                sources = value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
                for source in reversed(sources):
                    value = self.value(source, (*path, "<<"))
                    if not isinstance(value, dict):
                        raise YamlProblemError(f"merges something that is not a mapping in line {_line(key_node)}")
                    merged.update(value)
                continue
            key = self.value(key_node, (*path, "?"))
            if isinstance(key, (dict, list)):
                raise YamlProblemError(f"has a key that is not a word in line {_line(key_node)}")
            where = (*path, key if isinstance(key, (str, int)) else str(key))
            if key in result:
                self.found.twice.append((where, self.found.lines[where]))
            self.found.lines[where] = _line(key_node)
            result[key] = self.value(value_node, where)
        return {**merged, **result}


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def read_yaml(text: str) -> tuple[Any, Places]:
    """Return the values of one YAML document and where its keys stand.

    Raises:
        YamlProblemError: no YAML, several documents, tags that make objects, too many values, too deep.

    """
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        reader = _Reader(loader)
        return (None if node is None else reader.value(node, ())), reader.found
    except yaml.MarkedYAMLError as problem:
        where = "" if problem.problem_mark is None else f" in line {problem.problem_mark.line + 1}"
        raise YamlProblemError(f"is not plain YAML: {problem.problem}{where}") from None
    except yaml.YAMLError:
        raise YamlProblemError("is not YAML: it has characters that YAML forbids") from None
    except RecursionError:
        raise YamlProblemError(f"is nested deeper than {MAX_DEPTH} levels") from None
    except (ValueError, OverflowError) as problem:
        raise YamlProblemError(f"has a value that cannot be read: {str(problem)[:80]}") from None

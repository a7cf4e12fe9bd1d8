"""Documents without what their reader knows already: defaults, and what a node shares with an earlier one.

The file of a large cluster says of most nodes which node they are like and in what they differ. ``unfold`` reads that,
``difference`` writes it, and ``brief`` leaves out fields that have their default; all three lose nothing.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticUndefined

from stratadvisor.schema.base import Reading
from stratadvisor.schema.profile import NodeProfile

LIKE = "like"
"""Key of a node in a file: the host name of an earlier node that it equals but for what follows."""
SIGNIFICANT_DIGITS = 12
"""Kept of every number: sums differ in the last bits between Python releases (3.12 sums floats more exactly)."""
Model = TypeVar("Model", bound=BaseModel)


class UnlikeError(ValueError):
    """A node in a file cannot be unfolded; says which and why."""


@cache
def _fields(model: type[BaseModel]) -> tuple[tuple[str, Any, Any], ...]:
    """Return (name, default, its brief form) of every field; ``PydanticUndefined`` where it must be given."""
    found = []
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True, validated_data={})
        found.append((name, default, default if default is PydanticUndefined else plain(default, {})))
    return tuple(found)


def brief(document: BaseModel, seen: dict[int, Any] | None = None) -> dict[str, Any]:
    """Return the JSON form of a document without fields that have their default, numbers rounded.

    ``seen`` maps the identity of parts to their form: what several nodes share is looked at once. Whoever passes it
    keeps the document alive meanwhile, and changes nothing in what is returned.
    """
    return dict(_brief(document, {} if seen is None else seen))


def _brief(document: BaseModel, seen: dict[int, Any]) -> dict[str, Any]:
    found: dict[str, Any] | None = seen.get(id(document))
    if found is not None:
        return found
    values = document.__dict__
    found = {}
    for name, default, form in _fields(type(document)):
        value = values[name]
        if value is not default:
            if type(value) is Reading and value.value is None and value.detail == getattr(default, "detail", None):
                continue  # nine tenths of an older file: the same reason, spelled out
            said = plain(value, seen)
            if default is PydanticUndefined or said != form:
                found[name] = said
    seen[id(document)] = found
    return found


def plain(value: Any, seen: dict[int, Any]) -> Any:
    """Return the JSON form of a field's value; a reading is always whole, its detail aside."""
    kind = type(value)
    if kind is float:
        return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    if kind is str or value is None or kind is int or kind is bool:
        return value
    if kind is Reading:
        return _reading(value)
    if isinstance(value, BaseModel):
        return _brief(value, seen)
    if isinstance(value, (tuple, list)):
        return [plain(item, seen) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item, seen) for key, item in sorted(value.items())}
    raise TypeError(f"no JSON form of a {kind.__name__}")


def _reading(reading: Reading) -> dict[str, Any]:
    amount = reading.value
    found: dict[str, Any] = {
        "value": None if amount is None else float(f"{amount:.{SIGNIFICANT_DIGITS}g}"),
        "origin": reading.origin,
    }
    if reading.detail:
        found["detail"] = reading.detail
    return found


def difference(base: BaseModel, other: BaseModel, seen: dict[int, Any]) -> dict[str, Any] | None:
    """Return what makes ``other`` of ``base`` (see ``unfold``); None where it lacks an entry that ``base`` has."""
    if base is other:
        return {}
    found: dict[str, Any] = {}
    mine, theirs = base.__dict__, other.__dict__
    for name in type(base).model_fields:
        a, b = mine[name], theirs[name]
        if a is b:
            continue
        said = _changed(name, a, b, seen)
        if said is None:
            return None
        if said is not _SAME:
            found[name] = said
    return found


_SAME = object()


def _changed(name: str, base: Any, other: Any, seen: dict[int, Any]) -> Any:
    """Return what to write of a value to make it of another one; ``_SAME`` for nothing, None where nothing does."""
    if type(base) is Reading and type(other) is Reading:
        return _reading_change(base, other)
    if isinstance(base, BaseModel) and type(other) is type(base):
        inner = difference(base, other, seen)
        return _SAME if inner == {} else inner
    if isinstance(base, dict) and isinstance(other, dict):
        return _entries(base, other, seen)
    if name == "devices" and _paired(base, other):
        each = [difference(one, two, seen) for one, two in zip(base, other, strict=True)]
        return None if None in each else each if any(each) else _SAME
    a, b = plain(base, seen), plain(other, seen)
    if a == b:
        return _SAME
    return b


def _reading_change(base: Reading, other: Reading) -> Any:
    a, b = _reading(base), _reading(other)
    if a == b:
        return _SAME
    if base.known and other.known and (base.origin, base.detail) == (other.origin, other.detail):
        return {"value": b["value"]}
    return b if other.detail or not base.detail else {**b, "detail": ""}


def _entries(base: dict[Any, Any], other: dict[Any, Any], seen: dict[int, Any]) -> Any:
    if not base.keys() <= other.keys():
        return None
    found: dict[str, Any] = {}
    for key, value in other.items():
        said = _changed("", base[key], value, seen) if key in base else plain(value, seen)
        if said is None:
            return None
        if said is not _SAME:
            found[str(key)] = said
    return found or _SAME


def _paired(base: Any, other: Any) -> bool:
    """Whether two sequences of devices have the same places."""
    return len(base) == len(other) and all(a.index == b.index for a, b in zip(base, other, strict=True))


WHOLE_NODES = 16
"""A file of so many nodes spells each out: people read it, and so do other programs."""


def fold(nodes: tuple[NodeProfile, ...], seen: dict[int, Any]) -> list[dict[str, Any]]:
    """Return the nodes as a file has them: of many, those like an earlier one with their differences only."""
    if len(nodes) <= WHOLE_NODES:
        return [brief(node, seen) for node in nodes]
    found: list[dict[str, Any]] = []
    bases: dict[object, NodeProfile] = {}
    names: set[str] = set()
    for node in nodes:
        kind = tuple((device.kind, device.name) for device in node.devices)
        base = bases.get(kind)
        change = None if base is None else difference(base, node, seen)
        if base is None or change is None:
            found.append(brief(node, seen))
            if node.hostname not in names:  # the name of a base means the first node that has it
                bases.setdefault(kind, node)
        else:
            found.append({"hostname": node.hostname, LIKE: base.hostname, **change})
        names.add(node.hostname)
    return found


MAX_PARTS = 5_000_000
"""Devices, links and other entries of nodes that are like another one: a short file could ask for any number."""


def unfold(nodes: list[Any]) -> list[NodeProfile]:
    """Return the nodes of a file, those that are like another one made of it.

    Of such a node the file gives what differs: of an object the entries that do, of devices those of each in order, all
    else whole. Parts that do not differ are the same objects in both.

    Raises:
        UnlikeError: with the place of the first problem.

    """
    return _Unfolding().all_of(nodes)


class _Unfolding:
    def __init__(self) -> None:
        self._by_name: dict[str, NodeProfile] = {}
        self._parts = 0

    def all_of(self, nodes: list[Any]) -> list[NodeProfile]:
        found: list[NodeProfile] = []
        for position, data in enumerate(nodes):
            node = self._one(data, f"nodes.{position}")
            found.append(node)
            self._by_name.setdefault(node.hostname, node)
        return found

    def _one(self, data: Any, where: str) -> NodeProfile:
        if not isinstance(data, dict) or LIKE not in data:
            return _checked(NodeProfile, data, where)
        name = data[LIKE]
        base = self._by_name.get(name) if isinstance(name, str) else None
        if base is None:
            raise UnlikeError(f"{where}.{LIKE}: no node above this one is called {str(name)[:80]!r}")
        self._count(sum(len(part) for part in base.__dict__.values() if type(part) is tuple), where)
        return self._changed(base, {key: value for key, value in data.items() if key != LIKE}, where)

    def _count(self, parts: int, where: str) -> None:
        self._parts += parts
        if self._parts > MAX_PARTS:
            raise UnlikeError(f"{where}.{LIKE}: nodes like others have more than {MAX_PARTS} parts")

    def _changed(self, base: Model, changes: dict[str, Any], where: str) -> Model:
        """Return ``base`` with changes: those are validated, together with what the model asks for at least."""
        if not changes:
            return base
        kept = base.__dict__
        asked = {name: kept[name] for name, default, _ in _fields(type(base)) if default is PydanticUndefined}
        given = {name: self._joined(name, kept.get(name), value, where) for name, value in changes.items()}
        checked = _checked(type(base), asked | given, where)
        return base.model_copy(update={name: checked.__dict__[name] for name in changes})

    def _joined(self, name: str, base: Any, change: Any, where: str) -> Any:
        if isinstance(change, dict):
            if type(base) is Reading:  # in one go: there are a million of them
                return {"value": base.value, "origin": base.origin, "detail": base.detail, **change}
            if isinstance(base, BaseModel):
                return self._changed(base, change, f"{where}.{name}")
            if isinstance(base, dict):
                self._count(len(base), where)
                by_key = {str(key): value for key, value in base.items()}
                return by_key | {key: self._joined("", by_key.get(key), value, where) for key, value in change.items()}
        if name == "devices" and isinstance(change, list) and len(change) == len(base or ()):
            return [
                self._changed(one, two, f"{where}.{name}.{place}") if isinstance(two, dict) else two
                for place, (one, two) in enumerate(zip(base, change, strict=True))
            ]
        return change


def _checked(model: type[Model], data: Any, where: str) -> Model:
    try:
        return model.model_validate(data)
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_input=False)[0]
        place = ".".join([where, *(str(part)[:80] for part in first["loc"])])
        raise UnlikeError(f"{place}: {first['msg'].removeprefix('Value error, ')}") from None

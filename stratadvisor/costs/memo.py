"""A small cache for formulas of unhashable documents: the planner asks the same question thousands of times."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Memo(Generic[Value]):
    """Remembers values by the identity of documents and plain keys; keeps the documents alive, so identity is safe."""

    def __init__(self, limit: int = 50_000) -> None:
        self._limit = limit
        self._values: dict[Hashable, tuple[tuple[object, ...], Value]] = {}

    def get(self, documents: tuple[object, ...], key: Hashable, compute: Callable[[], Value]) -> Value:
        """Return the value of (documents, key), computed at most once while remembered."""
        full = (*map(id, documents), key)
        found = self._values.get(full)
        if found is not None:
            return found[1]
        value = compute()
        if len(self._values) >= self._limit:
            self._values.clear()
        self._values[full] = (documents, value)
        return value

    def clear(self) -> None:
        """Forget everything."""
        self._values.clear()

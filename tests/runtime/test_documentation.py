"""docs/telemetry.md names every key of every event, and none that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stratadvisor.runtime.tensorboard import TAGS
from stratadvisor.schema import metrics

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "telemetry.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("event", "keys"),
    [
        ("start", metrics.START_KEYS),
        ("step", metrics.STEP_KEYS),
        ("loader", metrics.LOADER_KEYS),
        ("change", metrics.CHANGE_KEYS),
        ("end", metrics.END_KEYS),
    ],
)
def test_every_key_of_an_event_has_its_line(event: str, keys: tuple[str, ...]) -> None:
    (part,) = re.findall(rf"^`{event}`.*?\n\n(\|.*?)\n\n", TEXT, re.DOTALL | re.MULTILINE)
    rows = part.splitlines()[2:]
    named = [key for row in rows for key in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(named) == sorted(keys)


def test_the_groups_of_curves_are_named() -> None:
    for tag in TAGS.values():
        assert f"`{tag.partition('/')[0]}/`" in TEXT

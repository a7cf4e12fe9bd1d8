"""Strategies of plug-ins, installed into a folder of this process's search path."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from planning_clusters import cluster, gpu, nodes

from stratadvisor import plugins
from stratadvisor.catalog.sizes import shape_for_size
from stratadvisor.schema.workload import Workload
from stratadvisor.strategies import STRATEGIES
from stratadvisor.strategies.plugged import GROUP, plugged

ENTRY_POINTS = """\
[stratadvisor.strategies]
sound = plugged_by_a_test:SOUND
other = plugged_by_a_test:OTHER
family = plugged_by_a_test:FAMILY
fails = plugged_by_a_test:FAILS
foreign = plugged_by_a_test:FOREIGN
number = plugged_by_a_test:NUMBER
"""
MODULE = """\
from dataclasses import replace
from stratadvisor.strategies.base import Strategy
from stratadvisor.strategies.ddp import candidates as ddp

def sound(cluster, workload):
    return (replace(c, strategy="sound") for c in ddp(cluster, workload))

def fails(cluster, workload):
    yield from ()
    raise ValueError("no idea")

def number(cluster, workload):
    yield 7

COMMON = dict(title="a test's", family="synchronous", target="torchrun")
SOUND = Strategy(name="sound", candidates=sound, **COMMON)
OTHER = Strategy(name="another", candidates=sound, **COMMON)
FAMILY = Strategy(name="family", candidates=sound, **{**COMMON, "family": "none_of_ours"})
FAILS = Strategy(name="fails", candidates=fails, **COMMON)
FOREIGN = Strategy(name="foreign", candidates=ddp, **COMMON)
NUMBER = Strategy(name="number", candidates=number, **COMMON)
"""
WHERE = cluster(nodes(gpu("A100-80GB"), per_node=2))
WORKLOAD = Workload(model=shape_for_size(125e6), global_batch_size=8)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    metadata = tmp_path / "plugged_by_a_test-1.0.dist-info"
    metadata.mkdir()
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    (tmp_path / "plugged_by_a_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(plugins, "_problems", {})
    plugins.installed.cache_clear()
    yield tmp_path
    plugins.installed.cache_clear()


def reasons() -> dict[str, str]:
    return {plugin.name: reason for plugin, reason in plugins.problems(GROUP).items()}


@pytest.mark.usefixtures("site")
def test_what_calls_itself_otherwise_or_is_of_no_family_is_left_out_at_once() -> None:
    found = plugged(tuple(STRATEGIES))
    assert set(found) == {"sound", "fails", "foreign", "number"}
    assert reasons() == {
        "other": "its strategy calls itself 'another'",
        "family": reasons()["family"],
    }
    assert reasons()["family"].startswith("family 'none_of_ours' is not one of ")
    assert "synchronous" in reasons()["family"]


@pytest.mark.usefixtures("site")
def test_a_sound_one_yields_what_it_made_and_one_that_fails_nothing() -> None:
    found = plugged(())
    made = list(found["sound"].candidates(WHERE, WORKLOAD))
    expected = list(STRATEGIES["ddp"].candidates(WHERE, WORKLOAD))
    assert [(c.strategy, c.variant, c.layout) for c in made] == [("sound", c.variant, c.layout) for c in expected]
    for name, reason in (
        ("fails", "it fails on this cluster: ValueError: no idea"),
        ("foreign", "it yields something that is no candidate of foreign"),
        ("number", "it yields something that is no candidate of number"),
    ):
        assert list(found[name].candidates(WHERE, WORKLOAD)) == []
        assert reasons()[name] == reason
    assert "sound" not in reasons()

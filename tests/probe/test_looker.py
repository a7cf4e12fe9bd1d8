from dataclasses import replace
from pathlib import Path

import pytest

from stratadvisor.errors import UsageError
from stratadvisor.probe import PROBES
from stratadvisor.probe.crew import Crew
from stratadvisor.probe.looker import Looker, selection


def test_everything_runs_in_table_order_unless_told() -> None:
    assert selection((), ()) == tuple(PROBES)
    assert selection((), ("storage", "nvml")) == tuple(name for name in PROBES if name not in ("storage", "nvml"))


def test_what_is_asked_for_brings_what_it_starts_from() -> None:
    assert selection(("compute",), ()) == ("host_cpu", "host_memory", "nvml", "rocm", "torch_devices", "compute")
    assert selection(("storage",), ()) == ("storage",)
    assert "nvml" not in selection(("compute",), ("nvml",))


@pytest.mark.parametrize("option", ["only", "skip"])
def test_a_name_that_is_none_is_refused_with_the_nearest(option: str) -> None:
    with pytest.raises(UsageError, match="'computee'") as caught:
        selection(**{"only": (), "skip": (), option: ("computee",)})
    assert "compute" in caught.value.hint


def test_every_requirement_comes_before_what_needs_it() -> None:
    order = list(PROBES)
    for name, probe in PROBES.items():
        assert all(order.index(needed) < order.index(name) for needed in probe.requires)
        assert probe.limit_seconds > probe.budget_seconds


def test_without_time_a_sub_probe_is_left_out_and_nothing_is_started() -> None:
    looker = Looker(("storage",), 0.0)
    with Crew(1) as crew:
        assert looker.look("storage", crew, {0: {"path": "."}}) == {}
        assert crew.members[0].pid is None
    (observation,) = looker.observations
    assert (observation.probe, observation.status) == ("storage", "skipped")
    assert "time limit" in observation.reason


def test_progress_tells_title_and_share() -> None:
    told: list[tuple[str, float | None]] = []
    looker = Looker(("nics", "storage"), 0.0, progress=lambda title, share: told.append((title, share)))
    with Crew(1) as crew:
        looker.look("nics", crew, {0: {}})
        looker.look("storage", crew, {0: {}})
        looker.look("compute", crew, {0: {}})  # not selected: nothing is told
    assert told == [(PROBES["nics"].title, 0.0), (PROBES["storage"].title, 0.5)]


@pytest.mark.process
def test_a_device_that_hangs_is_named_and_the_others_keep_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parent.parent))
    monkeypatch.setitem(PROBES, "nics", replace(PROBES["nics"], target="probe_targets:hang_if", limit_seconds=10.0))
    looker = Looker(("nics",), 600.0)
    with Crew(2) as crew:
        crew.ask("probe_targets:echo", {0: {}, 1: {}}, 600.0)  # both are up: the limit is for the work alone
        values = looker.look(
            "nics", crew, {0: {"hanging": False}, 1: {"hanging": True}}, labels={0: "device 0", 1: "device 1"}
        )
        assert crew.members[1].losses == 1
    assert values == {0: "answered"}
    (observation,) = looker.observations
    assert observation.status == "timed_out"
    assert observation.reason.startswith("device 1: ")
    assert looker.reasons["nics"] == observation.reason

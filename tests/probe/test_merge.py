import pytest

from stratadvisor.errors import ProfileError
from stratadvisor.probe.merge import merge_profiles
from stratadvisor.schema.base import measured
from stratadvisor.schema.profile import (
    Calibration,
    ClusterProfile,
    CollectiveSweep,
    NodeProfile,
    Observation,
    SoftwareProfile,
    Verdict,
)


def sweep(bandwidth: float, world_size: int = 8, scope: str = "intra_node") -> CollectiveSweep:
    return CollectiveSweep.model_validate(
        {
            "operation": "all_reduce",
            "scope": scope,
            "backend": "nccl",
            "world_size": world_size,
            "bus_bandwidth_bytes_per_second": measured(bandwidth),
        }
    )


def profile(host: str, at: str = "2026-01-01T00:00:00+00:00", **more: object) -> ClusterProfile:
    versions = more.pop("versions", {"torch": "2.13.0", "python": "3.11.7"})
    node = NodeProfile.model_validate({"hostname": host, "software": {"versions": versions}})
    return ClusterProfile.model_validate({"name": host, "captured_at": at, "nodes": (node,), **more})


def test_nodes_keep_their_order_and_the_newest_time_counts() -> None:
    merged = merge_profiles([profile("b", "2026-01-02T00:00:00+00:00"), profile("a")])
    assert [node.hostname for node in merged.nodes] == ["b", "a"]
    assert merged.source == "merged"
    assert merged.captured_at == "2026-01-02T00:00:00+00:00"


def test_one_profile_merges_to_its_own_nodes() -> None:
    only = profile("a", observations=(Observation(probe="nvml", status="ok"),))
    merged = merge_profiles([only])
    assert merged.nodes == only.nodes
    assert [o.probe for o in merged.observations] == ["nvml"]


def test_no_profile_is_refused() -> None:
    with pytest.raises(ProfileError):
        merge_profiles([])


def test_a_host_that_comes_twice_is_refused_by_name() -> None:
    with pytest.raises(ProfileError, match="'a'") as caught:
        merge_profiles([profile("a"), profile("b"), profile("a")])
    assert caught.value.hint


@pytest.mark.parametrize("newer_first", [True, False])
def test_on_request_the_newer_description_of_a_host_wins(newer_first: bool) -> None:
    old = profile("a", "2026-01-01T00:00:00+00:00", versions={"torch": "2.4.0"})
    new = profile("a", "2026-02-01T00:00:00+00:00", versions={"torch": "2.13.0"})
    merged = merge_profiles([new, old] if newer_first else [old, new], replace=True)
    assert [node.software.versions["torch"] for node in merged.nodes] == ["2.13.0"]
    assert not merged.verdicts  # the replaced node disagrees with nobody


def test_different_torch_versions_are_a_problem_that_names_the_hosts() -> None:
    merged = merge_profiles(
        [
            profile("a", versions={"torch": "2.13.0"}),
            profile("b", versions={"torch": "2.4.1"}),
            profile("c", versions={"torch": "2.13.0"}),
        ]
    )
    (verdict,) = merged.verdicts
    assert (verdict.level, verdict.subject) == ("problem", "torch")
    assert "2.13.0 on a, c" in verdict.message
    assert "2.4.1 on b" in verdict.message
    assert verdict.advice


def test_a_component_that_some_nodes_lack_is_told() -> None:
    merged = merge_profiles(
        [profile("a", versions={"torch": "2.13.0", "deepspeed": "0.19"}), profile("b", versions={"torch": "2.13.0"})]
    )
    assert [v.subject for v in merged.verdicts] == ["deepspeed"]
    assert "missing on b" in merged.verdicts[0].message


def test_nodes_without_any_software_information_disagree_with_nobody() -> None:
    bare = ClusterProfile(nodes=(NodeProfile(hostname="x", software=SoftwareProfile()),))
    assert merge_profiles([profile("a"), bare]).verdicts == ()


def test_of_equal_sweeps_inside_nodes_the_slowest_stays_and_other_questions_stay_too() -> None:
    merged = merge_profiles(
        [
            profile("a", collectives=(sweep(200e9),)),
            profile("b", collectives=(sweep(90e9), sweep(150e9, world_size=4))),
            profile("c", collectives=(sweep(25e9, scope="inter_node"),)),
        ]
    )
    values = {(s.scope, s.world_size): s.bus_bandwidth_bytes_per_second.value for s in merged.collectives}
    assert values == {("intra_node", 8): 90e9, ("intra_node", 4): 150e9, ("inter_node", 8): 25e9}


def test_failures_say_on_which_host_and_successes_are_told_once() -> None:
    ok = Observation(probe="compute", status="ok", duration_seconds=3.0)
    bad = Observation(probe="storage", status="failed", reason="disk full")
    merged = merge_profiles(
        [
            profile("a", observations=(ok, bad)),
            profile("b", observations=(ok,)),
            profile("c", observations=(ok, bad)),
        ]
    )
    assert [(o.probe, o.status, o.reason) for o in merged.observations] == [
        ("compute", "ok", ""),
        ("storage", "failed", "a, c: disk full"),
    ]


def test_verdicts_are_kept_once_and_the_last_calibration_counts() -> None:
    verdict = Verdict(level="warning", subject="/dev/shm", message="small")
    first = Calibration(device="A100", strategy="ddp", time_ratio=1.2)
    last = Calibration(device="A100", strategy="ddp", time_ratio=1.1)
    merged = merge_profiles(
        [
            profile("a", verdicts=(verdict,), calibrations=(first,)),
            profile("b", verdicts=(verdict,), calibrations=(last,)),
        ]
    )
    assert merged.verdicts == (verdict,)
    assert merged.calibrations == (last,)

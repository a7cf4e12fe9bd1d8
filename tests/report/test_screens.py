"""Screens fit 80 columns when piped, hold every number that matters, and end no line in blanks."""

from __future__ import annotations

from pathlib import Path

import pytest
from plan_for_tests import small_plan

from stratadvisor.report.format import bar, energy, percent, reading
from stratadvisor.report.plan import show_plan
from stratadvisor.report.profile import show_profile
from stratadvisor.report.trace import show_trace, show_why_not
from stratadvisor.report.validation import show_validation
from stratadvisor.schema.base import measured, unknown
from stratadvisor.schema.plan import Alternative, ClauseResult, Decision, Flip, Interval
from stratadvisor.schema.profile import ClusterProfile, DeviceProfile, NodePair, NodeProfile, Observation, Verdict
from stratadvisor.schema.validation import Comparison, FailureCause, RunConfigOutcome, ValidationResult
from stratadvisor.units import format_bytes

CLAUSE = ClauseResult(
    fact="cluster.speed_spread",
    operator="<=",
    expected="1.10",
    actual=1.02,
    actual_text="1.02",
    origin="measured",
    outcome=True,
)
DECISION = Decision(
    question="speeds",
    ask="Are the nodes equal in speed?",
    branch="SA4001",
    name="nodes-equal",
    because="Every device waits for the slowest.",
    clauses=(CLAUSE,),
    passed_over=("SA4000: cluster.num_devices <= 1 is false (2)",),
    sets={"family": "synchronous"},
)
OTHER = Alternative(
    strategy="zero2",
    variant="micro-batch 4",
    feasible=True,
    run_seconds=Interval(low=1, likely=2, high=3),
    relative_to_choice=1.25,
    reason="predicted 25 % slower",
)


def lines(capsys) -> list[str]:
    out = capsys.readouterr().out
    assert "\x1b" not in out  # no colour when piped
    found = out.splitlines()
    assert all(len(line) <= 80 for line in found), [line for line in found if len(line) > 80]
    assert all(line == line.rstrip() for line in found)
    return found


def plan():
    flip = Flip(fact="bandwidth", now="25 GB/s", threshold="1 GB/s", then="diloco")
    return small_plan(decisions=(DECISION,), alternatives=(OTHER,), flips=(flip,), warnings=("w" * 200,))


def test_a_plan_shows_answer_memory_time_path_and_runner_up(capsys):
    show_plan(plan(), bundle=None)
    text = "\n".join(lines(capsys))
    for words in (
        "tiny",
        "381 MiB",
        "SA4001",
        "100 ms",
        "zero2",
        "1.25 x",
        "would change",
        "unknown: no published peak",
    ):
        assert words in text


def test_unknown_device_memory_is_said_not_drawn(capsys):
    group = small_plan().groups[0].model_copy(update={"memory_available_bytes": None})
    show_plan(small_plan(groups=(group,)), bundle=None)
    text = "\n".join(lines(capsys))
    assert "memory is unknown" in text


def test_the_trace_shows_clauses_with_value_and_origin_and_what_was_passed_over(capsys):
    show_trace(plan())
    text = "\n".join(lines(capsys))
    assert "is 1.02 (measured)" in text
    assert "passed over" in text
    assert "family = synchronous" in text


def test_why_not_gives_the_ratio_and_the_reason(capsys):
    show_why_not(plan(), "zero2")
    assert "1.25 x" in "\n".join(lines(capsys))


def test_a_profile_shows_findings_and_reasons_for_absence(capsys):
    device = DeviceProfile(index=0, kind="cpu", name="A processor with a very long name " * 4)
    profile = ClusterProfile(
        nodes=(NodeProfile(hostname="a", devices=(device,)),),
        observations=(
            Observation(probe="nvml", status="unsupported", reason="no driver"),
            Observation(probe="storage", status="timed_out", reason="took more than 5 s"),
        ),
        verdicts=(Verdict(level="warning", subject="/dev/shm", message="64 MiB", advice="enlarge it"),),
    )
    show_profile(profile)
    text = "\n".join(lines(capsys))
    for words in ("not looked at", "no driver", "storage timed out", "enlarge it", "unknown"):
        assert words in text


def test_links_between_nodes_are_shown_slowest_first(capsys):
    nodes = tuple(NodeProfile(hostname=name) for name in ("a", "b", "c"))
    fast = {"a_to_b_bytes_per_second": 1.2e8, "b_to_a_bytes_per_second": 1.1e8, "latency_seconds": 2e-5}
    pairs = (
        NodePair(a="a", b="b", **fast, interface_a="eth0", interface_b="eth1"),
        NodePair(a="a", b="c", a_to_b_bytes_per_second=1.2e7, b_to_a_bytes_per_second=1.2e8),
    )
    show_profile(ClusterProfile(nodes=nodes, node_pairs=pairs))
    text = "\n".join(lines(capsys))
    assert text.index("a to c: 12 MB/s, back 120 MB/s") < text.index("a to b: 120 MB/s, back 110 MB/s, latency 20 us")
    assert "over eth0 and eth1" in text


def result(**changes) -> ValidationResult:
    row = Comparison(
        quantity="step time",
        unit="seconds",
        predicted=Interval(low=0.5, likely=1.0, high=2.0),
        measured=1.5,
        ratio=1.5,
        inside=True,
    )
    fields = {
        "strategy": "ddp",
        "outcome": "completed",
        "steps_asked": 12,
        "steps_done": 12,
        "wall_seconds": 30.0,
        "comparisons": (row,),
        "loss_first": 9.0,
        "loss_last": 8.0,
        "loss_falling": True,
        "tokens_per_second": 100.0,
    }
    return ValidationResult.model_validate(fields | changes)


def test_predicted_stands_beside_measured(capsys):
    show_validation(RunConfigOutcome(results=(result(), result(strategy="zero2", tokens_per_second=200.0))))
    text = "\n".join(lines(capsys))
    for words in ("step time", "1 s", "1.5 s", "1.50", "inside", "falling", "measured best is zero2"):
        assert words in text


def test_a_failure_shows_cause_evidence_and_fix(capsys):
    cause = FailureCause(
        kind="port_in_use", summary="taken", evidence=("EADDRINUSE " * 30,), fix="set MASTER_PORT", rank=1
    )
    show_validation(RunConfigOutcome(results=(result(outcome="failed", cause=cause, comparisons=()),)))
    text = "\n".join(lines(capsys))
    for words in ("port in use (rank 1)", "EADDRINUSE", "set MASTER_PORT"):
        assert words in text


@pytest.mark.parametrize(("share", "text"), [(0.0, "...."), (0.5, "##.."), (1.0, "####"), (3.0, "###!")])
def test_a_bar_is_as_full_as_its_share(share, text):
    assert bar(share, 4) == text


def test_numbers_carry_their_origin():
    assert reading(measured(2**30), format_bytes) == "1 GiB (measured)"
    assert reading(unknown("denied"), format_bytes) == "unknown (denied)"
    assert percent(0.004) == "0.4 %"
    assert energy(3.6e6 * 250) == "250 kWh"


def test_a_folder_is_named_once_with_what_happens_to_its_files(capsys):
    verdicts = (
        ("plan.json", "changed"),
        ("train.py", "identical"),
        ("runtime/a.py", "create"),
        ("runtime/b.py", "identical"),
        ("runtime/c.py", "identical"),
        ("runtime/d.py", "removed"),
        ("targets/x/launch.sh", "create"),
    )
    show_plan(plan(), bundle=Path("b"), verdicts=verdicts)
    said = "\n".join(lines(capsys)).split("files in ")[1]
    assert "  changed: plan.json, runtime/ (1 create, 2 identical, 1 removed)\n" in said
    assert "  identical: train.py\n" in said
    assert "  create: targets/\n" in said
    assert said.count("runtime/") == 1

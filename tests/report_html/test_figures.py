"""What figures say: numbers derived here by hand, unknowns drawn as unknown, large clusters cut and said so."""

from __future__ import annotations

import pytest
from plan_for_tests import small_plan
from report_pages import GIB, everything, metrics, outcome, plan, profile

from stratadvisor.derive.cluster import planning_cluster
from stratadvisor.report_html import (
    answer,
    bandwidth,
    charts,
    cluster_map,
    flowchart,
    memory,
    page,
    ranking,
    roofline,
    run_steps,
    step_time,
    theme,
    validation,
)
from stratadvisor.report_html.subject import Subject
from stratadvisor.rules_engine.load import load_ruleset
from stratadvisor.schema.base import measured, reported
from stratadvisor.schema.plan import Decision, Interval
from stratadvisor.schema.profile import ClusterProfile, DeviceLink, DeviceProfile, NodeProfile
from stratadvisor.schema.validation import Comparison
from stratadvisor.validate.metrics import RunMetrics


def bare(**device: object) -> ClusterProfile:
    """A machine of two processors of which nothing was measured."""
    devices = tuple(DeviceProfile(index=i, kind="cpu", name="cpu", **device) for i in range(2))
    return ClusterProfile(nodes=(NodeProfile(hostname="h", devices=devices),))


def test_intensity_of_a_square_product_is_two_n_over_three_element_sizes():
    # 2 n^3 FLOP over 3 n^2 elements: 2 n / (3 * bytes)
    assert roofline.product_intensity(4096, 4096, 4096, 2) == pytest.approx(2 * 4096 / (3 * 2))
    # one row: 2 k m FLOP over m + k + k m elements, just under 2 FLOP an element
    assert roofline.product_intensity(1, 1024, 1024, 4) == pytest.approx(2 * 1024**2 / (4 * (1024**2 + 2048)))


def test_the_roofline_table_has_the_ridge_and_every_measured_product():
    figure = roofline.figures(planning_cluster(profile()), None)[0]
    cells = [cell for row in figure.table.rows for cell in row]
    # 3090: 71 TFLOP/s bf16 in the catalog, 8e11 B/s measured
    assert figure.svg is not None
    assert "published peak 71 TFLOP/s (catalog)" in cells
    assert "ridge at 88.8 FLOP/B" in cells  # 71e12 / 8e11
    assert "1024^3 product (measured)" in cells
    assert "341" in cells  # 2 * 1024 / (3 * 2)
    assert "30 TFLOP/s" in cells


def test_products_of_the_model_lie_on_the_roof_at_their_intensity():
    cluster = planning_cluster(
        bare(matmul_flops_per_second={"fp32": measured(1e11)}, memory_bandwidth_bytes_per_second=measured(1e10))
    )
    figure = roofline.figures(cluster, small_plan())[0]
    rows = {row[0]: row[1:] for row in figure.table.rows}
    # micro-batch 4 x 32 tokens = 128 rows; MLP 128 wide out of 64, fp32: 2*128*128*64 / (4*(128*128+128*64+128*64))
    intensity = 2 * 128 * 128 * 64 / (4 * (128 * 128 + 128 * 64 + 128 * 64))
    assert rows["MLP, 128 tokens (estimated)"][0] == f"{intensity:.3g}"
    assert rows["MLP, 128 tokens (estimated)"][1] == "100 GFLOP/s"  # min(1e11, 16 * 1e10)


def test_a_roofline_without_a_memory_rate_is_unknown_and_says_what_lacks():
    figure = roofline.figures(planning_cluster(bare(matmul_flops_per_second={"fp32": measured(1e11)})), None)[0]
    assert figure.svg is None
    assert "the memory rate of cpu" in figure.unknown


def test_bandwidth_that_nobody_measured_is_unknown_not_empty():
    figures = bandwidth.figures(bare())
    assert [f.svg for f in figures] == [None]
    assert "no pair and no collective was measured" in figures[0].unknown


def test_an_unknown_pair_is_grey_with_a_question_mark_and_both_directions_are_drawn():
    figure = bandwidth.figures(profile())[0]
    assert figure.svg is not None
    assert figure.svg.count(">?</text>") == 2  # 2 to 3 and 3 to 2
    assert figure.svg.count(f'fill="{theme.UNKNOWN.light}"') == 2
    assert figure.svg.count(">50</text>") == 2
    assert figure.svg.count(">10</text>") == 8  # 12 cells less 2 unknown less 2 of NVLink
    assert ("2 and 3", "host bridge", "", "unknown", "unknown (timed out)") in figure.table.rows
    assert "10 GB/s to 50 GB/s" in figure.summary


def test_equal_nodes_share_one_heat_map():
    assert [f.key for f in bandwidth.figures(profile())] == ["pairs-0", "collectives"]


def test_each_direction_keeps_its_own_rate():
    links = (
        DeviceLink(device_a=0, device_b=1, kind="pcie_switch", bandwidth_bytes_per_second=measured(2e10)),
        DeviceLink(device_a=1, device_b=0, kind="pcie_switch", bandwidth_bytes_per_second=measured(1e10)),
    )
    node = bare().nodes[0].model_copy(update={"links": links})
    svg = bandwidth.figures(ClusterProfile(nodes=(node,)))[0].svg
    assert svg is not None
    assert svg.count(">20</text>") == 1
    assert svg.count(">10</text>") == 1


def test_memory_that_is_not_known_is_said_in_drawing_words_and_table():
    base = plan()
    group = base.groups[0].model_copy(update={"memory_available_bytes": None, "memory_available_origin": "unknown"})
    figure = memory.figure(base.model_copy(update={"groups": (group,)}), None)
    assert figure.svg is not None
    assert "free memory unknown" in figure.svg
    assert theme.BAD.light not in figure.svg  # no line at a limit that nobody knows
    assert "what is free there is unknown" in figure.summary
    assert (group.node_class, "usable on the device", "unknown") in figure.table.rows


def test_memory_bars_have_one_part_for_each_term_and_a_line_at_what_is_free():
    figure = memory.figure(small_plan(), None)
    assert figure.svg is not None
    assert figure.svg.count(f'fill="{theme.CATEGORIES[0].light}"') == 2  # the bar and its legend
    assert theme.BAD.light in figure.svg
    assert ("2xcpu", "parameters", "286 MiB (estimated)") in figure.table.rows  # 3e8 / 2^20


def test_step_terms_are_ordered_and_carry_their_share():
    figure = step_time.figure(plan())
    assert figure.table.rows[:2] == (
        ("matmul", "80 ms (estimated)", "80 %"),
        ("wait plain", "20 ms (estimated)", "20 %"),
    )
    assert step_time.figure(small_plan()).svg is None  # a plan without terms


def test_ranking_has_the_choice_the_fitting_and_the_killed():
    figure = ranking.figure(plan())
    rows = [(row[0], row[3]) for row in figure.table.rows]
    assert rows == [("ddp", "1.00"), ("zero2 plain", "1.25"), ("zero3", "")]
    assert figure.table.rows[2][2:] == ("does not fit", "", "needs 99 GiB plain")
    assert "2 candidates fit, 1 do not" in figure.summary
    assert "Bands that overlap the choice's: zero2 plain" in figure.summary  # 6..25 s and 5..20 s


def test_a_faster_candidate_that_was_not_chosen_is_named():
    base = plan()
    other = base.alternatives[0]
    faster = other.model_copy(update={"run_seconds": base.predicted.run_seconds.model_copy(update={"likely": 6.0})})
    figure = ranking.figure(base.model_copy(update={"alternatives": (faster,)}))
    assert "Predicted faster, but not chosen: zero2 plain" in figure.summary


def test_the_flowchart_lights_the_path_and_leaves_the_rest_quiet():
    rules = load_ruleset()
    question = next(iter(rules.questions.values()))
    branch = question.branches[-1]
    decision = Decision(question=question.id, ask=question.ask, branch=branch.id, name=branch.name, because="b")
    drawn = flowchart.figure(small_plan(decisions=(decision,)), rules).svg
    assert drawn is not None
    boxes = drawn.count("<rect ")
    assert boxes == len(rules.questions) + 1  # and the plan at the end
    assert drawn.count(f'fill="{theme.LIT_GROUND.light}"') == 2
    assert branch.id in drawn


def test_without_the_rules_of_the_plan_only_the_path_is_drawn():
    figure = flowchart.figure(plan(), None)
    assert figure.svg is not None
    assert figure.svg.count("<rect ") == 2
    assert "Only the path is drawn" in figure.summary


def test_a_validation_says_inside_outside_and_not_measured():
    figure = validation.figures(outcome(), None, None)[0]
    assert [row[5] for row in figure.table.rows] == ["outside the band", "plain"]
    assert "0 of 1 quantities lie inside" in figure.summary
    assert figure.svg is not None
    assert "not measured" in figure.svg


def test_a_run_that_failed_says_why_in_place_of_a_chart():
    figure = validation.figures(outcome(), None, None)[1]
    assert figure.svg is None
    assert "failed" in figure.summary
    assert "Cause: plain Fix: plain" in figure.summary


def test_steps_of_a_scaled_run_are_not_laid_over_the_plans_band():
    small = outcome().results[0].model_copy(update={"proxy": "2 layers in place of 32"})
    scaled = outcome().model_copy(update={"results": (small,)})
    words = [f.summary for f in run_steps.figures(scaled, metrics(), plan())]
    assert not any("predicted" in w for w in words)
    assert any("predicted" in f.summary for f in run_steps.figures(outcome(), metrics(), plan()))


def test_a_long_run_is_thinned_and_says_so():
    steps = [{"event": "step", "step": n, "loss": 1.0, "step_seconds": 0.1} for n in range(1, 1001)]
    figures = run_steps.figures(None, RunMetrics(steps=steps), None)
    assert all(len(f.table.rows) <= run_steps.MAX_STEPS for f in figures)
    assert all("One step of 3 is shown" in f.summary for f in figures)


def test_steps_without_usable_numbers_draw_nothing():
    assert run_steps.figures(None, RunMetrics(steps=[{"event": "step", "step": 1, "loss": None}]), None) == []


def test_the_map_of_a_large_cluster_is_cut_and_says_how_much_is_left():
    node = profile().nodes[0].model_copy(update={"count": 5000, "links": ()})
    cluster = planning_cluster(ClusterProfile(nodes=(node,)))
    figure = cluster_map.of_cluster(cluster, ClusterProfile(nodes=(node,)), None)
    assert figure.svg is not None
    assert "and 4998 more alike" in figure.svg
    assert len(figure.svg) < 20_000
    assert "15000 devices in 5000 nodes" in figure.summary  # three of four cards work


def test_the_map_marks_lost_devices():
    given = profile()
    figure = cluster_map.of_cluster(planning_cluster(given), given, None)
    assert figure.svg is not None
    assert figure.svg.count(">3 lost</text>") == 2
    assert "2 devices do not work" in figure.summary


def test_how_sure_names_what_lies_outside_and_where_values_come_from():
    words = answer.how_sure(everything()).intro
    assert "0 of 1 measured quantities lie inside their band; outside: step time plain 2 x the prediction." in words
    assert "by origin: 1 measured." in words


@pytest.mark.parametrize(
    ("low", "high"), [(1e-3, 1e9), (0.5, 2.0), (3.0, 3.1), (1e-30, 1e30), (7.0, 7.0)], ids=lambda v: f"{v:g}"
)
def test_ticks_lie_inside_and_are_few(low, high):
    ticks = charts.round_ticks(low, high)
    assert len(ticks) <= charts.MAX_TICKS
    assert all(low <= t <= high for t in ticks)


@pytest.mark.parametrize("low", [-1e308, 0.0, 5e-324, 1.0])
@pytest.mark.parametrize("high", [1.0, 1e200, 1.7e308])
def test_extreme_numbers_are_drawn_or_left_out_but_end_nothing(low, high):
    band = Interval(low=low, likely=low, high=high)
    base = plan()
    group = base.groups[0].model_copy(update={"memory_peak_bytes": band, "memory_available_bytes": high})
    changed = dict.fromkeys(("run_seconds", "step_seconds", "tokens_per_second"), band)
    predicted = base.predicted.model_copy(update={**changed, "time_terms_seconds": {"a": low, "b": high}})
    extreme = base.model_copy(update={"groups": (group,), "predicted": predicted})
    row = Comparison(quantity="q", unit="seconds", predicted=band, measured=high, inside=True)
    run = outcome().model_copy(update={"results": (outcome().results[0].model_copy(update={"comparisons": (row,)}),)})
    steps = RunMetrics(steps=[{"step": 2**80, "step_seconds": 1.0}, {"step": 1, "step_seconds": high, "loss": low}])
    text = page.render(Subject(plan=extreme, outcome=run, metrics=steps), None)
    assert "NaN" not in text
    assert "Infinity" not in text


def test_unknown_free_memory_of_a_profile_is_unknown_in_the_map_table():
    given = bare(memory_total_bytes=reported(8.0 * GIB))
    row = cluster_map.of_cluster(planning_cluster(given), given, None).table.rows[0]
    assert row[2:4] == ("unknown", "8 GiB (reported)")


def test_what_a_run_waited_for_is_drawn_where_it_is_worth_it():
    def found(**waits):
        steps = [{"event": "step", "step": n, "step_seconds": 0.2, **waits} for n in (1, 2)]
        return {figure.key: figure for figure in run_steps.figures(None, RunMetrics(steps=steps), None)}

    drawn = found(communication_seconds=0.05, data_wait_seconds=0.003, straggler_spread_seconds=None)
    assert "waits-data" not in drawn  # 1.5 % of the time
    assert "waits-stragglers" not in drawn  # unknown
    assert "25 % of the time" in drawn["waits-communication"].summary
    assert ("1", "50 ms (measured)") in drawn["waits-communication"].table.rows

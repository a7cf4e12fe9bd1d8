from __future__ import annotations

import csv
import io
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from published_runs import PUBLISHED

from stratadvisor.backtest import groups, scatter
from stratadvisor.backtest.calibrated import calibrated
from stratadvisor.backtest.frameworks import completed, framework_of
from stratadvisor.backtest.layouts import layout_of
from stratadvisor.backtest.memory_score import MemoryOutcome, predict_memory
from stratadvisor.backtest.picks import pick_quality
from stratadvisor.backtest.rows import Row
from stratadvisor.backtest.run import Predicted, predict_rows, summarise, verdicts
from stratadvisor.backtest.score import Outcome, predict
from stratadvisor.backtest.shapes import shape_of
from stratadvisor.backtest.table import HEADER, as_csv
from stratadvisor.costs.flops import forward_linear_flops_per_token
from stratadvisor.errors import UsageError

ROWS = tuple(Row(line, dict(cells)) for line, cells in enumerate(PUBLISHED, start=2))


def timed(row: Row) -> Outcome:
    found = predict(row)
    assert isinstance(found, Outcome)
    return found


def remembered(row: Row) -> MemoryOutcome:
    found = predict_memory(row)
    assert isinstance(found, MemoryOutcome)
    return found


def test_published_times_and_peaks_are_met_within_a_quarter() -> None:
    found = predict_rows(ROWS)
    assert len(found.times) == 3
    assert len(found.peaks) == 1
    assert all(abs(o.error) < 0.25 for o in (*found.times, *found.peaks))


def test_every_row_is_predicted_or_has_a_reason() -> None:
    found = predict_rows(ROWS)
    told = {o.row.line for o in found.times} | {p.row.line for p in found.peaks} | {s.row.line for s in found.skipped}
    assert told == {row.line for row in ROWS}
    assert [s.reason for s in found.skipped] == ["precision nvfp4 is not modelled"]


def test_the_summary_holds_one_score_per_group_and_all() -> None:
    result = summarise(predict_rows(ROWS), groups.parse("gpu,strategy"))
    assert [s.group for s in result.time] == [
        "RTX-4090-24GB, ddp",
        "RTX-4090-24GB, fsdp",
        "H100-80GB-SXM, tp-pp-dp",
        "all",
    ]
    assert sum(s.count for s in result.time[:-1]) == result.time[-1].count == 3
    mean = sum(s.count * s.mean_absolute for s in result.time[:-1]) / 3
    assert result.time[-1].mean_absolute == pytest.approx(mean)
    assert result.skipped == (("precision nvfp4 is not modelled", 1),)


def test_groups_are_any_columns_and_nothing_else() -> None:
    assert groups.group_of(ROWS[0], groups.parse("source, framework,micro_batch")) == "fsdp-qlora, fsdp_qlora, 4"
    for wrong in ("speed", "", ","):
        with pytest.raises(UsageError):
            groups.parse(wrong)


def test_one_run_sets_the_scale_of_the_others() -> None:
    # three runs of one place, measured at 1, 2 and 4 times the prediction: ratios 1, 1/2, 1/4
    base = timed(ROWS[2])
    runs = [replace(base, measured_seconds=base.estimate.step_seconds.likely * n) for n in (1.0, 2.0, 4.0)]
    found = calibrated(runs)
    assert found is not None
    # scaled by the first: 1/2 and 1/4 of the truth; by the second: 2 and 1/2; by the third: 4 and 2
    errors = [(0.5 + 0.75) / 2, (1 + 0.5) / 2, (3 + 1) / 2]
    assert found.count == 3
    assert found.mean == pytest.approx(sum(errors) / 3)
    assert found.typical == pytest.approx(errors[1])
    assert found.coverage == 0
    assert calibrated(runs[:1]) is None


def test_the_choice_is_judged_against_the_fastest_of_its_contest() -> None:
    # same model, cluster, batch; two layouts: the one predicted fastest took a tenth longer than the other
    first = timed(Row(2, ROWS[2].cells))
    other = timed(Row(3, ROWS[2].cells | {"cp": "1", "tp": "8"}))
    fast, slow = sorted((first, other), key=lambda o: o.estimate.step_seconds.likely)
    assert fast.estimate.step_seconds.likely < slow.estimate.step_seconds.likely
    found = pick_quality([replace(fast, measured_seconds=11.0), replace(slow, measured_seconds=10.0)])
    assert found is not None
    assert (found.contests, found.layouts, found.best) == (1, 2, 0)
    assert found.mean_loss == pytest.approx(0.1)
    assert found.random_loss == pytest.approx(0.05)
    right = pick_quality([replace(fast, measured_seconds=10.0), replace(slow, measured_seconds=11.0)])
    assert right is not None
    assert (right.best, right.worst_loss) == (1, 0.0)


def test_the_same_layout_twice_is_no_contest() -> None:
    assert pick_quality([timed(ROWS[2]), timed(ROWS[2])]) is None


def test_what_the_driver_shows_is_more_than_what_tensors_take() -> None:
    cells = ROWS[1].cells
    whole, reserved, allocated = (
        remembered(Row(2, cells | {"mem_kind": kind})).predicted_bytes
        for kind in ("nvidia-smi", "peak reserved", "max allocated")
    )
    assert allocated < reserved < whole


def test_out_of_memory_is_foretold_where_weights_alone_do_not_fit() -> None:
    # 70e9 parameters on one card of 24 GB
    big = {"model_name": "x", "n_layers": "80", "hidden": "8192", "n_heads": "64", "ffn_hidden": "28672"}
    cells = ROWS[0].cells | big | {"method": "full", "peak_mem_gib": "", "outcome": "OOM", "step_time_s": ""}
    found = predict_rows([Row(2, cells), ROWS[1]])
    told = verdicts(found.peaks)
    assert told is not None
    assert (told.runs, told.out_of_memory, told.out_of_memory_right) == (2, 1, 1)
    assert len(found.measured_peaks) == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"optimizer": "magic"}, "optimizer 'magic'"),
        ({"quality": "X"}, "doubt"),
        ({"n_gpus": ""}, "number of devices"),
        ({"note": "baseline (unpacked)"}, "padded"),
        ({"hidden": ""}, "hidden size"),
        ({"pp": "64"}, "more pipeline stages than layers|does not divide"),
    ],
)
def test_peaks_that_cannot_be_predicted_say_why(change: dict[str, str], reason: str) -> None:
    import re

    found = predict_memory(Row(2, ROWS[1].cells | change))
    assert isinstance(found, str)
    assert re.search(reason, found)


@pytest.mark.parametrize(
    ("cells", "layers"),
    [
        ({"stage_layers": "11 13"}, (11, 13)),
        ({"note": "layers per stage [12, 14]"}, (11, 13)),  # with the embedding on the first, the head on the last
        ({"note": "layers per stage [11, 13]"}, (11, 13)),
        ({"stage_layers": "12 12"}, ()),
        ({}, ()),
    ],
)
def test_uneven_stages_are_taken_as_they_are_told(cells: dict[str, str], layers: tuple[int, ...]) -> None:
    row = Row(2, {"strategy": "tp-pp-dp", "n_layers": "24", "pp": "2", "micro_batch": "1"} | cells)
    assert layout_of(row, "bf16", 2, 2).stage_layers == layers


def test_a_task_head_takes_the_place_of_the_vocabulary() -> None:
    bert = {"model_name": "BERT-base", "n_layers": "12", "hidden": "768", "n_heads": "12", "vocab": "30522"}
    whole, task = (shape_of(Row(2, bert | more)) for more in ({}, {"outputs": "2"}))
    assert not isinstance(whole, str)
    assert not isinstance(task, str)
    assert whole.num_parameters == task.num_parameters
    # forward products of a token: 24 h^2 FLOPs a layer (12 h^2 weights), and the output projection
    layers = 12 * 24 * 768**2
    assert forward_linear_flops_per_token(whole) == layers + 2 * 768 * 30522
    assert forward_linear_flops_per_token(task) == layers + 2 * 768 * 2


def test_stages_that_contradict_the_layers_are_refused() -> None:
    row = Row(2, {"strategy": "tp-pp-dp", "n_layers": "24", "pp": "2", "micro_batch": "1", "stage_layers": "11 14"})
    with pytest.raises(ValueError, match="2 stages of 25 layers are told, 2 of 24 stated"):
        layout_of(row, "bf16", 2, 2)


def test_a_stated_cell_goes_before_what_a_framework_usually_does() -> None:
    old = ROWS[2].cells | {"source": "arXiv:2104.04473", "model_name": "GPT-18B", "gpu_model": "A100-80GB"}
    assert framework_of(Row(2, old)).name == "megatron"
    assert completed(Row(2, old)).text("attention") == "plain"
    assert completed(Row(2, old)).text("sequence_parallel") == "no"
    assert completed(Row(2, old | {"attention": "fused"})).text("attention") == "fused"
    assert completed(Row(2, old | {"gpu_model": "H100"})).text("attention") == ""


def test_the_csv_lists_predictions_and_reasons_and_runs_no_formula() -> None:
    evil = Row(9, ROWS[3].cells | {"id": "=1+1"})
    text = as_csv(predict_rows([*ROWS, evil]))
    lines = list(csv.DictReader(io.StringIO(text)))
    assert tuple(lines[0]) == HEADER
    assert len(lines) == 3 + 1 + 2
    assert float(lines[0]["predicted"]) == pytest.approx(3.4141 * (1 + float(lines[0]["error"])), rel=1e-3)
    assert lines[-1]["id"] == "'=1+1"
    assert lines[-1]["reason"] == "precision nvfp4 is not modelled"


def test_the_plot_has_a_point_for_each_run_and_is_xml() -> None:
    points = [("a<b", 1.0, 2.0), ("c", 10.0, 9.0), ("c", 0.1, 0.1)]
    root = ET.fromstring(scatter.draw(points, "seconds"))
    circles = [c for c in root.iter() if c.tag.endswith("circle")]
    assert len(circles) == 3 + 2  # points and the legend
    assert "a<b" in "".join(root.itertext())


def test_no_rows_give_empty_tables() -> None:
    result = summarise(Predicted((), (), ()), ("gpu",))
    assert (result.time, result.memory, result.picks, result.verdicts, result.calibrated) == ((), (), None, None, None)

"""docs/regret.md and its plot, from the tables."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

from benchmarks.regret import records
from benchmarks.regret.clusters import CASES
from benchmarks.regret.contests import LIMIT_SECONDS
from benchmarks.regret.regrets import Measured, Result, results
from benchmarks.regret.tasks import LEARNING_RATE, TASKS, WINDOW_SEQUENCES

ROLES = {"recommended": "recommended", "flowchart": "flowchart as commonly written", "plain": "plain DDP"}
LIMIT = 0.15
"""A choice that takes so much longer than the best is looked into."""


def write_page(tables: Path, folder: Path) -> None:
    """Write regret.md and regret.svg into a folder."""
    found = results(tables)
    (folder / "regret.svg").write_text(plot(found), encoding="utf-8")
    contests = records.read(tables / "contests.csv")
    (folder / "regret.md").write_text(page(found, records.read(tables / "runs.csv"), contests), encoding="utf-8")


def _percent(value: float | None, *, more: bool = False) -> str:
    if value is None:
        return "-"
    return ("> " if more else "") + f"{value:.0%}"


def _summary(found: list[Result], what: str) -> str:
    cells = [what, str(len(found))]
    for role in ROLES:
        values = [v for v in (r.regret(role) for r in found) if v is not None]
        if not values:
            cells.append("-")
            continue
        ended = sum(r.ended(role) for r in found)
        note = f" ({ended} ended early)" if ended else ""
        cells.append(f"{statistics.fmean(values):.1%} / {statistics.median(values):.1%} / {max(values):.0%}{note}")
    return f"| {' | '.join(cells)} |"


def _line(result: Result) -> str:
    chosen, best = result.of("recommended"), result.best
    assert chosen is not None
    cells = [
        result.case.name + (" *" if result.case.held_out else ""),
        result.task,
        result.case.hosts,
        result.case.network,
        chosen.label,
        best.label,
        f"{best.median:.2f}",
        *(_percent(result.regret(role), more=result.ended(role)) for role in ROLES),
        str(sum(len(m.seconds) for m in result.measured)),
        "-" if result.spread is None else f"{result.spread:.0%}",
    ]
    return f"| {' | '.join(cells)} |"


def _accuracy(found: list[Result]) -> list[str]:
    """Say for each strategy how well steps and their time were predicted."""
    lines = [
        "| strategy | runs of | time of a step, measured / predicted: median (10th to 90th of a hundred) |"
        " steps against exact methods: measured | predicted |",
        "| --- | --- | --- | --- | --- |",
    ]
    by: dict[str, list[tuple[Result, Measured]]] = {}
    for result in found:
        for measured in result.measured:
            by.setdefault(measured.strategy, []).append((result, measured))
    for strategy, pairs in sorted(by.items()):
        ratios = sorted(m.step_seconds / m.predicted_step_seconds for _, m in pairs if math.isfinite(m.step_seconds))
        extra = [m.steps / r.exact_steps for r, m in pairs if m.steps and r.exact_steps]
        if not ratios:
            continue
        low, high = ratios[len(ratios) // 10], ratios[-1 - len(ratios) // 10]
        predicted = statistics.median(1 + m.predicted_extra for _, m in pairs)
        steps = f"{statistics.median(extra):.2f}" if extra else "-"
        lines.append(
            f"| {strategy} | {len(ratios)} | {statistics.median(ratios):.2f} ({low:.2f} to {high:.2f}) |"
            f" {steps} | {predicted:.2f} |"
        )
    return lines


def _contests(lines: list[dict[str, str]]) -> list[str]:
    """Return single strategies against each other; the first way of a contest is the yardstick."""
    if not lines:
        return []
    rows = [
        "## Single strategies against each other",
        "",
        "From `benchmarks/regret/contests.csv`; seconds to the loss, runs in turn.",
        "",
        "| contest | cluster | way | runs | median s | least to most | steps | step s | against the first |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for contest in dict.fromkeys(line["contest"] for line in lines):
        mine = [line for line in lines if line["contest"] == contest]
        first: float | None = None
        for way in dict.fromkeys(line["way"] for line in mine):
            own = [line for line in mine if line["way"] == way]
            times = sorted(float(line["seconds"]) for line in own if line["seconds"])
            steps = statistics.median(float(line["steps"]) for line in own)
            each = statistics.median(float(line["step_seconds"]) for line in own)
            cells = [contest, own[0]["cluster"], way, f"{len(times)} of {len(own)}"]
            if len(times) * 2 <= len(own):
                rows.append(f"| {' | '.join(cells)} | not reached in {LIMIT_SECONDS:g} s | | | {each:.3f} | |")
                continue
            middle = statistics.median(times)
            first = middle if first is None else first
            cells += [f"{middle:.2f}", f"{times[0]:.2f} to {times[-1]:.2f}", f"{steps:g}", f"{each:.3f}"]
            rows.append(f"| {' | '.join(cells)} | {middle / first:.2f} |")
    rows += [
        "",
        "DiLoCo takes more steps than DDP; it wins by what it does not send. Asynchronous SGD waits for nobody and"
        " loses more by stale gradients than that is worth, with delay compensation and AdamW more than without. The"
        " planner charges for staleness accordingly; `settings.delay_compensation = 0` turns compensation off.",
    ]
    return [*rows, ""]


def page(found: list[Result], runs: list[dict[str, str]], contests: list[dict[str, str]]) -> str:
    """Return the page."""
    kept, held = [r for r in found if not r.case.held_out], [r for r in found if r.case.held_out]
    clusters = len({r.case.name for r in found})
    spreads = [r.spread for r in found if r.spread is not None]
    repeats = [len(m.seconds) for r in found for m in r.measured if m.seconds]
    others = sorted(float(r["others"]) for r in runs)
    commits = list(dict.fromkeys(r["commit"] for r in runs))
    wrong = [r for r in found if (r.regret("recommended") or 0.0) > LIMIT]
    lines = [
        "# Regret: how good the recommendations are",
        "",
        "Written by `python -m benchmarks.regret page` from `benchmarks/regret/runs.csv` and `choices.csv`.",
        "",
        "On each cluster of the [lab](lab.md) everything that applies was trained to the same loss. Regret is the time"
        " of the recommendation over the time of the best, less one. Beside it stand plain DDP over all hosts with"
        " equal shares, and the flowchart as commonly written (equal nodes: synchronous; unequal nodes: hybrid on a"
        " good network, asynchronous with delay compensation on a bad one; always on all nodes with equal shares), kept"
        " as a rule overlay in `benchmarks/regret/flowchart`. A hybrid of groups of one rank is plain DDP.",
        "",
        f"{clusters} of {len(CASES)} declared clusters, {len(found)} of {len(CASES) * len(TASKS)} cases with"
        f" {len(TASKS)} models; {len(runs)} runs, {statistics.fmean(repeats):.1f} a choice that reached the loss."
        f" Repeats of a choice differ by {statistics.median(spreads):.0%} in the median case."
        if spreads
        else f"{clusters} of {len(CASES)} declared clusters, {len(found)} cases; {len(runs)} runs, none repeated.",
        f"Other programs took {statistics.median(others):.0%} of the machine (median over runs, 90 of a hundred below"
        f" {others[-1 - len(others) // 10]:.0%}) while these ran; hosts have quotas that add up to about one of its two"
        f" processors and the first right to it, which keeps most but not all of that out."
        f" Runs at {', '.join(commits)}.",
        "",
        "| clusters | cases | " + " | ".join(f"{name}: mean / median / worst" for name in ROLES.values()) + " |",
        "| --- | --- | --- | --- | --- |",
        _summary(found, "all"),
        _summary(kept, "looked at when changing rules"),
        _summary(held, "held out (*)"),
        "",
        "![Regret of each case](regret.svg)",
        "",
        "| cluster | model | hosts (processors) | network | recommended | best | s | recommended | flowchart"
        " | plain DDP | runs | spread |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        *(_line(r) for r in found),
        "",
        "Names are strategy, sequences of each host's ranks in a step, and steps between meetings. `>`: ended early,"
        " when it had taken 2.5 times the best. *: held out.",
        "",
        f"## Where the recommendation is more than {LIMIT:.0%} off",
        "",
        *(
            f"- {r.case.name}, {r.task}: {_percent(r.regret('recommended'), more=r.ended('recommended'))}."
            f" {r.cause() or 'It was ended early; nothing is known of its steps.'}"
            for r in wrong
        ),
        *([] if wrong else ["Nowhere."]),
        "",
        "## What was predicted",
        "",
        *_accuracy(found),
        "",
        *_contests(contests),
        "## How it is measured",
        "",
        *_method(),
    ]
    return "\n".join(lines) + "\n"


def _method() -> list[str]:
    tasks = "; ".join(
        f"{t.name}: {t.num_layers} layers of {t.hidden_size}, {t.global_batch_size} sequences of {t.sequence_length}"
        f" bytes a step, to {t.target_loss} nats a byte, {t.total_steps} steps planned"
        for t in TASKS
    )
    return [
        f"- Models: decoders over bytes ({tasks}). fp32, AdamW, learning rate {LEARNING_RATE:g} for every method.",
        "- Text: the reference topics that come with Python's own help, 0.7 MB of English and code.",
        f"- Done is a mean training loss over the last {WINDOW_SEQUENCES} sequences at or below the target; no text"
        " comes twice, so it is the loss on unseen text.",
        "- Each cluster is probed by the tool's own probe, one process on each host with torchrun's variables, then"
        " planned, then run with the runtime that bundles carry and the training configuration that they carry. Probes"
        " and ranks are forked from a process that has torch imported already, into the host's namespaces and control"
        " group: starting a Python with torch takes longer than a run. What counts is the time from the first step.",
        "- Choices: the recommendation, the flowchart's, and for every strategy and every part of the cluster the"
        " candidate with the best prediction. ZeRO, FSDP2, HSDP and tensor parallelism are left out: they divide what"
        " fits whole, which adds communication to DDP's; FSDP2 took 1.6 to 3 times DDP's time where it was tried.",
        "- Order: all choices once, then all again from another start. What took more than 1.6 times the best is not"
        " repeated.",
        "- What was changed with results of clusters without a star in sight: DiLoCo is offered from 30 exchanges on,"
        " and its beginning in lockstep is paid for; stale gradients cost 15% more steps for each doubling of their age"
        " (they cost 3% before); everything that runs on a processor takes longer where the same processor multiplies"
        " more slowly, not only products.",
        "- These tables are of one version, from probe to run (commits above). The speed of the machine drifts by a"
        " third within hours, so runs of different hours are not compared. The probe now watches speeds for"
        " six seconds and times a small operation: that is not in these figures yet.",
        "- Runs of some 50 steps say little about methods that meet rarely or average over long times: of DiLoCo they"
        " see a handful of exchanges.",
        "",
        "Again: `python -m benchmarks.regret run --work DIR` as root measures what is missing from the tables (about a"
        " minute for each cluster, model and repeat), then `python -m benchmarks.regret page`.",
    ]


def plot(found: list[Result]) -> str:
    """Return a dot plot: one line for each case, one mark for each of the three."""
    import vl_convert

    values: list[dict[str, Any]] = []
    for result in found:
        name = f"{result.case.name}{' *' if result.case.held_out else ''}, {result.task}"
        for role, title in ROLES.items():
            regret = result.regret(role)
            if regret is not None:
                values.append({"case": name, "who": title, "regret": round(100 * regret, 1)})
    order = list(dict.fromkeys(v["case"] for v in values))
    spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "background": "white",
        "width": 460,
        "height": {"step": 15},
        "data": {"values": values},
        "layer": [
            {
                "mark": {"type": "point", "filled": True, "size": 70, "opacity": 0.85},
                "encoding": {
                    "y": {"field": "case", "type": "nominal", "sort": order, "title": None},
                    "x": {
                        "field": "regret",
                        "type": "quantitative",
                        "title": "longer than the best, % (ended early: drawn at 150)",
                    },
                    "color": {
                        "field": "who",
                        "type": "nominal",
                        "title": None,
                        "sort": list(ROLES.values()),
                        "scale": {"domain": list(ROLES.values()), "range": ["#0b6e4f", "#e08e0b", "#8a8f98"]},
                        "legend": {"orient": "top"},
                    },
                    "shape": {"field": "who", "type": "nominal", "sort": list(ROLES.values()), "title": None},
                },
            },
            {
                "mark": {"type": "rule", "strokeDash": [4, 3], "color": "#555"},
                "encoding": {"x": {"datum": 100 * LIMIT}},
            },
        ],
        "config": {"axis": {"labelLimit": 260}},
    }
    return str(vl_convert.vegalite_to_svg(json.dumps(spec), allowed_base_urls=[]))

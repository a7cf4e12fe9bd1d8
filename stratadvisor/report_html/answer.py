"""The top of the page: what was chosen, what it should cost, how sure that is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from stratadvisor.report.format import UNKNOWN, energy, interval, mass, measured_energy, percent
from stratadvisor.report.plan import TITLES, shaping_decisions
from stratadvisor.report_html.markup import Html, Section, e, join, lines, tag
from stratadvisor.report_html.subject import Subject
from stratadvisor.schema.plan import Interval, Plan
from stratadvisor.schema.validation import RunConfigOutcome
from stratadvisor.units import format_bytes, format_count, format_seconds

NEARLY = 1.05
"""Ratio of times below which two predictions are called equal here: the goal for a prediction corrected by a run."""
DECIDING = {"family", "minimum_sharding"}
"""What a branch must set to be named at the top."""


def title_of(subject: Subject) -> str:
    """Return the page's title."""
    if subject.plan is not None:
        name = subject.plan.workload.model.name
        size = name.removeprefix("chosen for ")
        return f"How to train {name}" if size == name else f"How to train a model of {size} parameters"
    if subject.comparison is not None and subject.outcome is None:
        first = subject.comparison.clusters[0]
        return f"Clusters for {first.plan.workload.model.name}" if first.plan else "Clusters compared"
    if subject.outcome is not None:
        return f"Validation run of {subject.outcome.results[0].strategy}"
    name = subject.profile.name if subject.profile else ""
    return f"Cluster {name or 'profile'}"


def lead(subject: Subject) -> Html:
    """Return the answer in a few lines."""
    if subject.plan is not None:
        return _plan_lead(subject.plan, subject.outcome)
    if subject.comparison is not None and subject.outcome is None:
        names = ", ".join(entry.name for entry in subject.comparison.clusters if not entry.what_if)
        return tag("p", e(f"One model planned on {names}; nothing was run."), class_="lead")
    if subject.outcome is not None:
        return tag("p", e("Predicted beside measured, without the plan: give the bundle to see it too."), class_="lead")
    profile = subject.profile
    assert profile is not None
    devices = Counter(d.name for n in profile.nodes for d in n.devices for _ in range(n.count))
    kinds = ", ".join(f"{count} x {name}" for name, count in devices.items()) or "no device"
    when = f" Captured {profile.captured_at}." if profile.captured_at else ""
    how = {
        "probe": "measured by probe",
        "declared": "described by hand, not measured",
        "merged": "merged from several probes",
    }
    return tag("p", e(f"{kinds}; {how[profile.source]}.{when}"), class_="lead")


def _why(plan: Plan) -> Html:
    """Return what decided the family and the sharding, and what the nearest other way would take."""
    decided = [d for d in shaping_decisions(plan) if DECIDING & set(d.sets)]
    said = [f"{d.ask} {d.name.replace('-', ' ').capitalize()}. {d.because}" for d in decided]
    others = [a for a in plan.alternatives if a.feasible and a.relative_to_choice is not None]
    if others:
        nearest = min(others, key=lambda a: a.relative_to_choice or 0.0)
        reason = f" ({nearest.reason})" if nearest.reason else ""
        said.append(f"Nearest other way: {nearest.strategy}, {nearest.relative_to_choice:.2f} x the time{reason}.")
    elif plan.alternatives:
        said.append("No other way fits.")
    return join(tag("div", e(line)) for line in said)


def _sure(plan: Plan, outcome: RunConfigOutcome | None) -> Html:
    """Return in one sentence what the figures rest on."""
    if outcome is not None:
        return e(" ".join(_validated(outcome)[:2]))
    step = plan.predicted.step_seconds
    band = f"a step takes {format_seconds(step.low)} to {format_seconds(step.high)} in nine runs of ten"
    basis = "Computed, corrected by an earlier run" if plan.predicted.calibrated else "Computed, not run yet"
    close = [
        a.strategy for a in plan.alternatives if a.feasible and a.relative_to_choice and a.relative_to_choice < NEARLY
    ]
    alike = f"; too close to tell apart without a run: {', '.join(dict.fromkeys(close))}" if close else ""
    return e(f"{basis}: {band}{alike}.")


def _plan_lead(plan: Plan, outcome: RunConfigOutcome | None) -> Html:
    work, model, length = plan.workload, plan.workload.model, plan.batch.sequence_length
    devices = ", ".join(f"{g.num_nodes} x {g.devices_per_node} {g.device_name}" for g in plan.groups)
    batches = "; ".join(
        f"{g.node_class}: micro-batch {g.micro_batch_size} x {g.gradient_accumulation_steps}"
        f" = {g.batch_per_device} {plan.parallelism.who_shares}"
        for g in plan.groups
    )
    rows = (
        ("chosen", e(TITLES.get(plan.strategy, plan.strategy))),
        ("how", e(plan.variant)),
        ("why", _why(plan)),
        ("how\u00a0sure", _sure(plan, outcome)),
        (
            "model",
            e(f"{model.name}: {format_count(model.num_parameters)} parameters, {work.method}, {plan.precision}"),
        ),
        ("devices", e(f"{devices} (nodes x devices)")),
        ("batch", e(f"{plan.batch.global_batch_size} sequences of {length} tokens a step; {batches}")),
    )
    body = (tag("tr", tag("th", e(name), scope="row"), tag("td", text)) for name, text in rows)
    return tag(
        "div",
        tag("table", tag("caption", e("The answer")), tag("tbody", *body)),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label="The answer",
    )


def _card(label: str, value: str, band: str, origin: str) -> Html:
    parts = [tag("span", e(value), class_="value")]
    if band:
        parts.append(tag("span", e(band), class_="range"))
    parts.append(tag("span", e(origin), class_="origin"))
    return tag("div", tag("dt", e(label)), tag("dd", *parts))


def _predicted(label: str, value: Interval | None, show: Callable[[float], str], missing: str, origin: str) -> Html:
    if value is None:
        return _card(label, UNKNOWN, missing, "unknown")
    band = "" if value.low == value.high else f"{show(value.low)} to {show(value.high)}"
    return _card(label, show(value.likely), band, origin)


def numbers(plan: Plan) -> Html:
    """Return the figures of the prediction as cards."""
    p = plan.predicted
    origin = "estimated, corrected by a run" if p.calibrated else "estimated"
    tightest = max(plan.groups, key=lambda g: g.memory_peak_bytes.likely)
    return tag(
        "dl",
        _predicted("one step", p.step_seconds, format_seconds, "", origin),
        _predicted("tokens per second", p.tokens_per_second, format_count, "", origin),
        _predicted("memory of a device, peak", tightest.memory_peak_bytes, format_bytes, "", origin),
        _predicted(
            "share of peak FLOP/s (MFU)", p.model_flops_utilization, percent, "no published peak of this device", origin
        ),
        _predicted(f"whole run of {format_count(p.run_tokens)} tokens", p.run_seconds, format_seconds, "", origin),
        _predicted("energy of the devices", p.energy_joules, energy, "no power figure of this device", origin),
        _predicted("CO2 of the devices", p.carbon_grams, mass, "no grid intensity was given", origin),
        _predicted("cost", p.cost, "{:,.0f}".format, "no price was given", origin),
        class_="numbers",
    )


def how_sure(subject: Subject) -> Section:
    """Return what the answer rests on, in words."""
    said: list[Html] = []
    if subject.outcome is not None:
        said += [tag("li", e(line)) for line in _validated(subject.outcome)]
    elif subject.plan is not None:
        said.append(tag("li", e("No validation run yet: stratadvisor run-config measures what is predicted here.")))
    plan = subject.plan
    if plan is not None:
        p = plan.predicted.step_seconds
        said.append(tag("li", e(f"Step time {interval(p, format_seconds)}: nine runs of ten should lie in the band.")))
        said.append(tag("li", e(_calibrated(plan))))
        said.append(tag("li", e(_origins(plan))))
        said += [
            tag("li", e(f"Would change the answer: {f.fact} is {f.now}; at {f.threshold}, {f.then} wins."))
            for f in plan.flips
        ]
    parts = [tag("ul", *said)]
    for heading, items in (("Warnings", _warnings(subject)), ("Assumed", plan.assumptions if plan else ())):
        if items:
            parts += [tag("h3", e(heading)), lines(dict.fromkeys(items))]
    return Section(key="sure", title="How sure is this", intro=join(parts))


def _calibrated(plan: Plan) -> str:
    if plan.predicted.calibrated:
        return "An earlier validation run on this kind of device corrected the prediction."
    return "The prediction is not corrected by any run on these devices."


def _warnings(subject: Subject) -> tuple[str, ...]:
    return subject.notes + (subject.plan.warnings if subject.plan else ())


def _origins(plan: Plan) -> str:
    clauses = [c for d in plan.decisions for c in d.clauses]
    if not clauses:
        return "No fact decided a branch of the flowchart."
    counts = Counter(c.origin for c in clauses)
    listed = ", ".join(
        f"{count} {origin}" for origin, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    )
    return f"The values that decided the path, by origin: {listed}."


def _validated(outcome: RunConfigOutcome) -> list[str]:
    first = outcome.results[0]
    judged = [c for c in first.comparisons if c.inside is not None]
    inside = sum(1 for c in judged if c.inside)
    said = [f"A validation run of {first.steps_done} steps {first.outcome}."]
    if judged:
        outside = ", ".join(
            f"{c.quantity} {c.measured / c.predicted.likely:.3g} x the prediction"
            for c in judged
            if not c.inside and c.measured is not None and c.predicted is not None and c.predicted.likely
        )
        said.append(
            f"{inside} of {len(judged)} measured quantities lie inside their band"
            + (f"; outside: {outside}." if outside else ".")
        )
    if first.proxy:
        said.append(f"It was scaled down from the plan: {first.proxy}.")
    if first.data_wait_fraction is not None:
        said.append(f"Waiting for data: {percent(first.data_wait_fraction)} of a step (measured).")
    if first.straggler_fraction is not None:
        said.append(f"The slowest rank is {percent(first.straggler_fraction)} of a step behind the fastest (measured).")
    if first.energy_origin:
        said.append(f"Energy (measured): {measured_energy(first)}.")
    if first.loss_first is not None and first.loss_last is not None:
        trend = {True: "falling", False: "NOT falling", None: "too few steps to say whether it falls"}[
            first.loss_falling
        ]
        said.append(f"Loss {first.loss_first:.4g} to {first.loss_last:.4g} (measured): {trend}.")
    if first.cause is not None:
        said.append(f"Cause of the failure: {first.cause.kind.replace('_', ' ')}: {first.cause.summary}")
        said += [f"Evidence: {line}" for line in first.cause.evidence]
        said += [f"Fix: {first.cause.fix}"] if first.cause.fix else []
    return [*said, *first.notes, *outcome.notes]

"""The answer on one screen."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.text import Text

from stratadvisor.report.console import console, heading, safe, wrapped
from stratadvisor.report.format import bar, energy, interval, mass, percent
from stratadvisor.report.trace import clause_text
from stratadvisor.schema.plan import Decision, NodeGroup, Plan
from stratadvisor.units import format_bytes, format_count, format_seconds

TITLES = {
    "single": "one device",
    "ddp": "DDP: a full replica on each device, gradients averaged every step",
    "uneven_ddp": "DDP with shares by speed: faster devices take more sequences, the mean stays exact",
    "hierarchical": "hierarchical: exact averaging inside a node, periodic averaging across nodes",
    "fsdp2": "FSDP2: parameters, gradients and optimizer states divided among all devices",
    "hsdp": "HSDP: divided inside a group, replicated across groups",
    "zero1": "DeepSpeed ZeRO-1: optimizer states divided",
    "zero2": "DeepSpeed ZeRO-2: optimizer states and gradients divided",
    "zero3": "DeepSpeed ZeRO-3: parameters, gradients and optimizer states divided",
    "zero_offload": "DeepSpeed ZeRO with states in host memory",
    "tp_fsdp2": "tensor parallel inside a node, FSDP2 across: devices of a node share each layer",
    "megatron_3d": "Megatron-LM: tensor, pipeline, context and expert parallel, optimizer states divided",
    "diloco": "DiLoCo: local steps, an outer optimizer joins the replicas now and then",
    "federated": "federated averaging: every node trains on its own data, weights meet at a server",
    "async_sgd": "asynchronous SGD with delay compensation and a staleness bound",
}
MAX_ALTERNATIVES = 6
SHAPING = {
    "family",
    "precision",
    "minimum_sharding",
    "model_parallel_allowed",
    "offload_allowed",
    "checkpointing_allowed",
    "compression",
}
"""What a branch must set to be shown on the one screen."""
ROUTING = {"node_speeds"}
"""Questions that set nothing but decide where the path goes."""


def shaping_decisions(plan: Plan) -> tuple[Decision, ...]:
    """Return the decisions that shaped the plan, in the order of the path."""
    return tuple(d for d in plan.decisions if SHAPING & set(d.sets) or d.question in ROUTING)


def show_plan(plan: Plan, *, bundle: Path | None, verdicts: tuple[tuple[str, str], ...] = ()) -> None:
    """Print a plan: answer, memory, time, why, runners-up, assumptions, files."""
    out = console()
    _answer(out, plan)
    _memory(out, plan)
    _time(out, plan)
    _why(out, plan)
    _others(out, plan)
    for title, lines, style in (("warnings", plan.warnings, "yellow"), ("assumed", plan.assumptions, "")):
        if lines:
            out.print(heading(title))
            for line in dict.fromkeys(lines):
                wrapped(out, line, style=style)
    if bundle is not None:
        _files(out, bundle, verdicts)


def _answer(out: Console, plan: Plan) -> None:
    work = plan.workload
    model = work.model
    devices = ", ".join(f"{g.num_nodes} x {g.devices_per_node} {g.device_name}" for g in plan.groups)
    wrapped(out, TITLES.get(plan.strategy, plan.strategy), indent=0, style="bold")
    wrapped(
        out, f"model      {model.name}: {format_count(model.num_parameters)} parameters{_shape(plan)}, {work.method}"
    )
    wrapped(out, f"devices    {devices} (nodes x devices)", hang=11)
    wrapped(out, f"plan       {plan.variant}", hang=11)
    for group in plan.groups:
        prefix = f"{group.node_class}: " if len(plan.groups) > 1 else ""
        wrapped(out, f"batch      {prefix}{_batch(group, plan.parallelism.who_shares)}", hang=11)
    tokens = plan.batch.global_batch_size * plan.batch.sequence_length
    wrapped(
        out,
        f"           together {plan.batch.global_batch_size} sequences of {plan.batch.sequence_length} tokens"
        f" = {format_count(tokens)} tokens a step",
        hang=11,
    )


def _shape(plan: Plan) -> str:
    model = plan.workload.model
    if not model.is_transformer:
        return ""
    moe = f", {model.num_experts} experts of which {model.num_experts_per_token} work" if model.num_experts else ""
    return f" ({model.num_layers} layers x {model.hidden_size} wide{moe})"


def _batch(group: NodeGroup, whose: str) -> str:
    return (
        f"micro-batch {group.micro_batch_size} x {group.gradient_accumulation_steps} accumulation"
        f" = {group.batch_per_device} sequences {whose}"
    )


def _memory(out: Console, plan: Plan) -> None:
    out.print(heading("memory per device, predicted"))
    for group in plan.groups:
        peak = group.memory_peak_bytes
        name = safe(group.node_class)
        if group.memory_available_bytes:
            share = peak.likely / group.memory_available_bytes
            wrapped(
                out,
                f"{name} [{bar(share)}] {interval(peak, format_bytes)} of {format_bytes(group.memory_available_bytes)}"
                f" ({group.memory_available_origin}), {percent(share)}",
            )
        else:
            wrapped(out, f"{name} {interval(peak, format_bytes)}; the device's memory is unknown", style="yellow")
        parts = sorted(group.memory_terms_bytes.items(), key=lambda item: -item[1])
        shown = [f"{term.replace('_', ' ')} {format_bytes(size)}" for term, size in parts if size > 0.005 * peak.likely]
        wrapped(out, ", ".join(shown), indent=4)
        if group.host_bytes_per_rank > 0:
            per_node = group.host_bytes_per_rank * group.devices_per_node
            wrapped(out, f"host memory {format_bytes(per_node)} a node", indent=4)


def _time(out: Console, plan: Plan) -> None:
    p = plan.predicted
    origin = "predicted, corrected by an earlier validation run" if p.calibrated else "predicted"
    out.print(heading(f"time and energy, {origin} (nine runs of ten lie within the brackets)"))
    _row(out, "step", interval(p.step_seconds, format_seconds))
    large = [(k, v) for k, v in p.time_terms_seconds.items() if v > 0.005 * p.step_seconds.likely]
    terms = [f"{k.replace('_', ' ')} {format_seconds(v)}" for k, v in sorted(large, key=lambda t: -t[1])]
    wrapped(out, ", ".join(terms), indent=13, hang=0)
    _row(out, "throughput", f"{interval(p.tokens_per_second, format_count)} tokens per second")
    if p.model_flops_utilization is None:
        _row(out, "MFU", "unknown: no published peak for this device")
    else:
        _row(out, "MFU", interval(p.model_flops_utilization, percent))
    length = f"{format_count(p.run_tokens)} tokens, {p.run_steps} steps"
    _row(out, "whole run", f"{interval(p.run_seconds, format_seconds)} for {length}")
    if p.energy_joules is not None:
        each = p.energy_joules_per_thousand_samples
        samples = "" if each is None else f", {energy(each.likely)} per thousand samples"
        _row(out, "energy", f"{interval(p.energy_joules, energy)} of the devices by their power limits{samples}")
        if p.carbon_grams is not None:
            grid = plan.workload.grid_carbon_grams_per_kilowatt_hour
            _row(out, "CO2", f"{interval(p.carbon_grams, mass)} at {grid:g} g/kWh (given)")
    else:
        _row(out, "energy", "unknown: no power figure for this device")
    if p.cost is not None:
        _row(out, "cost", interval(p.cost, lambda v: f"{v:,.0f}"))


def _row(out: Console, label: str, text: str) -> None:
    wrapped(out, f"{label:<11}{text}", hang=11)


def _why(out: Console, plan: Plan) -> None:
    """Print the branches that shaped the plan; the rest of the path is named in one line."""
    out.print(heading("why: the path through the flowchart"))
    shaping = shaping_decisions(plan)
    for decision in shaping:
        clauses = "; ".join(clause_text(c) for c in decision.clauses[:2])
        wrapped(out, f"{decision.branch} {decision.ask} -> {decision.name}" + (f" [{clauses}]" if clauses else ""))
    rest = [d.branch for d in plan.decisions if d not in shaping]
    if rest:
        wrapped(out, f"also passed, without changing the choice: {', '.join(rest)} (stratadvisor explain shows all)")


def _others(out: Console, plan: Plan) -> None:
    if plan.alternatives:
        out.print(heading("not chosen"))
    shown = sorted(plan.alternatives, key=lambda a: (not a.feasible, a.relative_to_choice or float("inf")))
    for other in shown[:MAX_ALTERNATIVES]:
        ratio = other.relative_to_choice
        if not other.feasible or ratio is None:
            wrapped(out, f"{other.strategy}: {other.reason}")
            continue
        outside = "" if other.inside_family else ", outside the flowchart's family"
        reason = f": {other.reason}" if other.reason else ""
        wrapped(out, f"{other.strategy} ({other.variant}): {ratio:.2f} x the time to the target{outside}{reason}")
    rest = Counter(a.strategy for a in shown[MAX_ALTERNATIVES:])
    if rest:
        wrapped(out, f"further: {', '.join(rest)} (stratadvisor explain --why-not {next(iter(rest))} says why)")
    for flip in plan.flips:
        wrapped(out, f"would change: {flip.fact} is {flip.now}; at {flip.threshold}, {flip.then} wins")


def _by_verdict(verdicts: tuple[tuple[str, str], ...]) -> dict[str, list[str]]:
    """Return names under their verdicts; a folder is one name, under "changed" where its files differ in theirs."""
    of_name: dict[str, Counter[str]] = {}
    for path, verdict in verdicts:
        of_name.setdefault(path.split("/")[0] + ("/" if "/" in path else ""), Counter())[verdict] += 1
    found: dict[str, list[str]] = {}
    for name, counts in of_name.items():
        if len(counts) == 1:
            found.setdefault(next(iter(counts)), []).append(name)
        else:
            told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
            found.setdefault("changed", []).append(f"{name} ({told})")
    return found


def _files(out: Console, bundle: Path, verdicts: tuple[tuple[str, str], ...]) -> None:
    out.print(heading(f"files in {safe(bundle)}"))
    for verdict, names in _by_verdict(verdicts).items():
        wrapped(out, f"{verdict}: {', '.join(names)}")
    named = shlex.quote(str(bundle))
    for label, command in (("check", f"stratadvisor run-config {named}"), ("start", f"bash {named}/launch.sh")):
        out.print(Text(f"  {label:<11}{safe(command)}"), soft_wrap=True)  # one line: it is there to be copied

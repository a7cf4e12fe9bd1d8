"""Subjects of report pages, and a reader of pages that knows what HTML allows."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

from plan_for_tests import small_plan

from stratadvisor.report_html.subject import Subject
from stratadvisor.schema.base import measured, reported, unknown
from stratadvisor.schema.plan import Alternative, ClauseResult, Decision, Flip, Interval, Plan
from stratadvisor.schema.profile import (
    ClusterProfile,
    CollectiveSweep,
    DeviceLink,
    DeviceProfile,
    NodeProfile,
    Observation,
    SweepPoint,
    Verdict,
)
from stratadvisor.schema.validation import Comparison, FailureCause, RunConfigOutcome, ValidationResult
from stratadvisor.validate.metrics import RunMetrics

GIB = 2**30
VOID = {"meta", "link", "br", "img", "input", "hr"}


def gpu(index: int, name: str) -> DeviceProfile:
    """Return a measured card; the last of four does not work."""
    return DeviceProfile(
        index=index,
        kind="cuda",
        name=name,
        catalog_key="RTX3090",
        memory_total_bytes=reported(24 * GIB),
        memory_free_bytes=reported(23 * GIB),
        healthy=index != 3,
        health_reason="" if index != 3 else f"{name} is lost",
        matmul_flops_per_second={"bf16": measured(6e13)},
        matmul_by_size={"bf16": {1024: 3e13, 4096: 6e13}},
        memory_bandwidth_bytes_per_second=measured(8e11),
    )


def sweep(scope: str, ranks: int) -> CollectiveSweep:
    """Return an all-reduce of two message sizes: time = 50 us + 2 (n-1)/n bytes / 10 GB/s."""
    share = 2 * (ranks - 1) / ranks
    points = []
    for size in (2**16, 2**26):
        seconds = 5e-5 + share * size / 1e10
        points.append(
            SweepPoint(
                message_bytes=size,
                seconds=seconds,
                algorithm_bandwidth_bytes_per_second=size / seconds,
                bus_bandwidth_bytes_per_second=share * size / seconds,
            )
        )
    return CollectiveSweep(
        operation="all_reduce",
        scope=scope,
        backend="nccl",
        world_size=ranks,
        points=tuple(points),
        latency_seconds=measured(5e-5),
        bus_bandwidth_bytes_per_second=measured(1e10),
    )


def profile(word: str = "plain") -> ClusterProfile:
    """Return two nodes of four cards, one pair joined by NVLink, one pair unknown, one card lost; ``word`` in names."""
    devices = tuple(gpu(i, f"card {word}") for i in range(4))
    links = tuple(
        DeviceLink(
            device_a=a,
            device_b=b,
            kind="nvlink" if (a, b) == (0, 1) else "host_bridge",
            bandwidth_bytes_per_second=unknown("timed out") if (a, b) == (2, 3) else measured(5e10 if b == 1 else 1e10),
        )
        for a in range(4)
        for b in range(a + 1, 4)
    )
    nodes = tuple(
        NodeProfile(
            hostname=f"node-{n}-{word}", devices=devices, links=links, network_bytes_per_second=measured(1.25e9)
        )
        for n in (1, 2)
    )
    return ClusterProfile(
        name=f"cluster {word}",
        nodes=nodes,
        collectives=(sweep("intra_node", 4), sweep("inter_node", 8)),
        verdicts=(Verdict(level="problem", subject=word, message=f"lost {word}", advice=f"reset {word}"),),
        observations=(
            Observation(probe="storage", status="timed_out", reason=f"no answer {word}"),
            Observation(probe="rocm", status="unsupported", reason=f"no AMD card {word}"),
        ),
    )


def plan(word: str = "plain") -> Plan:
    """Return a small plan with one decision, two alternatives, a flip, a warning; ``word`` in every free text."""
    clause = ClauseResult(
        fact=f"cluster.speed_spread {word}",
        operator="<=",
        expected=word,
        actual=1.02,
        actual_text=f"1.02 {word}",
        origin="measured",
        outcome=True,
    )
    decision = Decision(
        question=f"speeds {word}",
        ask=f"Are the nodes equal? {word}",
        branch=f"XX1 {word}",
        name=f"equal-{word}",
        because=f"Because {word}.",
        clauses=(clause,),
        passed_over=(f"XX0: {word}",),
        sets={"family": f"synchronous {word}"},
        sources=(f"source {word}",),
    )
    slower = Alternative(
        strategy=f"zero2 {word}",
        variant=word,
        feasible=True,
        run_seconds=Interval(low=6, likely=12.5, high=25),
        relative_to_choice=1.25,
        reason=f"slower {word}",
    )
    killed = Alternative(strategy="zero3", variant=word, feasible=False, reason=f"needs 99 GiB {word}")
    base = small_plan()
    group = base.groups[0].model_copy(
        update={
            "node_class": f"2xcpu {word}",
            "device_name": f"cpu {word}",
            "memory_terms_bytes": {"parameters": 3e8, f"term {word}": 1e8},
        }
    )
    model = base.workload.model.model_copy(update={"name": f"model {word}"})
    predicted = base.predicted.model_copy(update={"time_terms_seconds": {"matmul": 0.08, f"wait {word}": 0.02}})
    return base.model_copy(
        update={
            "variant": f"micro-batch 4 {word}",
            "groups": (group,),
            "workload": base.workload.model_copy(update={"model": model}),
            "predicted": predicted,
            "decisions": (decision,),
            "alternatives": (slower, killed),
            "flips": (Flip(fact=word, now="1", threshold="2", then=word),),
            "warnings": (f"warned {word}",),
            "assumptions": (f"assumed {word}",),
        }
    )


def outcome(word: str = "plain") -> RunConfigOutcome:
    """Return a run that took twice the predicted step, one that was not measured in memory, and one that failed."""
    step = Interval(low=0.05, likely=0.1, high=0.15)
    rows = (
        Comparison(quantity=f"step time {word}", unit="seconds", predicted=step, measured=0.2, ratio=2.0, inside=False),
        Comparison(
            quantity="peak memory",
            unit="bytes",
            predicted=Interval(low=1e8, likely=2e8, high=3e8),
            measured=None,
            note=word,
        ),
    )
    first = ValidationResult(
        strategy=f"ddp {word}",
        outcome="completed",
        steps_asked=3,
        steps_done=3,
        wall_seconds=2.0,
        comparisons=rows,
        tokens_per_second=1280.0,
        loss_first=5.0,
        loss_last=4.0,
        loss_falling=True,
        notes=(f"note {word}",),
    )
    second = ValidationResult(
        strategy=f"zero2 {word}",
        outcome="failed",
        steps_asked=3,
        steps_done=0,
        wall_seconds=2.0,
        cause=FailureCause(kind="unknown", summary=word, evidence=(f"line {word}",), fix=word),
    )
    return RunConfigOutcome(results=(first, second), notes=(f"said {word}",))


def metrics() -> RunMetrics:
    """Return three steps."""
    steps = [{"event": "step", "step": n, "loss": 5.0 - n / 3, "step_seconds": 0.2, "tokens": 256} for n in (1, 2, 3)]
    return RunMetrics(steps=steps)


def everything(word: str = "plain") -> Subject:
    """Return a subject that has all parts."""
    return Subject(profile=profile(word), plan=plan(word), outcome=outcome(word), metrics=metrics(), notes=(word,))


@dataclass
class Element:
    """An element of a page."""

    name: str
    attributes: dict[str, str]
    inside: list[str]
    """Names of the elements around it, outermost first."""
    text: str = ""
    children: list[Element] = field(default_factory=list)


class Page(HTMLParser):
    """A page taken apart; unbalanced tags end the test."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self.open: list[Element] = []
        self.doctype = ""
        self.feed(source)
        self.close()
        assert self.open == [], [e.name for e in self.open]

    def handle_decl(self, decl: str) -> None:
        self.doctype = decl

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), (tag, names)
        element = Element(tag, {k: v or "" for k, v in attrs}, [e.name for e in self.open])
        self.elements.append(element)
        if self.open:
            self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1].name == tag, f"</{tag}> closes <{self.open[-1].name}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element.text += data

    def all(self, name: str, **attributes: str) -> list[Element]:
        """Return elements by name and attributes (``class_`` for class)."""
        wanted = {k.rstrip("_"): v for k, v in attributes.items()}
        return [e for e in self.elements if e.name == name and all(e.attributes.get(k) == v for k, v in wanted.items())]


def inner(element: Element, name: str) -> list[Element]:
    """Return descendants by name."""
    found = [c for c in element.children if c.name == name]
    for child in element.children:
        found += inner(child, name)
    return found

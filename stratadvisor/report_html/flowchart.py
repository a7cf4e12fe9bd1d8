"""The flowchart with the path that was taken lit, and the same path clause by clause."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stratadvisor.report.plan import shaping_decisions
from stratadvisor.report.trace import clause_text
from stratadvisor.report_html import svg, theme
from stratadvisor.report_html.charts import wrap
from stratadvisor.report_html.markup import Figure, Html, Table, e, join, lines, tag
from stratadvisor.rules_engine.model import END, RuleSet
from stratadvisor.schema.plan import Decision, Plan

WIDTH = 460.0
_BOX, _LEFT, _GAP = 330.0, 14.0, 26.0
MAX_QUESTIONS = 80


@dataclass(frozen=True, slots=True)
class _Box:
    key: str
    top: float
    height: float

    @property
    def middle(self) -> float:
        return self.top + self.height / 2


def figure(plan: Plan, rules: RuleSet | None) -> Figure:
    """Return the flowchart of ``rules``, or only the path where the rules at hand are not those of the plan."""
    taken = {d.question: d for d in plan.decisions}
    asks = {d.question: d.ask for d in plan.decisions}
    edges: dict[tuple[str, str], bool] = {}
    path = [d.question for d in plan.decisions]
    if rules is not None:
        asks = {q.id: q.ask for q in rules.questions.values()}
        for question in rules.questions.values():
            for branch in question.branches:
                edges.setdefault((question.id, question.next_of(branch) or END), False)
        for decision in plan.decisions:
            found = rules.branch(decision.branch)
            if found is not None:
                edges[decision.question, found[0].next_of(found[1]) or END] = True
    else:
        edges = dict.fromkeys(zip(path, [*path[1:], END], strict=True), True)
    title = "The flowchart, with the path taken"
    table = _table(plan)
    if not taken:
        why = "the plan records no decisions"
        return Figure(key="flowchart", title=title, summary="No path is recorded.", table=table, unknown=why, wide=True)
    summary = _summary(plan, len(asks), rules is not None)
    order = list(asks)[:MAX_QUESTIONS]
    body, height = _drawn(order, asks, taken, edges)
    drawing = wrap("flowchart", title, summary, WIDTH, height, body)
    return Figure(key="flowchart", title=title, summary=summary, table=table, svg=drawing)


def _summary(plan: Plan, questions: int, whole: bool) -> str:
    text = f"{len(plan.decisions)} questions were asked" + (f" of {questions}" if whole else "")
    text += f"; the family chosen is {plan.family.replace('_', ' ')}. Lit boxes were passed, with the branch taken."
    if not whole:
        text += " Only the path is drawn: the rules at hand are not those that made the plan (give --overlay)."
    return text


def _drawn(
    order: list[str], asks: dict[str, str], taken: dict[str, Decision], edges: dict[tuple[str, str], bool]
) -> tuple[Html, float]:
    boxes: dict[str, _Box] = {}
    parts: list[Html] = []
    y = 8.0
    for key in [*order, END]:
        drawn, height = _node(key, asks.get(key, "plan"), taken.get(key), y)
        boxes[key] = _Box(key, y, height)
        parts.append(drawn)
        y += height + _GAP
    index = {key: number for number, key in enumerate(boxes)}
    lanes: list[list[tuple[float, float]]] = []
    drawings: list[tuple[bool, Html]] = []
    for (start, end), lit in sorted(edges.items(), key=lambda item: _span(item[0], index)):
        if start in boxes and end in boxes:
            drawings.append((lit, _edge(boxes[start], boxes[end], index[end] - index[start], lit, lanes)))
    below = [d for lit, d in drawings if not lit]
    above = [d for lit, d in drawings if lit]
    return join([*below, *above, *parts]), y - _GAP + 8


def _span(edge: tuple[str, str], index: dict[str, int]) -> tuple[int, str, str]:
    return abs(index.get(edge[1], 0) - index.get(edge[0], 0)), *edge


def _node(key: str, ask: str, decision: Decision | None, y: float) -> tuple[Html, float]:
    lit = decision is not None or key == END
    wrapped = svg.wrap_words(ask, _BOX - 20, 12)
    height = 14 + 15 * len(wrapped) + (17 if decision else 0)
    fill = theme.LIT_GROUND.light if lit else theme.PANEL.light
    ink = theme.INK.light if lit else theme.QUIET.light
    parts = [
        svg.box(
            _LEFT,
            y,
            _BOX,
            height,
            fill=fill,
            stroke=theme.LIT.light if lit else theme.LINE.light,
            thick=2 if lit else 1,
        )
    ]
    for number, text in enumerate(wrapped):
        parts.append(svg.words(_LEFT + 10, y + 19 + 15 * number, text, fill=ink))
    if decision is not None:
        answer = svg.fits(f"{decision.branch}: {decision.name.replace('-', ' ')}{_family(decision)}", _BOX - 14, 12)
        parts.append(svg.words(_LEFT + 10, y + height - 9, answer, fill=theme.LIT.light, bold=True))
    return join(parts), height


def _family(decision: Decision) -> str:
    family = decision.sets.get("family")
    return "" if family is None else f" -> {family}"


def _edge(start: _Box, end: _Box, distance: int, lit: bool, lanes: list[list[tuple[float, float]]]) -> Html:
    """Return a line: straight to the next box, else along a free lane at the right."""
    colour, thick = (theme.LIT.light, 3.0) if lit else (theme.QUIET.light, 1.2)
    if distance == 1:
        x = _LEFT + _BOX / 2
        points = [(x, start.top + start.height), (x, end.top - 6)]
        return join([svg.line(points, stroke=colour, thick=thick), svg.arrow_head(x, end.top, fill=colour)])
    low, high = sorted((start.middle, end.middle))
    free = (n for n, lane in enumerate(lanes) if all(high < a or low > b for a, b in lane))
    number = next(free, len(lanes))
    if number == len(lanes):
        lanes.append([])
    lanes[number].append((low, high))
    right = _LEFT + _BOX
    x = right + 22 + min(number, 8) * 10
    leave, arrive = start.middle + 4, end.middle - 4
    points = [(right, leave), (x, leave), (x, arrive), (right + 6, arrive)]
    return join([svg.line(points, stroke=colour, thick=thick), svg.left_head(right, arrive, fill=colour)])


def _table(plan: Plan) -> Table:
    rows = tuple(
        (
            d.ask,
            f"{d.branch} {d.name.replace('-', ' ')}",
            "; ".join(clause_text(c) for c in d.clauses) or "otherwise",
            d.because,
            ", ".join(f"{k} = {v}" for k, v in sorted(d.sets.items())),
        )
        for d in plan.decisions
    )
    return Table(columns=("question", "branch taken", "values that decided", "why", "sets"), rows=rows)


def path(plan: Plan) -> Html:
    """Return the path in words: the questions that shaped the plan, then, folded, those that changed nothing."""
    shaping = shaping_decisions(plan)
    rest = [d for d in plan.decisions if d not in shaping]
    parts = [tag("h3", e("What shaped the plan")), _steps(shaping)] if shaping else []
    if rest:
        title = f"Also asked, without changing the choice ({len(rest)})"
        parts.append(tag("details", tag("summary", e(title)), _steps(rest)))
    return join(parts)


def _steps(decisions: Iterable[Decision]) -> Html:
    """Return each question, the answer, the values behind it, what was passed over."""
    items = []
    for decision in decisions:
        parts = [
            e(decision.ask),
            Html(" "),
            tag("span", e(f"{decision.branch}: {decision.name.replace('-', ' ')}"), class_="taken"),
        ]
        parts += [tag("div", e(decision.because), class_="quiet")]
        facts = [clause_text(c) for c in decision.clauses]
        more = (
            facts
            + [f"passed over {line}" for line in decision.passed_over]
            + [f"source: {s}" for s in decision.sources]
        )
        if more:
            parts.append(tag("details", tag("summary", e("values and sources")), lines(more)))
        items.append(tag("li", *parts))
    return tag("ol", *items, class_="path")

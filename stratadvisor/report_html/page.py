"""The whole page, put together."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from stratadvisor import __version__
from stratadvisor.derive.cluster import planning_view
from stratadvisor.report_html import (
    answer,
    bandwidth,
    charts,
    cluster_map,
    comparison,
    findings,
    flowchart,
    memory,
    ranking,
    roofline,
    step_time,
    theme,
    validation,
)
from stratadvisor.report_html.markup import Figure, Html, Section, Table, e, join, section, tag
from stratadvisor.report_html.subject import Subject
from stratadvisor.rules_engine.model import RuleSet
from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.profile import ClusterProfile

MARK = '<meta name="generator" content="stratadvisor report">'
"""What tells a page of ours from somebody's file of the same name."""
_ORIGINS = (
    "Every figure has its origin: measured (timed here), reported (a driver or the system says so), catalog (a"
    " published figure), declared (you said so), estimated (computed from others). What nobody knows is called unknown."
)


def sections(subject: Subject, rules: RuleSet | None) -> tuple[Section, ...]:
    """Return the parts of the page that ``subject`` has something to say about."""
    plan, profile = subject.plan, subject.profile
    view = planning_view(profile) if profile is not None else None
    cluster = view.cluster if view is not None and view.cluster.classes else None
    found: list[Section] = []
    if plan is not None or subject.outcome is not None:
        found.append(answer.how_sure(subject))
    checked = validation.figures(subject.outcome, subject.metrics, plan)
    if checked:
        found.append(Section(key="validation", title="Predicted against measured", figures=checked))
    if plan is not None:
        costs = (memory.figure(plan, cluster), step_time.figure(plan))
        found.append(Section(key="costs", title="What it should cost", figures=costs))
        same = rules if rules is not None and rules.digest == plan.provenance.ruleset_digest else None
        chart = (flowchart.figure(plan, same),)
        found.append(Section(key="why", title="Why this", figures=chart, beside=flowchart.path(plan)))
        found.append(
            Section(
                key="others",
                title="What else was considered",
                figures=(ranking.figure(plan),),
                beside=ranking.not_chosen(plan),
            )
        )
    if subject.comparison is not None:
        compared = comparison.figures(subject.comparison)
        found.append(Section(key="clusters-compared", title="Other clusters", figures=compared))
    if profile is not None or plan is not None:
        found.append(Section(key="cluster", title="The cluster", figures=_cluster(subject, cluster, profile)))
    if profile is not None:
        found.append(findings.findings(profile))
    return tuple(found)


def _cluster(subject: Subject, cluster: Cluster | None, profile: ClusterProfile | None) -> tuple[Figure, ...]:
    if profile is None:
        assert subject.plan is not None
        return (cluster_map.of_plan(subject.plan),)
    if cluster is None:
        nothing = Figure(
            key="map",
            title="Cluster map",
            summary="No node has a device that works.",
            table=Table(columns=(), rows=()),
            unknown="the profile has no usable device",
        )
        return (nothing, *bandwidth.figures(profile))
    drawn = cluster_map.of_cluster(cluster, profile, subject.plan)
    return (drawn, *bandwidth.figures(profile), *roofline.figures(cluster, subject.plan))


def render(subject: Subject, rules: RuleSet | None) -> str:
    """Return the page as HTML text; the same subject gives the same text.

    Raises:
        StratadvisorError: the charting library is missing.

    """
    charts.require_library()
    parts = sections(subject, rules)
    title = answer.title_of(subject)
    links = (tag("li", tag("a", e(p.title), href=f"#{p.key}")) for p in parts)
    numbers = answer.numbers(subject.plan) if subject.plan is not None else Html("")
    head = tag("header", tag("h1", e(title)), answer.lead(subject), numbers, tag("p", e(_ORIGINS), class_="quiet"))
    nav = tag("nav", tag("ul", *links), aria_label="Parts of this page")
    foot = tag("footer", findings.provenance(subject), tag("p", e(f"stratadvisor report {__version__}")))
    body = join([head, nav, tag("main", *(section(p) for p in parts)), foot])
    style = theme.style_sheet()
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(style)}">\n{MARK}\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n<link rel="icon" href="data:,">\n'
        f"<title>{e(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _policy(style: str) -> str:
    """Return a policy under which the page loads nothing, runs nothing, and only this style sheet applies."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"


def as_data(subject: Subject, rules: RuleSet | None) -> list[dict[str, Any]]:
    """Return every figure's description and table, for machines."""
    return [
        {
            "section": part.key,
            "figure": f.key,
            "title": f.title,
            "summary": f.summary,
            "unknown": f.unknown,
            "columns": list(f.table.columns),
            "rows": [list(row) for row in f.table.rows],
        }
        for part in sections(subject, rules)
        for f in part.figures
    ]

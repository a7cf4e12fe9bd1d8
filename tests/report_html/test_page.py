"""The page as a document: structure, access, safety, the same bytes each time."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import sys
from collections import Counter

import pytest
from report_pages import Page, everything, inner, metrics, outcome, plan, profile

from stratadvisor.report_html import page
from stratadvisor.report_html.subject import Subject

HOSTILE = (
    "<script>alert(1)</script><img src=http://evil.example/x onerror=alert(1)>\"'><svg onload=alert(1)>"
    "</style></title></svg>\x1b[31mred\x1b]0;title\x07\u202eesrever\x00]]>&lt;b&gt;{{7*7}}javascript:alert(1)"
)
SUBJECTS = {
    "everything": everything,
    "profile": lambda word="plain": Subject(profile=profile(word)),
    "plan": lambda word="plain": Subject(plan=plan(word)),
    "outcome": lambda word="plain": Subject(outcome=outcome(word)),
    "run": lambda word="plain": Subject(plan=plan(word), metrics=metrics()),
}


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {name: page.render(make(), None) for name, make in SUBJECTS.items()}


@pytest.mark.parametrize("name", SUBJECTS)
def test_tags_are_balanced_and_ids_are_unique_and_found(pages, name):
    read = Page(pages[name])
    assert read.doctype.lower() == "doctype html"
    ids = Counter(e.attributes["id"] for e in read.elements if "id" in e.attributes)
    assert [key for key, count in ids.items() if count > 1] == []
    for element in read.elements:
        for target in element.attributes.get("aria-labelledby", "").split():
            assert target in ids
    for link in read.all("a"):
        assert link.attributes["href"].removeprefix("#") in ids
    assert len(read.all("h1")) == 1
    assert read.all("html")[0].attributes["lang"] == "en"


@pytest.mark.parametrize("name", SUBJECTS)
def test_every_figure_has_title_words_and_a_table_or_says_unknown(pages, name):
    figures = Page(pages[name]).all("figure")
    assert figures
    for figure in figures:
        assert inner(figure, "h3")[0].text.strip()
        assert inner(figure, "figcaption")[0].text.strip()
        drawn = inner(figure, "svg")
        if not drawn:
            assert [p for p in inner(figure, "p") if p.attributes.get("class") == "unknown"]
            continue
        assert len(drawn) == 1
        assert drawn[0].attributes["role"] == "img"
        assert inner(drawn[0], "title")[0].text
        assert inner(drawn[0], "desc")[0].text == inner(figure, "figcaption")[0].text
        assert drawn[0].attributes["viewbox"].startswith("0 0 ")
        assert "height" not in drawn[0].attributes  # it scales by its view box
        rows = inner(figure, "tr")
        assert len(rows) >= 2
        assert all(th.attributes["scope"] == "col" for th in inner(inner(figure, "thead")[0], "th"))


def test_all_charts_of_a_run_bundle_are_there(pages):
    keys = {e.attributes["id"] for e in Page(pages["everything"]).all("figure")}
    assert keys >= {
        "map",
        "pairs-0",
        "collectives",
        "memory",
        "roofline-0",
        "step",
        "flowchart",
        "compared-0",
        "compared-1",
        "winner",
        "times",
        "loss",
        "ranking",
    }


@pytest.mark.parametrize("name", SUBJECTS)
def test_nothing_runs_and_nothing_is_loaded(pages, name):
    read = Page(pages[name])
    allowed = {"a", "body", "caption", "circle", "code", "dd", "desc", "details", "div", "dl", "dt", "figcaption"}
    allowed |= {"figure", "footer", "g", "h1", "h2", "h3", "head", "header", "html", "li", "line", "link", "main"}
    allowed |= {"meta", "nav", "ol", "p", "path", "polyline", "rect", "section", "span", "strong", "style", "summary"}
    allowed |= {"svg", "table", "tbody", "td", "text", "th", "thead", "title", "tr", "ul"}
    assert {e.name for e in read.elements} <= allowed
    for element in read.elements:
        for key, value in element.attributes.items():
            assert not key.startswith("on")
            assert key not in ("style", "src", "srcset", "action", "xlink:href", "data", "poster")
            if key == "href":
                assert value.startswith("#") or value == "data:,"
    style = read.all("style")[0].text
    assert "@import" not in style
    assert "url(" not in style
    assert not re.search(r"url\((?!#)", pages[name])
    for element in read.all("meta"):
        assert element.attributes.get("http-equiv", "").lower() != "refresh"


def test_the_policy_allows_this_style_sheet_and_nothing_else(pages):
    read = Page(pages["everything"])
    policy = next(e.attributes["content"] for e in read.all("meta") if "http-equiv" in e.attributes)
    parts = dict(p.strip().split(" ", 1) for p in policy.split(";"))
    style = read.all("style")[0].text
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert parts == {
        "default-src": "'none'",
        "style-src": f"'sha256-{digest}'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


@pytest.mark.parametrize("name", SUBJECTS)
def test_hostile_names_are_shown_and_do_not_act(pages, name):
    text = page.render(SUBJECTS[name](HOSTILE), None)
    read, plain = Page(text), Page(pages[name])
    kinds = {e.name for e in read.elements} | {a for e in read.elements for a in e.attributes}
    assert kinds <= {e.name for e in plain.elements} | {a for e in plain.elements for a in e.attributes}
    for sign in ("\x1b", "\x07", "\x00", "\u202e", "<script", "<img"):
        assert sign not in text
    assert "<script>alert(1)</script>" in read.all("body")[0].text  # as words
    text.encode()


def test_a_lone_surrogate_does_not_break_the_page():
    subject = Subject(plan=plan().model_copy(update={"variant": "a\ud800b"}))
    assert "a?b" in page.render(subject, None).encode().decode()


def test_the_same_subject_gives_the_same_bytes_in_another_process(pages):
    program = (
        "import sys, hashlib; from report_pages import everything; from stratadvisor.report_html import page;"
        "print(hashlib.sha256(page.render(everything(), None).encode()).hexdigest())"
    )
    paths = [p for p in sys.path if p]
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, env=environment, check=True
    )
    assert done.stdout.strip() == hashlib.sha256(pages["everything"].encode()).hexdigest()


def test_numbers_stand_with_their_origin(pages):
    read = Page(pages["everything"])
    cards = read.all("dl")[0].text
    assert "100 ms" in cards
    assert "50 ms to 200 ms" in cards
    assert cards.count("estimated") == 4  # step, tokens, memory, run; MFU, energy, CO2 and cost are unknown
    assert cards.count("unknown") == 4 * 2  # the value and the origin
    figure = read.all("figure", id="compared-0")[0]
    assert "200 ms (measured)" in figure.text
    assert "2.00" in figure.text
    assert "outside the band" in figure.text
    assert "unknown" in inner(figure, "table")[0].text  # memory was not measured
    assert "Not measured: peak memory" in figure.text
    map_table = inner(read.all("figure", id="map")[0], "table")[0].text
    assert "23 GiB (reported)" in map_table
    assert "1.25 GB/s (measured)" in map_table


def test_the_top_says_what_was_chosen_why_and_how_sure_that_is(pages):
    def top(name: str) -> dict[str, str]:
        header = Page(pages[name]).all("header")[0]
        cells = (inner(row, "th") + inner(row, "td") for row in inner(inner(header, "table")[0], "tr"))
        return {head.text.replace("\u00a0", " "): text.text for head, text in cells}

    before, after = top("plan"), top("everything")
    assert before["chosen"].startswith("DDP: ")
    assert before["why"].startswith("Are the nodes equal? plain Equal plain. Because plain.")
    assert "Nearest other way: zero2 plain, 1.25 x the time (slower plain)." in before["why"]
    assert before["how sure"] == "Computed, not run yet: a step takes 50 ms to 200 ms in nine runs of ten."
    assert "validation run of" in after["how sure"]
    assert "not run yet" not in after["how sure"]


def test_ways_that_a_prediction_cannot_tell_apart_are_named_at_the_top():
    made = plan()
    near = made.alternatives[0].model_copy(update={"strategy": "fsdp2", "relative_to_choice": 1.01})
    far = made.alternatives[0].model_copy(update={"strategy": "hsdp", "relative_to_choice": 1.3})
    text = page.render(Subject(plan=made.model_copy(update={"alternatives": (far, near)})), None)
    sure = next(e.text for e in Page(text).all("td") if e.text.startswith("Computed"))
    assert sure.endswith("too close to tell apart without a run: fsdp2.")
    assert "Nearest other way: fsdp2, 1.01 x" in text


def test_the_tables_as_data_are_the_tables_of_the_page(pages):
    read = Page(pages["everything"])
    for entry in page.as_data(everything(), None):
        figure = read.all("figure", id=entry["figure"])[0]
        cells = [cell.text for body in inner(figure, "tbody") for row in inner(body, "tr") for cell in row.children]
        assert cells == [cell for row in entry["rows"] for cell in row]

"""Text becomes markup that shows it: whatever it holds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from report_pages import Page

from stratadvisor.report_html import svg
from stratadvisor.report_html.markup import (
    MAX_ROWS,
    Figure,
    Html,
    Table,
    clean,
    e,
    figure,
    lines,
    short,
    table,
    tag,
    unique,
)

ANYTHING = st.text(alphabet=st.characters(), max_size=60)
COMMON = settings(deadline=None, derandomize=True, max_examples=100)


@COMMON
@given(ANYTHING, ANYTHING)
def test_any_text_stays_text_and_any_attribute_stays_one(text, value):
    read = Page(tag("p", e(text), title=value))
    assert [el.name for el in read.elements] == ["p"]
    assert list(read.elements[0].attributes) == ["title"]
    assert read.elements[0].text == clean(text)
    e(text).encode()


@COMMON
@given(ANYTHING)
def test_clean_text_holds_nothing_that_acts(text):
    shown = clean(text)
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 or 0xD800 <= ord(c) < 0xE000 or ord(c) == 0x202E for c in shown)
    assert clean(shown) == shown


@COMMON
@given(ANYTHING, st.integers(8, 200), st.integers(1, 4))
def test_words_in_drawings_fit_and_stay_words(text, width, most):
    assert len(svg.wrap_words(text, width, most=most)) <= most
    read = Page(svg.words(0, 0, text))
    assert [el.name for el in read.elements] == ["text"]


@COMMON
@given(st.lists(ANYTHING, max_size=12))
def test_labels_are_unique_so_that_no_two_bars_fall_on_each_other(labels):
    names = unique(labels, 10)
    assert len(set(names)) == len(labels)


def test_a_label_that_looks_numbered_does_not_meet_a_numbered_one():
    assert unique(["x", "x", "x (2)", ""]) == ["x", "x (2)", "x (2) (2)", "(no name)"]


def test_short_text_ends_in_dots_and_keeps_the_limit():
    assert short("a" * 40, 10) == "a" * 7 + "..."
    assert short("a" * 10, 10) == "a" * 10


def test_a_long_table_says_how_many_rows_are_left_out():
    rows = tuple((str(n), "x") for n in range(MAX_ROWS + 7))
    words = Page(table(Table(columns=("a", "b"), rows=rows), "long")).elements[0].text
    assert "7 more rows are left out" in words


def test_a_figure_without_a_drawing_says_unknown_and_why():
    nothing = Figure(key="k", title="t", summary="s", table=Table(columns=(), rows=()), unknown="nobody looked")
    assert "unknown: nobody looked" in Page(figure(nothing)).elements[0].text


def test_a_list_shows_each_line():
    assert lines(["a<b", "c"]) == Html("<ul><li>a&lt;b</li><li>c</li></ul>")

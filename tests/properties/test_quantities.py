"""Quantities round-trip: what is written for people is read back as the number it came from, to its digits."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratadvisor.plain import one_line, printable, safe_json
from stratadvisor.units import (
    format_bytes,
    format_count,
    format_flops,
    format_rate,
    format_seconds,
    parse_quantity,
)

amounts = st.floats(min_value=1e-3, max_value=9e14)
many = settings(deadline=None, derandomize=True, max_examples=100)
THREE_DIGITS = 0.006
"""Half a unit in the third digit, at its worst just above a power of ten."""


@given(amounts)
@many
def test_what_is_shown_is_read_back(value):
    for show, dimension in (
        (format_bytes, "bytes"),
        (format_rate, "bytes_per_second"),
        (format_flops, "flops_per_second"),
    ):
        text = show(value)
        assert parse_quantity(text, dimension) == pytest.approx(value, rel=THREE_DIGITS), text


@given(st.floats(min_value=1e-6, max_value=1e9))
@many
def test_durations_are_read_back(value):
    assert parse_quantity(format_seconds(value), "seconds") == pytest.approx(value, rel=THREE_DIGITS)


@given(st.floats(min_value=1, max_value=9e14))
@many
def test_counts_are_read_back(value):
    assert parse_quantity(format_count(value), "count") == pytest.approx(value, rel=THREE_DIGITS)


@given(st.floats(min_value=0.01, max_value=1e6))
@many
def test_bits_and_bytes_differ_by_eight_and_decimal_from_binary_by_their_factor(value):
    text = f"{value:.6f}"
    number = float(text)
    assert parse_quantity(f"{text}Gb/s", "bytes_per_second") * 8 == pytest.approx(number * 1e9)
    assert parse_quantity(f"{text}GB/s", "bytes_per_second") == pytest.approx(number * 1e9)
    assert parse_quantity(f"{text}GiB", "bytes") == pytest.approx(number * 2**30)


@given(st.text(max_size=40), st.sampled_from(["bytes", "bytes_per_second", "seconds", "flops_per_second", "count"]))
@many
def test_any_text_is_a_finite_quantity_or_one_sentence(text, dimension):
    try:
        value = parse_quantity(text, dimension)
    except ValueError as error:
        assert "write for example" in str(error) or "too large" in str(error)
    else:
        assert 0 <= value < float("inf")


@given(st.text(max_size=60))
@many
def test_cleaned_text_keeps_every_harmless_sign_and_json_keeps_all(text):
    cleaned = printable(text)
    assert len(cleaned) == len(text)
    assert all(a == b or b == "?" for a, b in zip(text, cleaned, strict=True))
    assert "\n" not in one_line(text)
    document = json.dumps({"name": text}, ensure_ascii=False)
    assert json.loads(safe_json(document)) == {"name": text}

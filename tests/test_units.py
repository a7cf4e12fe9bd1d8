"""Quantities: what people write, and what they read."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratadvisor import units


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("200Gb/s", "bytes_per_second", 25e9),
        ("200 Gbit/s", "bytes_per_second", 25e9),
        ("25GB/s", "bytes_per_second", 25e9),
        ("25Gbps", "bytes_per_second", 25e9 / 8),
        ("1GiB/s", "bytes_per_second", 2**30),
        ("80GB", "bytes", 80e9),
        ("74.5 GiB", "bytes", 74.5 * 2**30),
        ("2ms", "seconds", 2e-3),
        ("30min", "seconds", 1800),
        ("312TFLOP/s", "flops_per_second", 312e12),
        ("400gCO2/kWh", "grams_per_kilowatt_hour", 400.0),
        ("0.4 kgCO2e/kWh", "grams_per_kilowatt_hour", 400.0),
        ("400kg/MWh", "grams_per_kilowatt_hour", 400.0),
        ("7B", "count", 7e9),
        ("350m", "count", 350e6),
        ("1_000", "count", 1000),
    ],
)
def test_a_quantity_is_read_in_base_units(text, dimension, value):
    assert units.parse_quantity(text, dimension) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "dimension"),
    [
        ("200", "bytes_per_second"),
        ("200G", "bytes_per_second"),
        ("200GB", "bytes_per_second"),
        ("80", "bytes"),
        ("80Gb", "bytes"),
        ("5", "seconds"),
        ("7Q", "count"),
        ("-7B", "count"),
        ("nan", "count"),
        ("inf", "count"),
        ("1e999B", "count"),
        ("", "count"),
        ("B", "count"),
    ],
)
def test_a_bare_number_or_a_wrong_unit_is_refused_with_an_example(text, dimension):
    with pytest.raises(ValueError, match=r"write for example|too large"):
        units.parse_quantity(text, dimension)


@given(st.text(max_size=80))
@settings(deadline=None, derandomize=True, max_examples=100)
def test_any_text_gives_a_number_or_one_sentence(text):
    try:
        value = units.parse_quantity(text, "bytes")
    except ValueError as error:
        assert str(error)
    else:
        assert value >= 0


@given(st.floats(min_value=1, max_value=1e17))
@settings(deadline=None, derandomize=True, max_examples=100)
def test_a_rate_survives_being_printed_and_read_again_to_three_digits(value):
    assert units.parse_quantity(units.format_rate(value), "bytes_per_second") == pytest.approx(value, rel=6e-3)


def test_times_read_at_a_glance():
    shown = [units.format_seconds(v) for v in (1.5e-5, 0.34, 1.82, 300, 3.2 * 3600, 12 * 86400)]
    assert shown == ["15 us", "340 ms", "1.82 s", "5 min", "3.2 h", "12 d"]


def test_memory_is_binary_and_rates_are_decimal():
    assert units.format_bytes(80e9) == "74.5 GiB"
    assert units.format_rate(25e9) == "25 GB/s"


def test_a_quantity_that_only_its_unit_makes_endless_is_refused() -> None:
    assert units.parse_quantity("1e299 GB", "bytes") == 1e308
    with pytest.raises(ValueError, match="too large a number"):
        units.parse_quantity("1e300 GB", "bytes")

"""Colours: readable on both grounds (WCAG 2.2: 4.5 for text, 3 for drawings), and each one turned for the dark."""

from __future__ import annotations

import pytest

from stratadvisor.report_html import theme


def luminance(colour: str) -> float:
    """Relative luminance of sRGB, WCAG 2.2."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def test_contrast_of_black_and_white_is_21():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


@pytest.mark.parametrize("side", ["light", "dark"])
@pytest.mark.parametrize("ground", ["GROUND", "PANEL", "LIT_GROUND", "UNKNOWN"])
def test_words_can_be_read(side, ground):
    below = getattr(getattr(theme, ground), side)
    assert contrast(getattr(theme.INK, side), below) >= 4.5
    if ground in ("GROUND", "PANEL"):
        for tone in (theme.QUIET, theme.LIT, theme.BAD, theme.GOOD, theme.MEASURED):
            assert contrast(getattr(tone, side), below) >= 4.5
    if ground == "LIT_GROUND":
        assert contrast(getattr(theme.LIT, side), below) >= 4.5


@pytest.mark.parametrize("side", ["light", "dark"])
def test_parts_of_drawings_can_be_told_from_the_ground(side):
    for tone in theme.CATEGORIES:
        assert contrast(getattr(tone, side), getattr(theme.GROUND, side)) >= 3


def test_numbers_on_heat_cells_can_be_read():
    for ground, ink in zip(theme.HEAT, theme.HEAT_INK, strict=True):
        assert contrast(ground, ink) >= 4.5
    assert [luminance(c) for c in theme.HEAT] == sorted((luminance(c) for c in theme.HEAT), reverse=True)


def test_light_colours_are_distinct_so_that_each_turns_into_its_own_dark_one():
    lights = [t.light for t in theme.TURNED] + list(theme.HEAT) + list(theme.HEAT_INK[::5])
    assert len(set(lights)) == len(lights)
    sheet = theme.style_sheet()
    for tone in theme.TURNED:
        assert f'svg [fill="{tone.light}"]{{fill:{tone.dark}}}' in sheet
    for colour in (*theme.HEAT, *theme.HEAT_INK):
        assert f'[fill="{colour}"]' not in sheet  # heat cells keep their own ink on both grounds

"""Screens on a terminal of fifty columns."""

from __future__ import annotations

from report_pages import outcome

from stratadvisor.report.format import energy
from stratadvisor.report.validation import show_validation


def test_the_comparison_of_a_run_fits_and_keeps_every_figure(capsys, monkeypatch):
    show_validation(outcome())
    table = capsys.readouterr().out
    monkeypatch.setattr("stratadvisor.report.console.PIPED_WIDTH", 50)
    show_validation(outcome())
    narrow = capsys.readouterr().out
    head = narrow.splitlines()[0]  # a heading is the terminal's to wrap
    assert all(len(line) <= 50 for line in narrow.splitlines() if line != head)
    flat = " ".join(narrow.split())
    for row in outcome().results[0].comparisons:
        assert f"{row.quantity}: predicted" in flat
        assert row.quantity in table
        if row.ratio is not None:
            assert f"x {row.ratio:.2f}" in flat


def test_energy_has_a_unit_that_needs_no_exponent():
    assert [energy(v) for v in (5.0, 3.59e5, 3.6e5, 3.6e6, 3.6e9)] == ["5 J", "359 kJ", "0.1 kWh", "1 kWh", "1 MWh"]

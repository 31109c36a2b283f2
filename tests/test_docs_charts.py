"""The charts that pages show are those of today's records."""

from __future__ import annotations

import pytest

from .docs_pages import docs_module

CHARTS = docs_module("charts")


@pytest.mark.parametrize("chart", CHARTS.CHARTS, ids=lambda chart: chart.file)
def test_a_chart_is_todays(chart):
    assert not chart.is_stale, "draw it again: python docs/charts.py"


def test_a_chart_of_other_figures_is_stale_and_is_drawn_again(tmp_path, monkeypatch, capsys):
    (some, *_) = CHARTS.CHARTS
    monkeypatch.setattr(CHARTS, "IMAGES", tmp_path)
    monkeypatch.setattr(CHARTS, "CHARTS", (some,))
    assert CHARTS.main(["--check"]) == 1
    assert CHARTS.main([]) == 0
    assert CHARTS.main(["--check"]) == 0
    other = CHARTS.Chart(some.file, some.source, {**some.where, "kernel": ["fa3", "fa4"]})
    assert other.is_stale
    assert capsys.readouterr().out.splitlines() == [f"docs/images/{some.file}"] * 2

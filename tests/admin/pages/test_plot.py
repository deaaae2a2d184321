"""A plot of days has round lines and bars within it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.admin.pages.view import HEIGHT, headline, plot_of


@given(st.lists(st.tuples(st.integers(0, 10**15), st.integers(-(10**6), 10**15)), min_size=1, max_size=400))
def test_every_bar_is_in_the_plot_and_as_high_as_its_amount(amounts: list[tuple[int, int]]) -> None:
    plot = plot_of([(f"day {number}", *each) for number, each in enumerate(amounts)])
    top = max(max(each) for each in amounts)
    assert (plot is None) == (top <= 0)
    if plot is None:
        return
    whole = float(plot.scale[0].replace(",", "")) * 1_000_000
    assert top <= whole <= 2.5 * top + 4
    assert 2 <= len(plot.scale) == len(plot.lines) <= 6
    for column, values in zip(plot.columns, amounts, strict=True):
        for bar, micros in zip(column.bars, values, strict=True):
            assert 0 <= bar.x <= bar.x + bar.width <= 100.001
            assert -0.01 <= bar.y <= bar.y + bar.height <= HEIGHT + 0.01
            assert abs(bar.height - HEIGHT * max(0, micros) / whole) < 0.01


def test_a_large_amount_is_a_short_figure_with_all_of_it_beside() -> None:
    assert headline(123_459_623_456) == '<span class="money" title="123459.623456">123,459.62</span>'
    assert ">\u22120.000123<" in headline(-123)
    assert "unknown" in headline(None)


def test_where_there_is_no_money_there_is_no_plot() -> None:
    assert plot_of([]) is None
    assert plot_of([("2026-11-21", 0, 0)]) is None

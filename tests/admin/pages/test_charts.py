"""Charts show the roll-ups of an hour, a day or a week, and lead to the requests."""

from __future__ import annotations

import re
import time
from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admin.pages.view import HEIGHT, headline, plot_of
from gateway.base.ids import now_ms, utc
from gateway.domain.exchange import Outcome
from gateway.usage.database import path_of, set_aside
from gateway.usage.rollups import WAITS_MS, quantile
from tests.admin.pages.conftest import House
from tests.records import COSTED, arrival, end, id_at, usage_database


@pytest.mark.parametrize("since", ["1h", "24h", "7d"])
async def test_a_point_has_its_sums_and_leads_to_its_requests(house: House, since: str) -> None:
    now_ms = round(time.time() * 1000)
    good = end(arrival(id_at(now_ms - 60_000)), model="m1", first_byte_ms=120, **COSTED)
    bad = end(
        arrival(id_at(now_ms - 60_000)), model="m2", outcome=Outcome.UPSTREAM_FAILED, error_code="upstream_timeout"
    )
    old = end(arrival(id_at(now_ms - 8 * 86_400_000)), model="m1")
    usage_database(house.store.usage.folder).write([good, bad, old])
    browser = await house.browser()
    status, text = await browser.get(f"/charts?since={since}")
    assert (status, "failed 1, refused 0" in text, len(text) < 100_000) == (200, True, True)
    [link] = set(re.findall(r'href="(/requests\?since=[^"]*until=[^"]*)"', text))
    listed = (await browser.get(unescape(link)))[1]
    assert [f"/requests/{each.id}" in listed for each in (good, bad, old)] == [True, True, False]
    status, text = await browser.get(f"/charts?since={since}&model=m1")
    assert (status, "failed 1" in text, "half within 150 ms, 95 % within 195 ms" in text) == (200, False, True)


async def test_without_requests_there_is_nothing_to_see(house: House) -> None:
    status, text = await (await house.browser()).get("/charts?since=never&model=nobody")
    assert (status, text.count("None in this time."), "set aside" in text) == (200, 4, False)
    aside = set_aside(path_of(house.store.usage.folder, utc(now_ms())[:7]))
    aside.touch()
    assert f"{aside} was damaged and set aside" in unescape((await (await house.browser()).get("/charts"))[1])


def test_a_quantile_is_within_its_column() -> None:
    waits = [0] * (len(WAITS_MS) + 1)
    assert quantile(waits, 0.5) == 0
    waits[2] = 100
    assert (quantile(waits, 0.5), quantile(waits, 0.95)) == (150, 195)
    waits[-1] = 900
    assert WAITS_MS[-1] < quantile(waits, 0.5) < 2 * WAITS_MS[-1]


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
    assert [headline(each).partition(">")[2].partition("<")[0] for each in (49_993_196, 4_999_999, 5_000_000)] == [
        "49.9931",
        "4.9999",
        "5.00",
    ], "cut, and not rounded up"
    assert "unknown" in headline(None)


def test_where_there_is_no_money_there_is_no_plot() -> None:
    assert plot_of([]) is None
    assert plot_of([("2026-11-21", 0, 0)]) is None

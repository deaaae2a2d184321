"""Money: charges, costs and margins by day, account, model and channel, with a plot of the days."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode

from aiohttp import web

from gateway.admin.actions import usage
from gateway.admin.actions.times import between
from gateway.admin.actions.usage import CsvFile, Summary, SumsQuery
from gateway.admin.http.api import refused, send_csv
from gateway.admin.pages.view import Page, Plot, Sorting, View, body, plot_of
from gateway.base.errors import GatewayError
from gateway.base.text import csv_line

GROUPS: Final = ("day", "account", "model", "channel", "group", "month")
SORTS: Final = {"Requests": "requests", "Charge": "charge_micros", "Cost": "cost_micros", "Margin": "margin_micros"}
"""Headings that sort, the largest first, and what is sorted by."""
DAYS: Final = 30
MOST_DAYS: Final = 370
LINES: Final = 200


def _terms(view: View) -> dict[str, str]:
    """Return what is asked for, by default of the last days."""
    asked = view.search(SumsQuery).asked
    return {
        "since": (datetime.now(UTC).date() - timedelta(days=DAYS - 1)).isoformat(),
        **{name: asked[name] for name in ("account", "model", "since", "until") if asked[name]},
        **({"sort": asked["sort"].removeprefix("-")} if asked["sort"] else {}),
    }


async def show(view: View) -> web.StreamResponse:
    """Show the sums of a time, by default the last 30 days."""
    by = _by(view)
    problem, found, plot, status = None, None, None, 200
    terms = _terms(view)
    try:
        days = await usage.summary(view.client, query=_wanted(["day"], terms, usage.MOST_LINES))
        found = days if by == ["day"] else await usage.summary(view.client, query=_wanted(by, terms, LINES))
        plot = _plot(days, terms)
    except GatewayError as error:
        if (answer := refused(error)).status not in (400, 404):
            raise
        problem, status = answer.message, answer.status
    return view.page(
        "money.html",
        status,
        asked=view.search(SumsQuery).asked,
        since=terms["since"],
        by=by,
        groups=GROUPS,
        ranges=_ranges(view),
        sorting=Sorting(view.request.query, {heading: (f"-{name}",) for heading, name in SORTS.items()}),
        found=found,
        plot=plot,
        problem=problem,
        export="/money.csv?" + urlencode([*(("by", name) for name in by), *terms.items()]),
        models=list(view.client.config.models),
    )


async def export(view: View) -> web.StreamResponse:
    """Send the sums as CSV."""
    by = _by(view)
    found = await usage.summary(view.client, query=_wanted(by, _terms(view), usage.MOST_LINES))

    async def pieces() -> Any:
        lines = usage.dicts(found.data, by)
        yield csv_line([*by, *usage.Sums.__struct_fields__])
        for line in lines:
            yield csv_line(line.values())

    return await send_csv(view.request, CsvFile("money.csv", pieces()))


def _ranges(view: View) -> dict[str, str]:
    """Return the times that have a button, with the addresses that show them."""
    kept = [(name, text) for name, text in view.request.query.items() if name not in ("since", "until")]
    today = datetime.now(UTC).date()
    last = (today.replace(day=1) - timedelta(days=1)).strftime("%Y-%m")
    times = {
        "Today": {"since": today.isoformat()},
        "7 days": {"since": (today - timedelta(days=6)).isoformat()},
        "This month": {"since": today.strftime("%Y-%m")},
        "Last month": {"since": last, "until": last},
        "This year": {"since": f"{today.year}-01"},
    }
    return {name: f"/money?{urlencode([*kept, *given.items()])}" for name, given in times.items()}


def _by(view: View) -> list[str]:
    given = view.request.query.getall("by", [])
    return [name for name in GROUPS if name in given] or ["day"]


def _wanted(by: list[str], terms: dict[str, str], limit: int) -> SumsQuery:
    sort = "" if {"day", "month"} & set(by) else "charge_micros"
    return body(SumsQuery, by=",".join(by), limit=limit, **{"sort": sort, **terms})


def _plot(found: Summary, terms: Mapping[str, str]) -> Plot | None:
    """Return the plot of all days that are asked for, of the last of them where they are very many."""
    known = {str(line.day): line for line in found.data}
    if not known:
        return None
    since_ms, until_ms = between(terms["since"], terms.get("until"))
    now_ms = time.time() * 1000
    last = datetime.fromtimestamp(min(until_ms - 1 if until_ms else now_ms, now_ms) / 1000, UTC).date()
    first = max(datetime.fromtimestamp((since_ms or 0) / 1000, UTC).date(), last - timedelta(days=MOST_DAYS - 1))
    days = []
    for number in range((last - first).days + 1):
        name = (first + timedelta(days=number)).isoformat()
        line = known.get(name)
        days.append((name, line.charge_micros if line else 0, line.cost_micros if line else 0))
    return plot_of(days)


PAGES: Final[tuple[tuple[str, str, Page], ...]] = (("GET", "/money", show), ("GET", "/money.csv", export))

"""Requests: the search through the usage log, and what happened to one of them."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

from aiohttp import web

from gateway.admin.actions import requests, usage
from gateway.admin.actions.requests import Filters, Requests, SearchQuery
from gateway.admin.actions.times import moment, period
from gateway.admin.actions.usage import SumLine, SumsQuery
from gateway.admin.http.api import refused, send_csv
from gateway.admin.pages.view import Page, Sorting, Texts, View, body
from gateway.base.errors import GatewayError
from gateway.domain.exchange import Outcome

LISTED: Final = 50
ERRORS: Final = 100
TIMES: Final = {"1h": "The last hour", "24h": "24 hours", "7d": "7 days"}
FILTERS: Final = {"Code": "error_code", "Model": "model", "Channel": "channel"}
"""Headings of errors, and what requests are searched by for each."""


async def index(view: View) -> web.StreamResponse:
    """Show the requests that are searched for, newest first. Whoever searches for a whole id sees that request at once."""
    search = view.search(Requests)
    if len(search.asked["id"]) == len("01a2073d-8dfa-7570-ba85-161b83b2b632"):
        return view.go(f"/requests/{search.asked['id']}")
    if search.asked["reference"] and not (search.asked["account"] or search.asked["token"]):
        return view.go(f"/search?{urlencode({'q': search.asked['reference']})}")
    page, problem, status = None, None, 200
    try:
        page = await requests.list_(view.client, query=body(Requests, limit=LISTED, **_zoned(view, search.asked)))
    except GatewayError as error:
        if (answer := refused(error)).status not in (400, 404):
            raise
        if answer.status == 404 and (owner := await view.client.store.external_ids.find(search.asked["account"])):
            return view.go(f"{search.path}?{urlencode({**search.asked, 'account': owner})}")
        problem, status = answer.message, answer.status
    kept = {name: text for name, text in search.asked.items() if name not in ("since", "until", "after")}
    times = TIMES | {f"{datetime.now(view.zone):%Y-%m}": "This month"}
    return view.page(
        "requests.html",
        status,
        ranges=[(since, label, f"/requests?{urlencode({**kept, 'since': since})}") for since, label in times.items()],
        page=page,
        search=search,
        problem=problem,
        export=f"/requests.csv?{search.terms}",
        models=list(view.client.config.models),
        channels=list(view.client.config.channels),
        groups=list(view.client.config.groups),
        outcomes=[str(outcome) for outcome in Outcome],
    )


async def export(view: View) -> web.StreamResponse:
    """Send the requests that are searched for as CSV."""
    asked = view.search(Filters).asked
    return await send_csv(view.request, await usage.export(view.client, query=body(Filters, **_zoned(view, asked))))


def _zoned(view: View, asked: Texts) -> Texts:
    """Return what is asked for, with times as the page shows them, in its zone, as moments."""
    found = Texts(asked)
    for number, name in enumerate(("since", "until")):
        with suppress(ValueError):  # the action says what is wrong
            found |= {name: str(moment(period(asked[name], view.zone)[number]))}
    return found


async def search(view: View) -> web.StreamResponse:
    """Show what is found by whatever one has; where it is one thing, that thing."""
    text = view.request.query.get("q", "").strip()
    found = await requests.search(view.client, query=body(SearchQuery, q=text)) if text else None
    links = (
        []
        if found is None
        else [
            *(f"/accounts/{account.id}" for account in found.accounts),
            *(f"/accounts/{token.id.rpartition('-')[0]}#tokens" for token in found.tokens),
            *(f"/requests/{record.id}" for record in found.requests),
        ]
    )
    if len(links) == 1:
        return view.go(links[0])
    return view.page("search.html", 200 if links else 404, found=found)


async def errors(view: View) -> web.StreamResponse:
    """Show which errors there were of late, by code, model and channel, with links to their requests."""
    asked = view.request.query.get("since", "")
    since = asked if asked in TIMES else next(iter(TIMES))
    terms = {"since": since, "by": "error,model,channel", "sort": "requests", "limit": 1000}
    found = await usage.summary(view.client, query=body(SumsQuery, **terms))
    lines = [
        (line, urlencode({"since": since} | {name: text for name in FILTERS.values() if (text := str(line.of(name)))}))
        for line in found.data
        if line.error_code
    ]
    covered = await usage.summary(
        view.client,
        query=body(SumsQuery, **terms | {"by": "first_error,first_channel,model,channel", "outcome": "completed"}),
    )
    failed = sum(line.requests for line, _ in lines)
    sorting = Sorting(view.request.query, {**{head: (name,) for head, name in FILTERS.items()}, "Requests": ()})
    return view.page(
        "errors.html",
        sorting=sorting,
        lines=sorting.sorted(lines[:ERRORS], {name: partial(_group_of, name) for name in FILTERS.values()}),
        failed=failed,
        covered=[line for line in covered.data if line.first_error][:ERRORS],
        total=found.total.requests,
        since=since,
        times=TIMES,
        notes=found.notes,
    )


def _group_of(name: str, line: tuple[SumLine, str]) -> str:
    return str(line[0].of(name))


async def show(view: View) -> web.StreamResponse:
    """Show what happened to one request."""
    story = await requests.trace(view.client, view.path["id"])
    record = story.record
    prices: dict[str, Any] = dict(record.price) if record else {}
    return view.page("request.html", 200 if record else 404, story=story, record=record, prices=prices)


PAGES: Final[tuple[tuple[str, str, Page], ...]] = (
    ("GET", "/requests", index),
    ("GET", "/requests.csv", export),
    ("GET", "/requests/{id}", show),
    ("GET", "/search", search),
    ("GET", "/errors", errors),
)

"""Requests: the search through the usage log, and what happened to one of them."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from aiohttp import web

from gateway.admin.actions import requests, usage
from gateway.admin.actions.requests import Filters, Requests
from gateway.admin.http.api import send_csv
from gateway.admin.pages.view import Page, View, body
from gateway.base.errors import Refused
from gateway.domain.exchange import Outcome

LISTED: Final = 50


class RequestFilter(msgspec.Struct, frozen=True):
    """Which requests are asked for, as the form has it."""

    id: str = ""
    account: str = ""
    token: str = ""
    model: str = ""
    channel: str = ""
    outcome: str = ""
    since: str = ""
    until: str = ""
    after: str = ""

    def terms(self) -> dict[str, str]:
        """Return what is asked for, without where the page begins."""
        return {
            name: text for name in self.__struct_fields__ if name != "after" and (text := getattr(self, name).strip())
        }


async def index(view: View) -> web.StreamResponse:
    """Show the requests that are searched for, newest first. Whoever searches for a whole id sees that request at once."""
    asked = view.query(RequestFilter)
    terms = asked.terms()
    if len(terms.get("id", "")) == len("01a2073d-8dfa-7570-ba85-161b83b2b632"):
        return view.go(f"/requests/{terms['id']}")
    page, problem = None, None
    try:
        page = await requests.list_(view.client, query=body(Requests, limit=LISTED, after=asked.after, **terms))
    except Refused as error:
        if error.status != 400:
            raise
        problem = error.message
    query = urlencode(terms)
    return view.page(
        "requests.html",
        200 if problem is None else 400,
        page=page,
        asked=asked,
        searched=bool(terms),
        problem=problem,
        next_page=f"/requests?{query}&" if query else "/requests?",
        export=f"/requests.csv?{query}",
        models=list(view.client.config.models),
        channels=list(view.client.config.channels),
        outcomes=[str(outcome) for outcome in Outcome],
    )


async def export(view: View) -> web.StreamResponse:
    """Send the requests that are searched for as CSV."""
    asked = view.query(RequestFilter)
    return await send_csv(view.request, await usage.export(view.client, query=body(Filters, **asked.terms())))


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
)

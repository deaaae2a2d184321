"""Alerts: what receivers were sent, what waits for them, and what was given up."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from gateway.admin.actions import alerts
from gateway.admin.actions.action import Page as ActionPage
from gateway.admin.actions.alerts import AlertLines, ListedAlert
from gateway.admin.pages.view import Page, View, body

LISTED: Final = 200


async def show(view: View) -> web.StreamResponse:
    """Show the alerts in a state, or all, newest first."""
    search, page = view.search(AlertLines), ActionPage[ListedAlert]([])
    if settings := view.client.config.alerts:
        page = await alerts.list_(view.client, query=body(AlertLines, limit=LISTED, **search.asked))
    return view.page("alerts.html", page=page, search=search, settings=settings)


PAGES: Final[tuple[tuple[str, str, Page], ...]] = (("GET", "/alerts", show),)

"""Logs of what happened: the alerts that receivers were sent or that wait for them, and the audit log, of who changed what."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from gateway.admin.actions import alerts, audit
from gateway.admin.actions.action import Page as ActionPage
from gateway.admin.actions.alerts import AlertLines, ListedAlert
from gateway.admin.actions.audit import AuditLines
from gateway.admin.pages.view import Page, View, body

MOST_ALERTS: Final = 200
LISTED: Final = 50


async def show_alerts(view: View) -> web.StreamResponse:
    """Show the alerts in a state, or all, newest first."""
    search, page = view.search(AlertLines), ActionPage[ListedAlert]([])
    if settings := view.client.config.alerts:
        page = await alerts.list_(view.client, query=body(AlertLines, limit=MOST_ALERTS, **search.asked))
    return view.page("alerts.html", page=page, search=search, settings=settings)


async def show_audit(view: View) -> web.StreamResponse:
    """Show the writes that are searched for, newest first, with the state before and after."""
    search = view.search(AuditLines)
    page = await audit.list_(view.client, query=body(AuditLines, limit=LISTED, **search.asked))
    return view.page("audit.html", page=page, search=search)


PAGES: Final[tuple[tuple[str, str, Page], ...]] = (("GET", "/alerts", show_alerts), ("GET", "/audit", show_audit))

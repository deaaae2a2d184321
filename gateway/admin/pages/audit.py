"""The audit log: who changed what, with the state before and after."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from gateway.admin.actions import audit
from gateway.admin.actions.audit import AuditLines
from gateway.admin.pages.view import Page, View, body

LISTED: Final = 50


async def show(view: View) -> web.StreamResponse:
    """Show the writes that are searched for, newest first."""
    search = view.search(AuditLines)
    page = await audit.list_(view.client, query=body(AuditLines, limit=LISTED, **search.asked))
    return view.page("audit.html", page=page, search=search)


PAGES: Final[tuple[tuple[str, str, Page], ...]] = (("GET", "/audit", show),)

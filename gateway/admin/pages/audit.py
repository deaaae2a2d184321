"""The audit log: who changed what, with the state before and after."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

import msgspec
from aiohttp import web

from gateway.admin.actions import audit
from gateway.admin.actions.audit import AuditLines
from gateway.admin.pages.view import Page, View, body

LISTED: Final = 50


class AuditFilter(msgspec.Struct, frozen=True):
    """Which writes are asked for."""

    actor: str = ""
    operation: str = ""
    target: str = ""
    by: str = ""
    after: str = ""

    def terms(self) -> dict[str, str]:
        """Return what is asked for, without where the page begins."""
        return {name: text for name in ("actor", "operation", "target", "by") if (text := getattr(self, name).strip())}


async def show(view: View) -> web.StreamResponse:
    """Show the writes that are searched for, newest first."""
    asked = view.query(AuditFilter)
    terms = asked.terms()
    page = await audit.list_(view.client, query=body(AuditLines, limit=LISTED, after=asked.after, **terms))
    query = urlencode(terms)
    return view.page(
        "audit.html",
        page=page,
        asked=asked,
        searched=bool(terms),
        next_page=f"/audit?{query}&" if query else "/audit?",
    )

PAGES: Final[tuple[tuple[str, str, Page], ...]] = (("GET", "/audit", show),)

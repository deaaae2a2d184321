"""What happens now."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from gateway.admin.pages.visit import Page, Visit


async def show(visit: Visit) -> web.StreamResponse:
    """Show what happens now."""
    return visit.page("now.html")


PAGES: Final[tuple[tuple[str, str, Page], ...]] = (("GET", "/", show),)

"""The configuration as it is served: the chain, models, prices, groups, and the file. The file rules: nothing is changed here."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from gateway.admin.pages.visit import Page, Visit
from gateway.facts import NO_BUDGETS, NO_LIMITS
from gateway.management import config, groups, models, plugins


async def show(visit: Visit) -> web.StreamResponse:
    """Show what is served, and why the last change of the file was not taken up."""
    desk = visit.desk
    return visit.page(
        "configuration.html",
        served=await config.read(desk),
        plugins=(await plugins.list_(desk)).data,
        models=(await models.list_(desk)).data,
        groups=(await groups.list_(desk)).data,
        none_at_all=(NO_BUDGETS, NO_LIMITS),
    )


PAGES: Final[tuple[tuple[str, str, Page], ...]] = (("GET", "/configuration", show),)

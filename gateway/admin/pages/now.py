"""Now: requests as they end, the figures of the last minute, and how the gateway is."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Final

import msgspec
from aiohttp import web
from aiohttp_sse import sse_response

from gateway.admin.pages.pulse import Choice, Pulse
from gateway.admin.pages.visit import Page, Visit
from gateway.errors import Refused
from gateway.log import Logger
from gateway.management.operation import Scope

PULSE: Final = web.AppKey("pulse", Pulse)
PING_S: Final = 15.0
CHECK_S: Final = 15.0
"""How often it is looked whether a session that follows is still one."""
SLOWEST_S: Final = 30.0
"""How long a browser may take to read a beat."""

log = Logger("gateway.admin.pages.now")


async def show(visit: Visit) -> web.StreamResponse:
    """Show the page, which follows the feed."""
    check(visit)
    config = visit.desk.config
    return visit.page("now.html", choice=visit.query(Choice), models=list(config.models), address=config.listen)


async def feed(visit: Visit) -> web.StreamResponse:
    """Send a beat of the pulse whenever there is one, until the session ends."""
    check(visit)
    choice = visit.query(Choice)
    clock = asyncio.get_running_loop().time
    async with aclosing(visit.request.app[PULSE].follow(choice)) as beats:
        first = await anext(beats)
        async with sse_response(visit.request, sep="\n", ping_interval=PING_S) as response:
            checked = clock()
            try:
                await response.send(msgspec.json.encode(first).decode())
                async for beat in beats:
                    if not response.is_connected():
                        break
                    if clock() - checked > CHECK_S:
                        if not await visit.is_still_in():
                            await response.send("left", event="left")
                            break
                        checked = clock()
                    async with asyncio.timeout(SLOWEST_S):
                        await response.send(msgspec.json.encode(beat).decode())
            except TimeoutError:
                log.warning("follower_too_slow")
        return response


def check(visit: Visit) -> None:
    """Raise `Refused` (403) for somebody who may read nothing: what is shown here comes from no operation."""
    if not visit.may(Scope.READ):
        raise Refused(403, "scope_missing", "This needs the scope `read`.")


PAGES: Final[tuple[tuple[str, str, Page], ...]] = (("GET", "/", show), ("GET", "/now/feed", feed))

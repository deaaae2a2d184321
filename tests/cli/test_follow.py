"""The usage log is followed over the operator's port without a gap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import cast

from aiohttp import web
from pytest_aiohttp import AiohttpRawServer

from gateway.admin.actions import usage
from gateway.admin.actions.remote import Feed, FeedElsewhere, HttpClient
from gateway.admin.http.usage_feed import LiveUsage
from gateway.usage.database import UsageDatabase
from gateway.usage.record import Record
from tests.patience import PATIENCE_S
from tests.records import arrival, end, usage_database


async def first_of(ended: AsyncIterator[Record], rows: UsageDatabase) -> list[Record]:
    """Write records until the first one is received, and return those that were written after it."""
    first = asyncio.ensure_future(anext(ended))
    written: list[Record] = []
    while not first.done():
        written.append(end(arrival()))
        rows.write(written[-1:])
        await asyncio.wait([first], timeout=0.05)
    return written[written.index(await first) + 1 :]


async def test_what_ends_elsewhere_is_followed_through_a_broken_connection(
    aiohttp_raw_server: AiohttpRawServer, tmp_path: Path
) -> None:
    """A proxy breaks the first connection after two events; the command's client goes on with the third."""
    rows = usage_database(tmp_path / "usage")
    live, asked = LiveUsage(), list[str]()

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        asked.append(request.headers.get("Last-Event-ID", ""))
        sent = 0

        def selects(record: Record) -> bool:
            nonlocal sent
            sent += 1
            if len(asked) == 1 and sent > 2 and request.transport is not None:
                request.transport.abort()
            return True

        return await live.send(cast(web.Request, request), Feed(rows.folder, selects))

    server = await aiohttp_raw_server(answer)
    async with HttpClient.open(f"http://{server.host}:{server.port}", "a-token") as http_client:
        feed = await usage.live(http_client, query=usage.Followed())
        assert isinstance(feed, FeedElsewhere)
        async with aclosing(cast("AsyncGenerator[Record]", feed.records())) as ended:
            waiting = await first_of(ended, rows)
            waiting += [end(arrival()) for _ in range(5)]
            rows.write(waiting[-5:])
            async with asyncio.timeout(PATIENCE_S):
                assert [await anext(ended) for _ in waiting] == waiting
    assert len(asked) == 2
    assert asked[1]
    rows.close()

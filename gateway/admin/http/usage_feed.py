"""`GET /usage/live`: a stream of server-sent events, one for each request that has ended.

Events are not buffered for a client that reads slowly: each connection reads the usage log's files from its own position.
"""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web
from aiohttp_sse import EventSourceResponse, sse_response

from gateway.admin.actions.usage import POLL_S, Feed
from gateway.base.errors import Refused
from gateway.base.log import log
from gateway.usage import queries
from gateway.usage.record import encode

PING_S: Final = 15.0
"""The interval of comments that show a client of a quiet log that the connection works."""


class LiveUsage:
    """The open streams."""

    def __init__(self) -> None:
        self._streams: set[EventSourceResponse] = set()

    async def send(self, request: web.Request, feed: Feed) -> web.StreamResponse:
        """Stream ended requests, from now on or after the event `Last-Event-ID`. Raises `Refused` when no event has that id."""
        try:
            tail = await asyncio.to_thread(queries.Tail, feed.home, request.headers.get("Last-Event-ID", ""))
        except ValueError as error:
            raise Refused(400, "invalid_request", f"Last-Event-ID: {error}.", param="Last-Event-ID") from None
        async with sse_response(request, sep="\n", ping_interval=PING_S) as response:
            self._streams.add(response)
            try:
                await response.write(b": from here on\n\n")
                while response.is_connected():
                    ended = await asyncio.to_thread(tail.poll)
                    for cursor, record in ended:
                        if feed.selects(record):
                            await response.send(encode(record).decode(), id=cursor)
                    await asyncio.sleep(0 if ended else POLL_S)
            except TimeoutError:
                log.warning("follower_too_slow")
            finally:
                self._streams.discard(response)
        return response

    async def stop(self, _: web.Application) -> None:
        """End all streams."""
        for stream in self._streams:
            stream.stop_streaming()

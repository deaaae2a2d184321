"""`GET /usage/live`: a stream of server-sent events, one for each request that has ended.

Events are not buffered for a client that reads slowly: each connection reads the usage log's files from its own position.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from aiohttp import web
from aiohttp_sse import EventSourceResponse, sse_response

from gateway.errors import Refused
from gateway.log import Logger
from gateway.usage import queries
from gateway.usage.record import encode

LIVE: Final = "/usage/live"
POLL_S: Final = 0.25
PING_S: Final = 15.0
"""The interval of comments that show a client of a quiet log that the connection works."""

MAX_STREAMS: Final = 32
RETRY_AFTER_S: Final = 10.0

log = Logger("gateway.admin.live")


class LiveUsage:
    """The handler of the path, and its open streams."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._streams: set[EventSourceResponse] = set()

    async def get(self, request: web.Request) -> web.StreamResponse:
        """Stream ended requests, from now on or after the event `Last-Event-ID`; `?account=` selects those of one account.

        Raises `Refused` when there are too many streams, or when no event has that id.
        """
        if len(self._streams) >= MAX_STREAMS:
            raise Refused(503, "service_unavailable", "Enough follow already.", retry_after_s=RETRY_AFTER_S)
        try:
            tail = await asyncio.to_thread(queries.Tail, self._folder, request.headers.get("Last-Event-ID", ""))
        except ValueError as error:
            raise Refused(400, "invalid_request", f"Last-Event-ID: {error}.", param="Last-Event-ID") from None
        account = request.query.get("account")
        async with sse_response(request, sep="\n", ping_interval=PING_S) as response:
            self._streams.add(response)
            try:
                await response.write(b": from here on\n\n")
                while response.is_connected():
                    ended = await asyncio.to_thread(tail.poll)
                    for cursor, record in ended:
                        if account in (None, record.account):
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

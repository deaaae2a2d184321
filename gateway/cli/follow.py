"""Following the usage log: over the admin port of a running gateway, or else in its home."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from aiohttp import ClientError, ClientResponseError, ClientSession, ClientTimeout

from gateway.admin.actions.links import has_token, token_of
from gateway.admin.actions.remote import events_of
from gateway.admin.http.usage_feed import LIVE, PING_S
from gateway.config.schema import Config, host_port
from gateway.usage import queries
from gateway.usage.home import home_of
from gateway.usage.record import Record

POLL_S = 0.5


async def ended(config: Config) -> AsyncGenerator[Record]:
    """Yield the record of each request that ends from now on, without an end.

    If the connection to the admin port breaks, the files are read from the same place on; no record is lost or repeated.
    """
    home = home_of(config)
    place = queries.Tail(home).cursor
    if config.admin is not None and has_token(config):
        with suppress(ClientError, TimeoutError, OSError):
            async with aclosing(_ended_live(config, config.admin, place)) as records:
                async for after, record in records:
                    place = after
                    yield record
    tail = queries.Tail(home, place)
    while True:
        for _, record in tail.poll():
            yield record
        await asyncio.sleep(POLL_S)


async def _ended_live(config: Config, address: str, place: str) -> AsyncGenerator[tuple[str, Record]]:
    host, port = host_port(address)
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}{LIVE}"
    headers = {"Authorization": f"Bearer {token_of(config)}", "Last-Event-ID": place}
    timeout = ClientTimeout(total=None, sock_connect=2, sock_read=3 * PING_S)
    async with ClientSession(timeout=timeout, headers=headers) as client, client.get(url) as answer:
        answer.raise_for_status()
        if answer.content_type != "text/event-stream":
            raise ClientResponseError(answer.request_info, (), message="something else listens there")
        async for event in events_of(answer.content):
            yield event

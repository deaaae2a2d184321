"""Free probes: upstreams of channels that have failed are asked whether they answer, so that no caller's request is spent on that.

A probe is `GET /health` where a channel has no credential, else, and where that is not known there, the list of models. It is never
a completion. Each worker probes, and the first answer ends the cool-down for all.
"""

from __future__ import annotations

from typing import Final

from aiohttp import ClientError, ClientSession, ClientTimeout
from yarl import URL

from gateway.config.channel import Channel

LONGEST_S: Final = 10.0
"""How long an answer may take."""
NOT_THERE: Final = (404, 405, 501)


async def answers(channel: Channel) -> bool:
    """Return whether a channel's upstream answers to a request that costs nothing."""
    return await status_of(channel, (*channel.credentials, "")[0]) == 200


async def status_of(channel: Channel, credential: str) -> int | None:
    """Return the status of a channel's upstream for a request that costs nothing; None where no answer came."""
    base = URL(channel.base_url.rstrip("/"))
    addresses = [] if credential else [base.origin() / "health"]
    headers, query = dict(channel.headers), dict(channel.query)
    auth = channel.auth_way()
    if credential and auth.way == "query":
        query[auth.name] = credential
    elif credential:
        headers[auth.name] = f"{'Bearer ' if auth.way == 'bearer' else ''}{credential}"
    try:
        async with ClientSession(timeout=ClientTimeout(total=LONGEST_S)) as session:
            for address in (*addresses, base / "models"):
                async with session.get(
                    address,
                    params=query,
                    headers=headers,
                    proxy=channel.proxy or None,
                    ssl=channel.trust.context if channel.trust else True,
                    allow_redirects=False,
                ) as response:
                    if response.status not in NOT_THERE:
                        return response.status
    except (TimeoutError, ClientError, OSError, ValueError):
        return None
    return None

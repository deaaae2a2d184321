"""The gateways of a store, as their sinks register them there: where each runs, when it was last heard of, what it still holds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import msgspec

from gateway.errors import StoreError
from gateway.request_id import utc
from gateway.store.client.client import Client, Script
from gateway.usage.away import Away
from gateway.usage.gaps import Gap
from gateway.usage.installation import short
from gateway.usage.keys import GATEWAYS, HEARD, STREAM

PRESENT_MS: Final = 20_000
"""A gateway that was not heard of for longer does not count as present."""

_TIME: Final = Script("time", 'return redis.call("TIME")')


class About(msgspec.Struct):
    """What a gateway says about itself. `files`: files of records in its folder that the stream does not have yet.

    `stopped`: it ended in order, with nothing left to hand over. `forgotten_ms`: when an operator said that it has gone, else 0.
    """

    host: str = ""
    files: int = 0
    gaps: list[Gap] = []
    stopped: bool = False
    forgotten_ms: int = 0


class Gateway(msgspec.Struct):
    """One gateway of the store. `heard_ms`: when it was last heard of. `behind_ms`: time of the stream that it has not read."""

    installation: str
    about: About
    heard_ms: int
    behind_ms: int
    now_ms: int

    @property
    def name(self) -> str:
        """Its host, and the name that its records have."""
        return f"{self.about.host} ({short(self.installation)})"

    @property
    def present(self) -> bool:
        """Whether it was heard of just now."""
        return not self.about.stopped and self.now_ms - self.heard_ms <= PRESENT_MS

    @property
    def heard(self) -> str:
        """When it was last heard of, in ISO 8601."""
        return utc(self.heard_ms)


async def gateways_of(client: Client) -> list[Gateway]:
    """Return the gateways of a store, also forgotten ones. Raises `StoreAway`."""
    abouts, heard, now, exists = await asyncio.gather(
        client.call("HGETALL", GATEWAYS),
        client.call("ZRANGE", HEARD, 0, -1, "WITHSCORES"),
        now_ms(client),
        client.call("EXISTS", STREAM),
    )
    positions, last = await _positions(client) if exists else ({}, 0)
    when = {name.decode(): int(at) for name, at in heard}
    found = [
        Gateway(name, _about(text), when.get(name, 0), max(0, last - positions.get(name, last)), now)
        for name, text in sorted((key.decode(), value) for key, value in abouts.items())
    ]
    return sorted(found, key=lambda gateway: gateway.about.host)


def away_of(gateways: Iterable[Gateway]) -> list[Away]:
    """Return those that may have requests which are nowhere else: not present, with files to hand over, or forgotten.

    One that has not been heard of yet has just joined.
    """
    return [
        Away(short(each.installation), each.about.host, each.heard_ms, each.about.files, each.about.forgotten_ms)
        for each in gateways
        if each.about.forgotten_ms or each.about.files or (each.heard_ms and not (each.present or each.about.stopped))
    ]


def unknown_to_store(known: Iterable[Gateway], away: Iterable[Away]) -> list[Gateway]:
    """Return the gateways that the disk remembers, and of which the store knows nothing: it was emptied, or is an earlier copy."""
    names = {short(each.installation) for each in known}
    now = round(time.time() * 1000)
    return [
        Gateway(each.name, About(each.host, each.files, forgotten_ms=each.forgotten_ms), each.heard_ms, 0, now)
        for each in away
        if each.name not in names
    ]


async def now_ms(client: Client) -> int:
    """Return the time by the clock of the store, or in a cluster of the node that has the usage log. Raises `StoreAway`."""
    seconds, micros = await client.run(_TIME, [STREAM])
    return int(seconds) * 1000 + int(micros) // 1000


async def forget(client: Client, gateway: Gateway) -> None:
    """Remove a gateway that has gone for good: nothing is kept for it any more, and its open requests are closed.

    That it was there is still known, since it may have had records that it had not handed over. Raises `StoreAway`.
    """
    about = msgspec.structs.replace(gateway.about, forgotten_ms=gateway.now_ms)
    await client.call("HSET", GATEWAYS, gateway.installation, msgspec.json.encode(about))
    await client.call("ZADD", HEARD, "NX", gateway.heard_ms, gateway.installation)
    with suppress(StoreError):  # there is no stream
        await client.call("XGROUP", "DESTROY", STREAM, gateway.installation)


async def _positions(client: Client) -> tuple[dict[str, int], int]:
    """Return up to when each gateway has read the stream, and when its last entry was written."""
    groups, stream = await asyncio.gather(
        client.call("XINFO", "GROUPS", STREAM), client.call("XINFO", "STREAM", STREAM)
    )
    positions = {group[b"name"].decode(): _ms(group[b"last-delivered-id"]) for group in groups}
    return positions, _ms(stream[b"last-generated-id"])


def _about(text: bytes) -> About:
    """Return what a gateway said; of a later version's text, what is understood."""
    try:
        return msgspec.json.decode(text, type=About)
    except msgspec.MsgspecError:
        return About(host="unknown", files=1)


def _ms(entry: bytes | str) -> int:
    text = entry if isinstance(entry, str) else entry.decode()
    return int(text.partition("-")[0])

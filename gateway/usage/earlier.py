"""The stream that a gateway of an earlier version had of its own: it is moved to the stream of all gateways, and deleted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from gateway.store.client.client import Client, Script
from gateway.usage.keys import EARLIER

AT_ONCE: Final = 2000
_FIELD: Final = b"record"
_DELETE_EMPTY: Final = Script(
    "delete_empty", 'return redis.call("XLEN", KEYS[1]) == 0 and redis.call("DEL", KEYS[1]) or 0'
)


async def drain_earlier(client: Client, installation: str, write: Callable[[list[bytes]], Awaitable[None]]) -> int:
    """Move some entries of the stream of an installation with `write`; return how many. Raises `StoreAway`."""
    stream = f"{EARLIER}{installation}"
    entries = await client.call("XRANGE", stream, "-", "+", "COUNT", AT_ONCE) or []
    if entries:
        await write([fields[_FIELD] for _, fields in entries if _FIELD in fields])
        await client.call("XDEL", stream, *(number for number, _ in entries))
    else:
        await client.run(_DELETE_EMPTY, [stream])
    return len(entries)

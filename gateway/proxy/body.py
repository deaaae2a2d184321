"""The body of an upstream's response that is not an event stream."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from gateway.proxy.upstream import UpstreamConnection


class Read(NamedTuple):
    """What was read of a body: `whole` as its framing announced, else `broken` off, or else too `long`, late or cancelled."""

    data: bytes
    whole: bool
    broken: bool
    long: bool


async def read_body(
    upstream: UpstreamConnection, max_bytes: int, timeout_s: float, cancelled: asyncio.Future[Any]
) -> Read:
    """Return the body up to `max_bytes`.

    Reading stops after `max_bytes`, after `timeout_s`, and when `cancelled` is done.
    """
    pieces: list[bytes] = []
    done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    size = 0

    def on_data(data: bytes) -> None:
        nonlocal size
        pieces.append(data)
        size += len(data)
        if size > max_bytes:
            upstream.pause()
            on_end(False)

    def on_end(clean: bool) -> None:
        if not done.done():
            done.set_result(clean)

    upstream.flow_to(on_data, on_end)
    await asyncio.wait((done, cancelled), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    ended, too_long = done.done(), size > max_bytes
    whole = ended and done.result()
    return Read(b"".join(pieces)[:max_bytes], whole, ended and not whole and not too_long, too_long)

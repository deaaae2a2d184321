"""The body of an answer that is no stream, taken whole: an error, or a JSON answer."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from gateway.chat.usage import Usage
from gateway.proxy.upstream import UpstreamSide


async def collected(
    upstream: UpstreamSide, most: int, within_s: float, or_until: asyncio.Future[Any]
) -> tuple[bytes, bool]:
    """The body up to `most` bytes, beyond which nothing is read, and whether it came whole.

    What is there after `within_s`, or when `or_until` is done, is all.
    """
    pieces: list[bytes] = []
    done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    size = 0

    def on_data(data: bytes) -> None:
        nonlocal size
        pieces.append(data)
        size += len(data)
        if size > most:
            upstream.pause()
            on_end(False)

    def on_end(clean: bool) -> None:
        if not done.done():
            done.set_result(clean)

    upstream.flow_to(on_data, on_end)
    await asyncio.wait((done, or_until), timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    return b"".join(pieces)[:most], done.done() and done.result()


class _Counted(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Answer(msgspec.Struct):
    usage: _Counted | None = None


def usage_of(text: bytes) -> Usage | None:
    """What a JSON answer says it used, estimated from its size where it says nothing; None if it is no JSON object."""
    try:
        counted = msgspec.json.decode(text, type=_Answer).usage
    except (msgspec.DecodeError, RecursionError):
        return None
    if counted is None:
        return Usage(0, -(-len(text) // 4), "estimated")
    return Usage(max(0, counted.prompt_tokens), max(0, counted.completion_tokens), "upstream")

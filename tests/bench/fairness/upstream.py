"""An upstream that answers by the field `user` of the request: `python -m tests.bench.fairness.upstream` prints its port."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable
from typing import Final

import uvloop

from tests.whole.scripted import CHUNKED, LAST, chunk

PLAN: Final = re.compile(rb'"user": ?"([a-z0-9-]+)"')
LENGTH: Final = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
LARGEST: Final = 64 * 1024 * 1024

EVENT: Final = b'data: {"choices":[{"index":0,"delta":{"content":"word "}}]}\n\n'
FINISH: Final = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE: Final = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":4,"total_tokens":9}}\n\n'
DONE: Final = b"data: [DONE]\n\n"
ERROR: Final = b'{"error":{"message":"The input was flagged.","type":"invalid_request_error","code":"flagged"}}'
LARGE: Final = b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % (b"x" * 64 * 1024)
PACE_S: Final = 0.002

Send = Callable[[bytes], Awaitable[None]]


def refusal(status: int, body: bytes = ERROR, media_type: str = "application/json", more: str = "") -> bytes:
    """Return a response with this status."""
    head = f"HTTP/1.1 {status} Refused\r\nContent-Type: {media_type}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


WHOLE: Final = {
    "flagged": refusal(403),
    "broken": refusal(500),
    "limited": refusal(429, more="Retry-After: 5\r\n"),
    "too-large": refusal(413, b"<html>413 Request Entity Too Large</html>", "text/html"),
    "error-event": CHUNKED + chunk(b"data: " + ERROR + b"\n\n") + LAST,
}
"""Plans that are answered at once."""


async def answer(plan: str, send: Send, reader: asyncio.StreamReader) -> None:
    """Answer one request by its plan; without one, with four words. Raises `ConnectionError` when the gateway has left."""
    if plan in WHOLE:
        await send(WHOLE[plan])
        return
    if plan == "silent":
        await reader.read(1)
        raise ConnectionResetError
    await send(CHUNKED)
    if plan in FOR_EVER:
        event, pause_s = FOR_EVER[plan]
        while not reader.at_eof():
            await send(chunk(event))
            await asyncio.sleep(pause_s)
        raise ConnectionResetError
    for event in (EVENT, EVENT, EVENT, EVENT, FINISH + USAGE + DONE):
        await send(chunk(event))
        await asyncio.sleep(PACE_S)
    await send(LAST)


FOR_EVER: Final = {
    "slow": (EVENT, 0.5),
    "flood": (LARGE, 0.0),
    "tiny": (b"".join([b"data: {}\n\n"] * 100), 0.0),
    "small": (EVENT, 0.05),
}
"""Plans whose streams do not end: the bytes of a write, and the seconds between two."""


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection; stop when the gateway closes it."""

    async def send(data: bytes) -> None:
        if writer.is_closing():
            raise ConnectionResetError
        writer.write(data)
        await writer.drain()

    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = LENGTH.search(head)
            body = await reader.readexactly(int(length[1]) if length else 0)
            plan = PLAN.search(body)
            del body
            await answer(plan[1].decode() if plan else "", send, reader)
    except (asyncio.IncompleteReadError, ConnectionError):
        return
    finally:
        writer.close()


async def main() -> None:
    """Listen on a free port until standard input ends."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=LARGEST, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


if __name__ == "__main__":
    uvloop.run(main())

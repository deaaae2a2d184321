"""The kinds of upstreams that fail: before the first event, in the middle of the answer, or at its end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.bench.life.answers import KINDS, WHOLE, Call, Close, kind, whole

ERROR: dict[str, Any] = {"error": {"message": "The server had an error.", "type": "server_error", "code": "oops"}}
FAILED = "502 upstream_error"
TIMEOUT = "504 upstream_timeout"


@kind("silent", TIMEOUT, charge="input", short=True)
async def silent(call: Call) -> None:
    await call.hold()


@kind("comments", TIMEOUT, charge="input", short=True)
async def comments(call: Call) -> None:
    """Send comments for ever, and never an event."""
    await call.head()
    while True:
        await call.data(b": still thinking\n\n")
        await asyncio.sleep(0.1)


@kind("drops", FAILED, charge="input")
async def drops(call: Call) -> None:
    """Close the connection without an answer."""
    raise Close


@kind("stalls", "cut upstream_timeout", charge="estimate", short=True)
async def stalls(call: Call) -> None:
    await call.head()
    await call.text(call.words // 2)
    await call.hold()


@kind("trickles", "cut upstream_timeout", charge="estimate", short=True)
async def trickles(call: Call) -> None:
    """Send a word each 0.2 s for ever."""
    call.pace_s = 0.2
    await call.head()
    await call.text(1_000_000)


@kind("breaks", "cut upstream_truncated", charge="estimate")
async def breaks(call: Call) -> None:
    """Reset the connection in the middle of an event."""
    await call.head()
    await call.text(call.words // 2)
    await call.data(b'data: {"id":"c","choi')
    await asyncio.sleep(0.02)
    call.writer.transport.abort()
    raise Close


@kind("ends-early", "cut upstream_truncated", charge="estimate")
async def ends_early(call: Call) -> None:
    """End the response properly in the middle of the answer."""
    await call.head()
    await call.text(call.words // 2)
    call.writer.write(b"0\r\n\r\n")


@kind("error-first", FAILED, charge="nothing")
async def error_first(call: Call) -> None:
    await call.head()
    await call.event(ERROR)
    await call.done()


@kind("error-middle", "cut", charge="estimate")
async def error_middle(call: Call) -> None:
    await call.head()
    await call.text(call.words // 2)
    await call.event(ERROR)
    call.writer.write(b"0\r\n\r\n")


@kind("error-named", "cut upstream_error", charge="estimate")
async def error_named(call: Call) -> None:
    await call.head()
    await call.text(call.words // 2)
    await call.data(b"event: error\ndata: something broke\n\n")
    call.writer.write(b"0\r\n\r\n")


@kind("error-bare", "cut upstream_error", charge="estimate")
async def error_bare(call: Call) -> None:
    """Send an error object that is not within `error`, then `[DONE]`, as vLLM does."""
    await call.head()
    await call.text(call.words // 2)
    await call.event({"object": "error", "message": "It broke.", "type": "BadRequestError", "param": None, "code": 400})
    await call.done()


@kind("error-last", "cut", charge="larger")
async def error_last(call: Call) -> None:
    """Send an error after the finish and before `[DONE]`."""
    await call.head()
    await call.text(call.words)
    await call.chunk({}, "stop")
    await call.event(ERROR)
    await call.done()


def _status(
    status: int, ends: tuple[str, ...], body: bytes, media_type: str = "application/json", headers: str = ""
) -> None:
    async def answer(call: Call) -> None:
        await call.plain(status, body, media_type, headers, close=status == 413)

    kind(f"status-{status}", *ends, charge="nothing")(answer)


_JSON = json.dumps(ERROR).encode()
for _code in (401, 402, 403):
    _status(_code, ("502 upstream_auth_failed",), _JSON)
for _code in (400, 422):
    _status(_code, (f"{_code} oops",), _JSON)
_status(413, ("413",), b"<h1>413 Request Entity Too Large</h1>", "text/html")
_status(429, ("429 upstream_rate_limited",), _JSON, headers="Retry-After: 1\r\n")
for _code in (500, 529):
    _status(_code, (FAILED, "503 upstream_error"), _JSON)
_status(503, (FAILED, "503 upstream_error"), _JSON, headers="Retry-After: 1\r\n")
_status(307, (FAILED,), b"", headers="Location: /v1/elsewhere\r\n")


@kind("page", FAILED, charge="nothing")
async def page(call: Call) -> None:
    await call.plain(200, b"<!doctype html><title>Please sign in</title>", "text/html")


@kind("json-instead", FAILED, charge="nothing")
async def json_instead(call: Call) -> None:
    await call.plain(200, b'{"choices":[{"message":{"content":"hello"}}],"usage":{}}')


@kind("empty", FAILED, charge="nothing")
async def empty(call: Call) -> None:
    """Send an event stream that ends without an event."""
    await call.head()
    call.writer.write(b"0\r\n\r\n")


@kind("endless", WHOLE, "cut upstream_timeout", "cut", charge="estimate", short=True)
async def endless(call: Call) -> None:
    """Send 4 KB words without a pause until the gateway ends it."""
    await call.head()
    while True:
        call.served.output += 1000
        call.served.output_bytes += 4000
        await call.chunk({"content": "xyz " * 1000})
        await asyncio.sleep(0.001)


@kind("echoes")
async def echoes(call: Call) -> None:
    """Repeat the credential of the request in the answer."""
    await call.head()
    await call.text(call.words)
    await call.chunk({"content": f"The key was {call.credential}"})
    await call.chunk({}, "stop")
    await call.usage_chunk()
    await call.done()


kind("refused", "502 upstream_unreachable", charge="nothing")(whole)
FAILING = sorted(name for name, each in KINDS.items() if WHOLE not in each.ends)

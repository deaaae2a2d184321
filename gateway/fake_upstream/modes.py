"""The modes: one function each, whose docstring is its line in the help.

A mode that streams does so only for who asked with `stream: true`; others get the whole answer as JSON.
"""

from __future__ import annotations

import asyncio
import gzip
import itertools
import math
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import NoReturn

from aiohttp import web
from aiohttp_sse import EventSourceResponse, sse_response

from gateway.fake_upstream.answer import DONE, Completion, error, refusal

Answer = Callable[[Completion], Awaitable[web.StreamResponse]]
Play = Callable[[Completion, EventSourceResponse], Awaitable[None]]

MODES: dict[str, str] = {}
"""Each mode by name, in one sentence."""
ANSWERS: dict[str, Answer] = {}

SLOW_FIRST_PACES = 50
HUGE_BYTES = 2_000_000
REFUSALS = {
    401: ("invalid_api_key", "Incorrect API key provided."),
    402: ("insufficient_balance", "This key's balance is used up."),
    403: ("country_not_supported", "This key may not be used here."),
    404: ("model_not_found", "The model does not exist."),
    429: ("rate_limit_exceeded", "Too many requests with this key."),
    500: ("server_error", "The server had an error."),
    503: ("overloaded", "The server is overloaded."),
}
FAILURE = error("server_error", "The server had an error.", type="server_error")


def mode(name: str, sentence: str = "") -> Callable[[Answer], Answer]:
    def register(answer: Answer) -> Answer:
        MODES[name] = sentence or answer.__doc__ or ""
        ANSWERS[name] = answer
        return answer

    return register


def streaming(name: str, *, separator: str = "\n") -> Callable[[Play], Play]:
    """A mode that plays on an open event stream, which then ends properly."""

    def register(play: Play) -> Play:
        @mode(name, play.__doc__ or "")
        async def answer(call: Completion) -> web.StreamResponse:
            if not call.ask.stream:
                return web.json_response(call.whole())
            opened = sse_response(call.request, sep=separator, ping_interval=math.inf, allow_all_methods=True)
            async with opened as stream:
                await play(call, stream)
            return stream

        return play

    return register


async def forever() -> NoReturn:
    """Until the caller leaves or the upstream stops."""
    while True:
        await asyncio.get_running_loop().create_future()


@streaming("words")
async def words(call: Completion, stream: EventSourceResponse) -> None:
    """Streams words at a human pace, as a good upstream does."""
    await call.play(stream, call.text() + call.ending())


@streaming("crlf", separator="\r\n")
async def crlf(call: Completion, stream: EventSourceResponse) -> None:
    """Ends its lines with CRLF; otherwise good."""
    await words(call, stream)


@streaming("no-usage")
async def no_usage(call: Completion, stream: EventSourceResponse) -> None:
    """Never tells the usage, asked or not."""
    await call.play(stream, [*call.text(), call.finish(), DONE])


@streaming("usage-beside-finish")
async def usage_beside_finish(call: Completion, stream: EventSourceResponse) -> None:
    """Tells the usage in the chunk of the finish reason, asked or not."""
    await call.play(stream, [*call.text(), call.finish(usage=call.usage()), DONE])


@streaming("two-usages")
async def two_usages(call: Completion, stream: EventSourceResponse) -> None:
    """Tells a smaller usage beside the finish reason and then the true one, asked or not."""
    await call.play(stream, [*call.text(), call.finish(usage=call.usage(1)), call.usage_chunk(), DONE])


@streaming("no-done")
async def no_done(call: Completion, stream: EventSourceResponse) -> None:
    """Ends properly after the finish reason, without [DONE]."""
    await call.play(stream, [*call.text(), *call.ending()[:-1]])


@streaming("truncate")
async def truncate(call: Completion, stream: EventSourceResponse) -> None:
    """Ends properly in the middle of the answer."""
    await call.play(stream, call.half())


@streaming("cut")
async def cut(call: Completion, stream: EventSourceResponse) -> None:
    """Resets the connection in the middle of an event."""
    await call.play(stream, call.half())
    await stream.write(b'data: {"id":"chatcmpl-')
    await asyncio.sleep(call.pace_s)
    if transport := call.request.transport:
        reset_at_close = struct.pack("ii", 1, 0)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset_at_close)
        transport.abort()
    await forever()


@streaming("stall")
async def stall(call: Completion, stream: EventSourceResponse) -> None:
    """Falls silent in the middle of the answer."""
    await call.play(stream, call.half())
    await forever()


@streaming("drip")
async def drip(call: Completion, stream: EventSourceResponse) -> None:
    """Sends comments for ever, and never an event."""
    while True:
        await asyncio.sleep(call.pace_s)
        await stream.write(b": still thinking\n\n")


@streaming("endless")
async def endless(call: Completion, stream: EventSourceResponse) -> None:
    """Sends words for ever, past every ceiling."""
    await call.play(stream, itertools.chain(call.text(), itertools.repeat(call.content(" more"))))


@streaming("huge")
async def huge(call: Completion, stream: EventSourceResponse) -> None:
    """Sends its text in one event of two megabytes."""
    call.words = ["x" * HUGE_BYTES]
    await words(call, stream)


@streaming("empty")
async def empty(call: Completion, stream: EventSourceResponse) -> None:
    """Answers with an event stream that ends properly without an event."""


@streaming("error-event")
async def error_event(call: Completion, stream: EventSourceResponse) -> None:
    """Sends an error in the middle of the answer and ends properly."""
    await call.play(stream, [*call.half(), FAILURE])


@streaming("first-error")
async def first_error(call: Completion, stream: EventSourceResponse) -> None:
    """Answers 200 with an event stream whose only event is an error."""
    await call.play(stream, [FAILURE])


@streaming("echo-key")
async def echo_key(call: Completion, stream: EventSourceResponse) -> None:
    """Puts the credential that it was called with into its text."""
    credential = call.request.headers.get("Authorization", "").removeprefix("Bearer ")
    call.words = ["The", "key", "was", credential]
    await words(call, stream)


@mode("silent")
async def silent(call: Completion) -> web.StreamResponse:
    """Accepts the request and says nothing."""
    await forever()


@mode("slow-first")
async def slow_first(call: Completion) -> web.StreamResponse:
    """Waits for fifty times the pace before its status line; then good."""
    await asyncio.sleep(call.pace_s * SLOW_FIRST_PACES)
    return await ANSWERS["words"](call)


@mode("html")
async def html(call: Completion) -> web.StreamResponse:
    """Answers 200 with a page for people."""
    return web.Response(text="<!doctype html><title>Please sign in</title>", content_type="text/html")


@mode("json")
async def json(call: Completion) -> web.StreamResponse:
    """Answers 200 with the whole answer as JSON, although a stream was asked for."""
    return web.json_response(call.whole())


@mode("gzip")
async def gzipped(call: Completion) -> web.StreamResponse:
    """Compresses the stream, although nobody allowed it."""
    events = "".join(f"data: {event}\n\n" for event in call.text() + call.ending())
    return web.Response(
        body=gzip.compress(events.encode()),
        content_type="text/event-stream",
        headers={"Content-Encoding": "gzip"},
    )


@mode("redirect")
async def redirect(call: Completion) -> web.StreamResponse:
    """Answers 307 with another address on the same host."""
    raise web.HTTPTemporaryRedirect("/v1/elsewhere")


def _refusing(status: int, code: str, message: str) -> None:
    headers = {"Retry-After": "7"} if status == 429 else {}
    kind = "server_error" if status >= 500 else "invalid_request_error"
    body = error(code, message, type=kind, param="model" if status == 404 else None)

    @mode(str(status), f"Refuses with {status} and a JSON error: {message}")
    async def refuse(call: Completion) -> web.StreamResponse:
        return refusal(status, body, headers)


for _status, (_code, _message) in REFUSALS.items():
    _refusing(_status, _code, _message)

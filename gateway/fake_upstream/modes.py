"""The modes, one function each. Its docstring is the line that `gateway fake-upstream --modes` prints.

A mode that streams does so only for requests with `stream: true`; others get the complete answer as JSON.
"""

from __future__ import annotations

import asyncio
import gzip
import itertools
import math
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

from aiohttp import web
from aiohttp_sse import EventSourceResponse, sse_response

from gateway.fake_upstream.completion import DONE, Completion, error, refusal

Answer = Callable[[Completion], Awaitable[web.StreamResponse]]
Send = Callable[[Completion, EventSourceResponse], Awaitable[None]]

MODES: Final[dict[str, str]] = {}
"""What each mode does, in one sentence, by its name."""
ANSWERS: Final[dict[str, Answer]] = {}
"""The function of each mode, by its name."""

SLOW_FIRST_PACES: Final = 50
THOUGHTS: Final = 50
HUGE_BYTES: Final = 2_000_000
REFUSALS: Final = {
    401: ("invalid_api_key", "Incorrect API key provided."),
    402: ("insufficient_balance", "This key's balance is used up."),
    403: ("country_not_supported", "This key may not be used here."),
    404: ("model_not_found", "The model does not exist."),
    429: ("rate_limit_exceeded", "Too many requests with this key."),
    500: ("server_error", "The server had an error."),
    503: ("overloaded", "The server is overloaded."),
}
LOADING: Final = error("", "Loading model", type="unavailable_error")
FAILURE: Final = error("server_error", "The server had an error.", type="server_error")


def mode(name: str, sentence: str = "") -> Callable[[Answer], Answer]:
    """Register a function as a mode. Its docstring describes the mode, unless `sentence` does."""

    def register(answer: Answer) -> Answer:
        MODES[name] = sentence or answer.__doc__ or ""
        ANSWERS[name] = answer
        return answer

    return register


def streaming(name: str, *, separator: str = "\n") -> Callable[[Send], Send]:
    """Register a function as a mode that sends to an open event stream, which then ends properly."""

    def register(send: Send) -> Send:
        @mode(name, send.__doc__ or "")
        async def answer(call: Completion) -> web.StreamResponse:
            if not call.chat.stream:
                return web.json_response(call.whole())
            opened = sse_response(
                call.request, sep=separator, ping_interval=math.inf, response_cls=call.events, allow_all_methods=True
            )
            async with opened as stream:
                await send(call, stream)
            return stream

        return send

    return register


async def forever() -> NoReturn:
    """Wait until the caller leaves or the upstream stops."""
    while True:
        await asyncio.get_running_loop().create_future()


@streaming("words")
async def words(call: Completion, stream: EventSourceResponse) -> None:
    """Stream words at a reading pace, as a well-behaved upstream does."""
    await call.send(stream, call.text() + call.ending())


@streaming("thinks")
async def thinks(call: Completion, stream: EventSourceResponse) -> None:
    """Think for fifty times the pace without an event, then like words; the usage has fifty tokens more."""
    call.thoughts = THOUGHTS
    await asyncio.sleep(call.pace_s * THOUGHTS)
    await words(call, stream)


@streaming("thinks-in-the-open")
async def thinks_in_the_open(call: Completion, stream: EventSourceResponse) -> None:
    """Stream fifty words of reasoning, then like words; the usage has fifty tokens more."""
    call.thoughts = THOUGHTS
    await call.send(stream, [call.reasoning(" hm")] * THOUGHTS)
    await words(call, stream)


@streaming("crlf", separator="\r\n")
async def crlf(call: Completion, stream: EventSourceResponse) -> None:
    """End lines with CRLF; otherwise like words."""
    await words(call, stream)


@streaming("no-usage")
async def no_usage(call: Completion, stream: EventSourceResponse) -> None:
    """Never send the usage, whether the request asks for it or not."""
    await call.send(stream, [*call.text(), call.finish(), DONE])


@streaming("usage-beside-finish")
async def usage_beside_finish(call: Completion, stream: EventSourceResponse) -> None:
    """Send the usage in the chunk with the finish reason, whether the request asks for it or not."""
    await call.send(stream, [*call.text(), call.finish(usage=call.usage()), DONE])


@streaming("two-usages")
async def two_usages(call: Completion, stream: EventSourceResponse) -> None:
    """Send a usage that is too small with the finish reason, then the true one, whether the request asks for it or not."""
    await call.send(stream, [*call.text(), call.finish(usage=call.usage(1)), call.usage_chunk(), DONE])


@streaming("no-done")
async def no_done(call: Completion, stream: EventSourceResponse) -> None:
    """End the stream properly after the finish reason, without [DONE]."""
    await call.send(stream, [*call.text(), *call.ending()[:-1]])


@streaming("truncate")
async def truncate(call: Completion, stream: EventSourceResponse) -> None:
    """End the stream properly in the middle of the answer."""
    await call.send(stream, call.half())


@streaming("cut")
async def cut(call: Completion, stream: EventSourceResponse) -> None:
    """Reset the connection in the middle of an event."""
    await call.send(stream, call.half())
    await stream.write(b'data: {"id":"chatcmpl-')
    await asyncio.sleep(call.pace_s)
    if transport := call.request.transport:
        reset_at_close = struct.pack("ii", 1, 0)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset_at_close)
        transport.abort()
    await forever()


@streaming("stall")
async def stall(call: Completion, stream: EventSourceResponse) -> None:
    """Stop sending in the middle of the answer, and keep the connection open."""
    await call.send(stream, call.half())
    await forever()


@streaming("drip")
async def drip(call: Completion, stream: EventSourceResponse) -> None:
    """Send comments for ever, and never an event."""
    while True:
        await asyncio.sleep(call.pace_s)
        await stream.write(b": still thinking\n\n")


@streaming("endless")
async def endless(call: Completion, stream: EventSourceResponse) -> None:
    """Send words for ever, beyond max_tokens."""
    await call.send(stream, itertools.chain(call.text(), itertools.repeat(call.content(" more"))))


@streaming("huge")
async def huge(call: Completion, stream: EventSourceResponse) -> None:
    """Send the text in one event of two megabytes."""
    call.words = ["x" * HUGE_BYTES]
    await words(call, stream)


@streaming("empty")
async def empty(call: Completion, stream: EventSourceResponse) -> None:
    """Answer with an event stream that ends properly without an event."""


@streaming("error-event")
async def error_event(call: Completion, stream: EventSourceResponse) -> None:
    """Send an error event in the middle of the answer, then end the stream properly."""
    await call.send(stream, [*call.half(), FAILURE])


@streaming("first-error")
async def first_error(call: Completion, stream: EventSourceResponse) -> None:
    """Answer 200 with an event stream whose only event is an error."""
    await call.send(stream, [FAILURE])


@streaming("echo-key")
async def echo_key(call: Completion, stream: EventSourceResponse) -> None:
    """Answer with a text that contains the credential of the request."""
    credential = call.request.headers.get("Authorization", "").removeprefix("Bearer ")
    call.words = ["The", "key", "was", credential]
    await words(call, stream)


@mode("silent")
async def silent(call: Completion) -> web.StreamResponse:
    """Accept the request and never answer."""
    await forever()


@mode("slow-first")
async def slow_first(call: Completion) -> web.StreamResponse:
    """Wait for fifty times the pace before the status line; then like words."""
    await asyncio.sleep(call.pace_s * SLOW_FIRST_PACES)
    return await ANSWERS["words"](call)


@mode("html")
async def html(call: Completion) -> web.StreamResponse:
    """Answer 200 with an HTML page."""
    return web.Response(text="<!doctype html><title>Please sign in</title>", content_type="text/html")


@mode("json")
async def whole_json(call: Completion) -> web.StreamResponse:
    """Answer 200 with the complete answer as JSON, although the request asks for a stream."""
    return web.json_response(call.whole())


@mode("gzip")
async def gzipped(call: Completion) -> web.StreamResponse:
    """Compress the stream with gzip, although the request does not accept that."""
    events = "".join(f"data: {event}\n\n" for event in call.text() + call.ending())
    return web.Response(
        body=gzip.compress(events.encode()), content_type="text/event-stream", headers={"Content-Encoding": "gzip"}
    )


@mode("loading")
async def loading(call: Completion) -> web.StreamResponse:
    """Refuse with 503 as llama.cpp does while it loads a model."""
    return refusal(503, LOADING, {})


@mode("redirect")
async def redirect(call: Completion) -> web.StreamResponse:
    """Answer 307 with another address on the same host."""
    raise web.HTTPTemporaryRedirect("/v1/elsewhere")


def _refusing(status: int, code: str, message: str) -> None:
    headers = {"Retry-After": "7"} if status == 429 else {}
    kind = "server_error" if status >= 500 else "invalid_request_error"
    body = error(code, message, type=kind, param="model" if status == 404 else None)

    @mode(str(status), f"Refuse with {status} and a JSON error: {message}")
    async def refuse(call: Completion) -> web.StreamResponse:
        return refusal(status, body, headers)


for _status, (_code, _message) in REFUSALS.items():
    _refusing(_status, _code, _message)

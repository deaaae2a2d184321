"""The kinds of upstreams: how each answers, what a caller may see of it, and what may be charged for it."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

HEAD: Final = (
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nx-request-id: {}\r\n\r\n"
)
DEFAULT_WORDS: Final = 12
PICTURE_TOKENS: Final = 1000


class Close(Exception):
    """The connection ends here, by FIN; after `transport.abort()` by RST."""


class Served(msgspec.Struct):
    """The upstream's account of one request. `prompt` and `output`: the tokens that it worked on until now.

    `told`: the usage that it sent last. `final`: that usage was sent at or after the finish. `finished`: the whole answer was
    sent. `left`: the gateway closed the connection before.
    """

    tag: str
    kind: str
    at: float
    text_bytes: int
    body_bytes: int
    pictures: bool
    prompt: int = 0
    output: int = 0
    output_bytes: int = 0
    told: tuple[int, int] | None = None
    final: bool = False
    begun: bool = False
    finished: bool = False
    left: bool = False

    def __post_init__(self) -> None:
        self.prompt = 3 + self.text_bytes // 5


class Call:
    """One request to be answered. `requests`: the requests on this connection, with this one."""

    def __init__(
        self,
        body: dict[str, Any],
        served: Served,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        requests: int,
        credential: str,
    ) -> None:
        self.credential = credential
        self.body = body
        self.served = served
        self.reader = reader
        self.writer = writer
        self.requests = requests
        self.words = min(int(body.get("words", DEFAULT_WORDS)), int(body.get("max_tokens") or 1 << 30))
        self.pace_s = float(body.get("pace", 0))

    async def head(self) -> None:
        self.served.begun = True
        self.writer.write(HEAD.format(self.served.tag).encode())

    async def data(self, data: bytes) -> None:
        self.writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await self.writer.drain()

    async def event(self, fields: dict[str, Any]) -> None:
        await self.data(b"data: %b\n\n" % json.dumps(fields, separators=(",", ":")).encode())

    async def chunk(self, delta: dict[str, Any], finish: str | None = None, **fields: Any) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        await self.event({"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [choice], **fields})

    async def text(self, words: int, **fields: Any) -> None:
        """Send a chunk with the role, and one for each word."""
        await self.chunk({"role": "assistant", "content": ""}, **fields)
        for number in range(words):
            if self.pace_s:
                await asyncio.sleep(self.pace_s)
            word = f" w{number:04}"
            self.served.output += 1
            self.served.output_bytes += len(word)
            await self.chunk({"content": word}, **fields)

    def usage(self, output: int | None = None, *, final: bool = True) -> dict[str, int]:
        """Return the usage to send, and note that it was sent."""
        prompt, told = self.served.prompt, self.served.output if output is None else output
        self.served.told, self.served.final = (prompt, told), final
        return {"prompt_tokens": prompt, "completion_tokens": told, "total_tokens": prompt + told}

    async def usage_chunk(self, output: int | None = None) -> None:
        options = self.body.get("stream_options") or {}
        if options.get("include_usage"):
            usage = self.usage(output)
            await self.event({"id": "c", "object": "chat.completion.chunk", "choices": [], "usage": usage})

    async def done(self) -> None:
        await self.data(b"data: [DONE]\n\n")
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    async def plain(
        self, status: int, body: bytes, media_type: str = "application/json", headers: str = "", *, close: bool = False
    ) -> None:
        """Send a response that is no event stream."""
        lines = f"HTTP/1.1 {status} X\r\nContent-Type: {media_type}\r\nContent-Length: {len(body)}\r\n{headers}"
        self.writer.write(f"{lines}x-request-id: {self.served.tag}\r\n\r\n".encode() + body)
        await self.writer.drain()
        if close:
            raise Close

    async def hold(self) -> None:
        await asyncio.Event().wait()


class Kind(msgspec.Struct, frozen=True):
    """A kind of upstream. `ends`: what its callers may see where nothing was injected, as `Seen` is put into words.

    `charge`: `exact` as told at the end, `larger` of told and estimated, `estimate`, or `nothing`. `short`: its channel has
    short timers.
    """

    name: str
    answer: Callable[[Call], Awaitable[None]]
    ends: frozenset[str]
    charge: str = "exact"
    short: bool = False


KINDS: Final[dict[str, Kind]] = {}
WHOLE: Final = "whole"


def kind(
    name: str, *ends: str, charge: str = "exact", short: bool = False
) -> Callable[[Callable[[Call], Awaitable[None]]], Callable[[Call], Awaitable[None]]]:
    """Register a kind. Where no end is a whole answer the channel may cool down."""

    def register(answer: Callable[[Call], Awaitable[None]]) -> Callable[[Call], Awaitable[None]]:
        allowed = frozenset(ends or (WHOLE,))
        if WHOLE not in allowed:
            allowed |= {"503 model_unavailable"}
        KINDS[name] = Kind(name, answer, allowed, charge, short)
        return answer

    return register


async def whole(call: Call) -> None:
    """Answer in full. With `stream: false`, one JSON object."""
    if not call.body.get("stream"):
        call.served.output = call.words
        choice = {"index": 0, "message": {"role": "assistant", "content": "w " * call.words}, "finish_reason": "stop"}
        await call.plain(200, json.dumps({"id": "c", "choices": [choice], "usage": call.usage()}).encode())
        return
    await call.head()
    await call.text(call.words)
    await call.chunk({}, "stop")
    await asyncio.sleep(float(call.body.get("late", 0)))
    await call.usage_chunk()
    await call.done()


for _name in ("words", "proxied", "spare", "exact", "seasonal", "managed"):
    kind(_name)(whole)


async def thinks(call: Call, *, openly: bool) -> None:
    """Think a thought for each word, then send the words. The usage tells both."""
    await call.head()
    thoughts = call.words
    for number in range(thoughts):
        await asyncio.sleep(max(call.pace_s, 0.01))
        call.served.output += 1
        if openly:
            thought = f" t{number:04}"
            call.served.output_bytes += len(thought)
            await call.chunk({"reasoning_content": thought})
        else:
            await call.data(b": thinking\n\n")
    await call.text(call.words)
    await call.chunk({}, "stop")
    await asyncio.sleep(float(call.body.get("late", 0)))
    await call.usage_chunk()
    await call.done()


@kind("thinks-unseen")
async def thinks_unseen(call: Call) -> None:
    await thinks(call, openly=False)


@kind("thinks-openly")
async def thinks_openly(call: Call) -> None:
    await thinks(call, openly=True)


@kind("usage-beside")
async def usage_beside(call: Call) -> None:
    await call.head()
    await call.text(call.words)
    await call.chunk({}, "stop", usage=call.usage())
    await call.done()


@kind("usage-twice")
async def usage_twice(call: Call) -> None:
    await call.head()
    await call.text(call.words)
    await call.chunk({}, "stop", usage=call.usage(1))
    await call.usage_chunk()
    await call.done()


@kind("usage-in-choice")
async def usage_in_choice(call: Call) -> None:
    await call.head()
    await call.text(call.words)
    choice = {"index": 0, "delta": {}, "finish_reason": "stop", "usage": call.usage()}
    await call.event({"id": "c", "choices": [choice]})
    await call.done()


@kind("usage-early", charge="larger")
async def usage_early(call: Call) -> None:
    await call.head()
    await call.chunk({"role": "assistant"}, usage=call.usage(0, final=False))
    await call.text(call.words)
    await call.chunk({}, "stop")
    await call.done()


@kind("usage-zero", charge="larger")
async def usage_zero(call: Call) -> None:
    await call.head()
    zero = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    await call.text(call.words, usage=zero)
    await call.chunk({}, "stop", usage=zero)
    await call.done()


@kind("usage-never", charge="estimate")
async def usage_never(call: Call) -> None:
    await call.head()
    await call.text(call.words)
    await call.chunk({}, "stop")
    await call.done()


@kind("no-done")
async def no_done(call: Call) -> None:
    await call.head()
    await call.text(call.words)
    await call.chunk({}, "stop", usage=call.usage())
    call.writer.write(b"0\r\n\r\n")


@kind("logprobs", charge="estimate")
async def with_logprobs(call: Call) -> None:
    """Send twenty alternatives with each word, and no usage."""
    await call.head()
    await call.chunk({"role": "assistant", "content": ""})
    for number in range(call.words):
        word = f" w{number:04}"
        top = [{"token": f"{word}{each}", "logprob": -1.5, "bytes": list(range(40))} for each in range(20)]
        call.served.output += 1
        call.served.output_bytes += len(word)
        logprobs = {"content": [{"token": word, "logprob": -1.5, "bytes": list(range(6)), "top_logprobs": top}]}
        choice = {"index": 0, "delta": {"content": word}, "logprobs": logprobs, "finish_reason": None}
        await call.event({"id": "c", "choices": [choice]})
    await call.chunk({}, "stop")
    await call.done()


@kind("huge-event")
async def huge_event(call: Call) -> None:
    """Send one event of 1.5 MB among usual ones."""
    await call.head()
    await call.text(call.words)
    call.served.output_bytes += 1_500_000
    await call.chunk({"content": "x" * 1_500_000})
    await call.chunk({}, "stop")
    await call.usage_chunk()
    await call.done()


@kind("closes-on-reuse")
async def closes_on_reuse(call: Call) -> None:
    """Close a connection without an answer when a second request comes on it."""
    if call.requests > 1:
        raise Close
    await whole(call)


@kind("compressed", "502 upstream_error", charge="nothing")
async def compressed(call: Call) -> None:
    body = gzip.compress(b'data: {"choices":[]}\n\ndata: [DONE]\n\n')
    await call.plain(200, body, "text/event-stream", "Content-Encoding: gzip\r\n")

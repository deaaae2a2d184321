"""Random requests of callers and answers of an upstream, ordinary and odd, as bytes."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Final, Self, cast

import msgspec

MODELS: Final = ("words",) * 12 + ("tiered", "fast", "two", "helped", "free", "alias", "none", "vectors")
JSON_HEAD: Final = b"HTTP/1.1 %d Answer\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
STREAM_HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LENGTH: Final = re.compile(rb"(?i)\r\ncontent-length: (\d+)")
START: Final = '"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"fake-model"'
WORDS: Final = ("a", " word", "\u00e9", ' "quoted"', " \\n", " and so on", "x" * 300)
REFUSALS: Final = (400, 401, 402, 403, 404, 429, 500, 503)
USAGES: Final = (
    {"prompt_tokens": 7, "completion_tokens": 9, "total_tokens": 16},
    {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, "prompt_tokens_details": {"cached_tokens": 2}},
    {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    {"prompt_tokens": 10**6, "completion_tokens": 10**6, "total_tokens": 2 * 10**6},
    *({"prompt_tokens": -1, "completion_tokens": 4}, {"prompt_tokens": 2}, None),
)
ODD_BODIES: Final = (
    *(b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"model":"words"}', b'{"model":1,"messages":[]}'),
    b'{"model":"words","model":"free","messages":[{"role":"user","content":"hi"}],"stream":true}',
    b'{"model":"words","messages":[{"role":"user","content":"hi"}],"stream":true,"stream":false}',
    b'{"model":"words","messages":[{"role":"user","content":"hi"}],"stream":true,"max_tokens":0}',
    b'{"model":"words","messages":[{"role":"user","content":"hi"}],"stream":true,"n":1e9}',
    b'{"model":"words","messages":[{"role":"user","content":"hi"}],"stream":true,"max_output_tokens":3}',
    b'{"model":"words","messages":[{"role":"user","content":"\\ud800"}],"stream":true}',
    b'\xef\xbb\xbf{"model":"words","messages":[{"role":"user","content":"hi"}],"stream":true}',
    b'{"model":"w\\u006frds","messages":[{"role":"user","content":"hi"}],"stream":true}',
    b' {"messages" : [ {"content":"hi","role":"user"} ] , "stream":true,"model":"words"} \n',
)


class Answer(msgspec.Struct, frozen=True):
    """What an upstream writes for a request, then whether it closes the connection."""

    writes: tuple[bytes, ...]
    closes: bool = False


class Upstream:
    """An upstream that plays the answers that it is given, the last of them again and again, and keeps what it has received."""

    def __init__(self) -> None:
        self.base_url, self._host = "", b""
        self.received: list[bytes] = []
        self._answers: Sequence[Answer] = ()
        self._open: set[asyncio.Transport] = set()

    @classmethod
    @asynccontextmanager
    async def listening(cls) -> AsyncIterator[Self]:
        """Yield an upstream on a free port."""
        upstream = cls()
        server = await asyncio.get_running_loop().create_server(lambda: Answering(upstream), "127.0.0.1", 0)
        host = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        upstream.base_url, upstream._host = f"http://{host}/v1", host.encode()
        async with server:
            yield upstream
            for transport in list(upstream._open):
                transport.abort()

    def play(self, answers: Sequence[Answer]) -> None:
        """Begin with the first of these answers, and keep what comes from now on."""
        self.received, self._answers = [], answers

    def answer(self, request: bytes) -> Answer:
        self.received.append(request.replace(self._host, b"", 1))
        return self._answers[min(len(self.received), len(self._answers)) - 1]


class Answering(asyncio.Protocol):
    """A connection of the gateway."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._received = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # one of uvloop's is no subclass
        self._upstream._open.add(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._upstream._open.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        length = LENGTH.search(head)
        if found and length and len(body) >= int(length[1]):
            request, self._received = self._received, b""
            self._write(self._upstream.answer(request), 0)

    def _write(self, answer: Answer, number: int) -> None:
        """Write one part, and the next one in another turn of the loop."""
        if self._transport is None or self._transport.is_closing():
            return
        if number < len(answer.writes):
            self._transport.write(answer.writes[number])
        if number + 1 < len(answer.writes):
            asyncio.get_running_loop().call_soon(self._write, answer, number + 1)
        elif answer.closes:
            self._transport.close()


def drawn_request(chance: Random, token: str) -> list[bytes]:
    """Return a request in the parts in which it is sent, most of them ordinary and whole."""
    path, body = drawn_body(chance)
    lines = [f"POST {path} HTTP/1.1", "Host: gateway", *drawn_credential(chance, token)]
    if chance.random() < 0.98:
        lines.append("Content-Type: application/json")
    if chance.random() < 0.06:
        lines.append(f"X-Client-Request-Id: {chance.choice(('my-own', 'another', 'x' * 600))}")
    if chance.random() < 0.3:
        lines.append('User-Agent: agent "of" mine/%d')
    if chance.random() < 0.03:
        lines.append("Connection: close")
    head = ("\r\n".join(lines) + f"\r\nContent-Length: {len(body)}\r\n\r\n").encode()
    if chance.random() < 0.03:
        return [head, body] if body else [head]
    return [head + body]


def drawn_credential(chance: Random, token: str) -> list[str]:
    """Return the headers of a credential, in most requests the right one."""
    draw = chance.random()
    if draw < 0.94:
        return [f"Authorization: Bearer {token}"]
    return chance.choice(
        (
            [f"x-api-key: {token}"],
            [f"authorization: bearer {token}"],
            [f"Authorization: Bearer {token}", f"x-api-key: {token}"],
            [f"Authorization: Bearer {token}", f"Authorization: Bearer {token}"],
            [f"Authorization: Bearer {token[:-1]}{'a' if token[-1] != 'a' else 'b'}"],
            ["Authorization: Bearer sk-wrong"],
            ["Authorization: Basic eDp5"],
            [],
        )
    )


def drawn_body(chance: Random) -> tuple[str, bytes]:
    """Return the path of an operation, and a body."""
    if chance.random() < 0.04:
        return "/v1/chat/completions", chance.choice(ODD_BODIES)
    model = chance.choice(MODELS)
    if model == "vectors" and chance.random() < 0.8:
        return "/v1/embeddings", json.dumps({"model": model, "input": ["one text"] * chance.choice((1, 3))}).encode()
    content = "word " * chance.choice((1, 1, 3, 3, 60, 600))
    if chance.random() < 0.03:
        content = "x" * chance.choice((5_000, 70_000, 200_000))
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": content}]}
    if chance.random() < 0.97:
        body["stream"] = chance.random() < 0.85
    for field, value, share in (
        ("max_tokens", chance.choice((1, 7, 100, 5000)), 0.4),
        ("max_completion_tokens", 5, 0.05),
        ("n", 2, 0.06),
        ("temperature", 0.5, 0.2),
        ("user", "me", 0.1),
        ("tools", [{"type": "function", "function": {"name": "f", "parameters": {}}}], 0.05),
        ("service_tier", chance.choice(("priority", "auto", "flex")), 0.04),
        ("stream_options", {"include_usage": chance.random() < 0.8}, 0.3),
        ("messages", [], 0.02),
    ):
        if chance.random() < share:
            body[field] = value
    indent = 1 if chance.random() < 0.1 else None
    return "/v1/chat/completions", json.dumps(body, indent=indent, ensure_ascii=chance.random() < 0.5).encode()


def drawn_answers(chance: Random, pieces: Sequence[bytes]) -> tuple[Answer, ...]:
    """Return the answers to the attempts of a request: most of them one, of the kind that it asks for."""
    draw = chance.random()
    if draw < 0.06:
        return (*(failure(chance) for _ in range(chance.choice((1, 1, 2)))), stream(chance))
    if draw < 0.1:
        return (failure(chance),)
    streams = b'"stream": true' in pieces[-1]
    return (stream(chance) if streams is (draw < 0.98) else whole(chance),)


def failure(chance: Random) -> Answer:
    """Return an answer without an answer of a model."""
    draw = chance.random()
    if draw < 0.1:
        return Answer((b"",), closes=True)
    if draw < 0.2:
        page = b"<!doctype html><title>Please sign in</title>"
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % len(page)
        return Answer((head + page,))
    status = chance.choice(REFUSALS)
    error = {"error": {"message": f"refused with {status}", "type": "some_error", "param": None, "code": "some_code"}}
    raw = json.dumps(error).encode() if chance.random() < 0.8 else b"nothing to read"
    return Answer((JSON_HEAD % (status, len(raw), raw),))


def whole(chance: Random) -> Answer:
    """Return a complete answer as JSON."""
    usage = chance.choice(USAGES)
    message = {"role": "assistant", "content": "".join(chance.choices(WORDS, k=3))}
    made: dict[str, Any] = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "fake-model"}
    made["choices"] = [{"index": 0, "message": message, "finish_reason": "stop"}]
    if chance.random() < 0.1:
        made = {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}], "model": "x"}
    if usage is not None:
        made["usage"] = usage
    raw = json.dumps(made).encode()
    raw = raw[: chance.randrange(1, len(raw))] if chance.random() < 0.05 else raw
    return Answer((JSON_HEAD % (200, len(raw), raw),))


def event(choices: str, more: str = "") -> str:
    return f'data: {{{START},"choices":[{choices}]{more}}}\n\n'


def stream(chance: Random) -> Answer:
    """Return a stream of events, most of them ordinary."""
    words = [f'{{"index":0,"delta":{{"content":{json.dumps(w)}}},"finish_reason":null}}' for w in
             chance.choices(WORDS, k=chance.choice((0, 1, 2, 5, 5, 12)))]  # fmt: skip
    events = [event('{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}'), *map(event, words)]
    usage = chance.choice((USAGES[0],) * 6 + USAGES)
    finish = '{"index":0,"delta":{},"finish_reason":"stop"}'
    told = f',"usage":{json.dumps(usage)}'
    place = chance.random()
    tier = f',"service_tier":"{chance.choice(("default", "priority"))}"' if chance.random() < 0.1 else ""
    if place < 0.2:
        events.append(event(finish, told + tier))
    else:
        events += [event(finish, tier), *([event("", told)] if usage is not None else ())]
    if place > 0.95:
        events.append(event("", f',"usage":{json.dumps(USAGES[0])}'))
    events.append("data: [DONE]\n\n")
    draw, closes = chance.random(), False
    if draw < 0.02:
        events.insert(chance.randrange(len(events)), 'data: {"error":{"message":"no","code":"server_error"}}\n\n')
    elif draw < 0.04:
        del events[chance.randrange(len(events)) :]
    elif draw < 0.05:
        events.pop()
    elif draw < 0.06:
        events.insert(
            chance.randrange(len(events)), chance.choice(("data: {damaged\n\n", ": comment\n\n", "data: {}\n\n"))
        )
    raw = "".join(events).encode()
    if draw > 0.95:
        raw = raw.replace(b"\n", b"\r\n")
    parts = [raw] if chance.random() < 0.5 else [each.encode() for each in events] if draw <= 0.95 else [raw]
    writes = [b"%x\r\n%b\r\n" % (len(part), part) for part in parts if part] + [b"0\r\n\r\n"]
    if 0.06 <= draw < 0.07:  # the connection ends before the answer
        del writes[chance.randrange(len(writes)) :]
        closes = True
    writes[:0] = [STREAM_HEAD]
    if chance.random() < 0.7:
        writes = [b"".join(writes)]
    return Answer(tuple(writes), closes)

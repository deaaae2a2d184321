"""Translation for upstreams of another dialect: the body of a request, and one answer as chunks of a chat completion.

The events that the dialect reads become chunks; the framing, the order and the end of the stream are made here. The first chunk
waits for something that a caller can see, so that an upstream that begins with an error has not begun.

The calls of a dialect's methods are checked, and a failure is logged with its plugin, method, file and line.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NoReturn

import msgspec

from gateway.base.errors import Refused, render
from gateway.base.log import log, place_of
from gateway.chain.chain import provider_of
from gateway.chain.entry import error_text
from gateway.chat.dialect import AnswerDelta, AnswerReader, ChatRequest, Dialect, unsupported
from gateway.chat.fields import CEILINGS
from gateway.chat.request import SMALL_BYTES, Body, BodyPart, FixedFields
from gateway.chat.sse import EVENT_BOUNDARY
from gateway.chat.usage import MAX_KEPT, Counts, ReportedUsage, read_counts
from gateway.domain.facts import Candidate

MAX_EVENT: Final = 1 << 20
"""Bytes of an event that is waited for."""
DONE: Final = b"data: [DONE]\n\n"
TOO_LONG: Final = "an event is too long"

_encoder: Final = msgspec.json.Encoder()

MAX_DELTAS: Final = 10_000
"""Deltas that a reader may give for one event: a reader without end would stop the worker."""


_DELTA_TYPES: Final[Mapping[str, tuple[type, str]]] = {
    "id": (str, "a string"),
    "model": (str, "a string"),
    "message": (Mapping, "a mapping"),
    "finish_reason": (str, "a string"),
    "usage": (Mapping, "a mapping"),
    "reported": (bytes, "bytes"),
    "error": (Mapping, "a mapping"),
    "status": (int, "a number"),
}
_TEXTS: Final = ("content", "refusal", "reasoning_content")

DEFAULT_MAX_TOKENS: Final = 4096
"""The limit that is sent where neither the caller nor the model has one: other APIs require it."""
_OWN: Final = frozenset(("model", "stream", "stream_options", "n", *CEILINGS))
_thread: Final = ThreadPoolExecutor(1, "dialect")
_top: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Translation:
    """The events of one answer. `usage` gets each report as soon as it arrives."""

    def __init__(self, dialect: Dialect, usage: ReportedUsage, request_id: str = "", model: str = "") -> None:
        """Raises `DialectFailed` where the dialect gives no reader. `model`: as the caller named it."""
        self.streams = dialect.streams
        """The types of a response that is a stream."""
        self._default = {"id": request_id and f"chatcmpl-{request_id}", "model": model}
        self.reported = b""
        """The usage object as the upstream wrote it."""
        self.noted: Counts | None = None
        """The usage that was noted last."""
        self.status = 0
        """The status that goes with an error in the stream; 0 for no error, or one without."""
        self._calls = DialectCalls(dialect, request_id)
        self._reader = self._calls.reader()
        self._usage = usage
        self._pending = bytearray()
        self._id = self._model = ""
        self._created = int(time.time())
        self._begun = self._finished = self._ended = False
        self._last_usage: bytes = b""

    def feed(self, data: bytes) -> bytes:
        """Take data from the upstream, and return the chunks of the events that it completes."""
        return b"".join(self.each(data))

    def each(self, data: bytes) -> Iterator[bytes]:
        """Yield the same for each of these events. One that is not asked for is not read."""
        searched = len(self._pending)
        self._pending += data
        while not self._ended:
            try:
                frame = self._calls.frame(self._pending, searched)
            except DialectFailed:
                yield self._fail("an event cannot be read")
                return
            size, name, text = frame or (len(self._pending), "", b"")
            if size > MAX_EVENT:
                yield self._fail(TOO_LONG)
            if frame is None:
                return
            if not self._ended:
                yield self._translate(name, text)
            del self._pending[:size]
            searched = 0

    def close(self) -> tuple[bytes, bool]:
        """Return what the clean end of the upstream's data completes, and whether that end cut no event."""
        rest = bytes(self._pending).rstrip(b"\r\n")
        if self._ended or not rest:
            return b"", True
        whole = bool(EVENT_BOUNDARY.search(bytes(self._pending) + b"."))
        self._pending.clear()
        try:
            frame = self._calls.frame(bytearray(rest + b"\n\n"), 0)
            whole = frame is not None and (whole or self._is_end(*frame[1:]))
        except DialectFailed:
            whole = False
        return (b"".join(self.each(rest + b"\n\n")), True) if whole else (b"", False)

    def _is_end(self, name: str, data: bytes) -> bool:
        """Return whether an event that lacks only its last line ends is the end of an answer that is finished by now."""
        deltas = list(self._deltas(name, data))
        finished = self._finished or any(delta.finish_reason for delta in deltas)
        return finished and any(delta.done for delta in deltas)

    def _translate(self, name: str, data: bytes) -> bytes:
        chunks = b""
        try:
            for delta in self._deltas(name, data):
                chunks += self._chunks(delta)
                if self._ended:
                    break
        except DialectFailed:
            chunks += self._fail("an event cannot be read")
        except (TypeError, ValueError, RecursionError) as error:
            self._calls.note_wrong("read", f"gave what JSON does not have: {error_text(error)}", self._reader)
            chunks += self._fail("an event cannot be read")
        return chunks

    def _deltas(self, name: str, data: bytes) -> Iterator[AnswerDelta]:
        return self._calls.deltas(self._reader, name, data) if data else iter(())

    def _chunks(self, delta: AnswerDelta) -> bytes:
        self._id, self._model = self._id or delta.id, self._model or delta.model
        if delta.error:
            self._ended, self.status = True, delta.status
            return _error(delta.error)
        chunks = b""
        if delta.message:
            self._last_usage = b""  # it does not count this
        if delta.message or delta.finish_reason:
            chunks += self._chunk(dict(delta.message), delta.finish_reason or None)
        self._finished = self._finished or bool(delta.finish_reason)
        if delta.usage:
            chunks += self._report(delta)
        if delta.done and not self._finished:
            return chunks + self._fail("it ends without a reason")
        if delta.done:
            self._ended = True
            chunks += self._last_usage + DONE
        return chunks

    def _chunk(self, message: dict[str, Any], finish_reason: str | None) -> bytes:
        if not self._begun:
            self._begun = True
            message = {"role": "assistant", **(message or {"content": ""})}
        return self._event(choices=[{"index": 0, "delta": message, "finish_reason": finish_reason}])

    def _report(self, delta: AnswerDelta) -> bytes:
        """Return the chunk with the usage, once the answer is finished. Before, only its numbers are noted.

        A usage with numbers that are no counts is not shown to the caller: what it tells is the least that is charged.
        """
        self.reported = delta.reported if len(delta.reported) <= MAX_KEPT else b""
        self._last_usage = b""
        counts = read_counts(encoded(delta.usage))
        chunk = self._event(choices=[], usage=_with_total(delta.usage))
        if self._finished and (counts is None or counts.certain):
            return chunk
        if counts is not None:
            self.noted = counts
            self._usage.add(counts, final=False)
            self._last_usage = chunk if counts.certain else b""
        return b""

    def _event(self, **members: object) -> bytes:
        id_, model = self._id or self._default["id"], self._model or self._default["model"]
        head = {"id": id_, "object": "chat.completion.chunk", "created": self._created, "model": model}
        return b"data: %b\n\n" % encoded(head | members)

    def _fail(self, what: str) -> bytes:
        self._ended = True
        error = Refused(502, "upstream_error", f"The upstream's answer is not in its dialect: {what}.")
        return b"data: %b\n\n" % render(error, self._calls.request_id)


def encoded(value: Any) -> bytes:
    """Return JSON. Half of a character, of which the other may follow, is written as an escape."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value).encode()


def _error(error: Any) -> bytes:
    """Return an error event in the shape that client libraries raise on: every field is text."""
    text = {name: str(error.get(name) or "") or None for name in ("type", "param", "code")}
    message = str(error.get("message") or "no reason given")
    return b"data: %b\n\n" % encoded({"error": {"message": message, **text}})


class DialectFailed(Exception):
    """A method of a dialect raised, or returned a wrong value. It is logged. `plugin`: the plugin that provides the dialect."""

    def __init__(self, plugin: str) -> None:
        super().__init__(plugin)
        self.plugin = plugin


class DialectCalls:
    """The methods of a dialect, for one request. Each raises `DialectFailed` where the dialect's own fails."""

    def __init__(self, dialect: Dialect, request_id: str = "") -> None:
        self.dialect = dialect
        self.request_id = request_id

    def request(self, chat: ChatRequest) -> bytes:
        """Return the body to send. Raises `Refused` for what the dialect refuses."""
        try:
            body = self.dialect.request(chat)
        except Refused:
            raise
        except BaseException as error:
            self._failed("request", error)
        if not isinstance(body, bytes) or not body:
            self._wrong("request", f"returned {_shown(body)}, not the bytes of a body")
        return body

    def reader(self) -> AnswerReader:
        """Return a reader for one answer."""
        try:
            reader = self.dialect.reader()
        except BaseException as error:
            self._failed("reader", error)
        if not callable(getattr(reader, "read", None)):
            self._wrong("reader", f"returned {_shown(reader)}, not an AnswerReader")
        return reader

    def frame(self, data: bytearray, searched: int) -> tuple[int, str, bytes] | None:
        """Return the first event of the data, or None while it is not complete."""
        try:
            frame = self.dialect.frame(data, searched)
            size, name, text = frame or (1, "", b"")
            right = 0 < size <= len(data) and type(name) is str and type(text) is bytes
        except BaseException as error:
            self._failed("frame", error, quiet=True)
        if not (right or frame is None):
            self._wrong("frame", f"returned {frame!r:.100}, not the size, the name and the data of an event")
        return frame

    def error(self, status: int, body: bytes) -> tuple[int, bytes]:
        """Return the status and the body of an error in OpenAI's terms."""
        try:
            said: Any = self.dialect.error(status, body)
        except BaseException as error:
            self._failed("error", error)
        if not (isinstance(said, tuple) and len(said) == 2 and type(said[0]) is int and isinstance(said[1], bytes)):
            self._wrong("error", f"returned {_shown(said)}, not a status and the bytes of a body")
        if not 400 <= said[0] <= 599:
            self._wrong("error", f"returned the status {said[0]}, not one from 400 to 599")
        return said

    def deltas(self, reader: AnswerReader, name: str, data: bytes) -> Iterator[AnswerDelta]:
        """Yield what an event says."""
        try:
            read: Any = reader.read(name, data)
            if not isinstance(read, Iterable):
                self._wrong("read", f"returned {_shown(read)}, not AnswerDeltas: yield them, or return a list", reader)
            for number, delta in enumerate(read):
                if number == MAX_DELTAS:
                    self._wrong("read", f"gave more than {MAX_DELTAS} AnswerDeltas for one event", reader)
                if wrong := _wrong_delta(delta):
                    self._wrong("read", wrong, reader)
                yield delta
        except (DialectFailed, GeneratorExit):
            raise
        except BaseException as error:  # what the upstream sent may be the cause, so that its text is not logged
            self._failed("read", error, quiet=True)

    def _failed(self, method: str, error: BaseException, *, quiet: bool = False) -> NoReturn:
        note = log.warning if quiet else log.error
        said = {"error": type(error).__name__} if quiet else {"exc_info": error}
        note("dialect_failed", **self._where(method), at=place_of(error), request_id=self.request_id, **said)
        raise DialectFailed(provider_of(self.dialect)) from None

    def _wrong(self, method: str, reason: str, owner: object = None) -> NoReturn:
        self.note_wrong(method, reason, owner)
        raise DialectFailed(provider_of(self.dialect))

    def note_wrong(self, method: str, reason: str, owner: object) -> None:
        """Log what is wrong with a value that a method of the dialect, or of the `owner`, gave."""
        at = _place(getattr(owner or self.dialect, method))
        log.error("dialect_failed", **self._where(method), at=at, request_id=self.request_id, reason=reason)

    def _where(self, method: str) -> dict[str, str]:
        return {"plugin": provider_of(self.dialect), "dialect": self.dialect.name, "method": method}


def _wrong_delta(delta: object) -> str:
    """Return the fault of a delta that a reader gave; empty for none."""
    if not isinstance(delta, AnswerDelta):
        return f"gave {_shown(delta)}, not an AnswerDelta"
    for name, (kind, meant) in _DELTA_TYPES.items():
        if not isinstance(value := getattr(delta, name), kind):
            return f"gave an AnswerDelta whose `{name}` is {_shown(value)}, not {meant}"
    for name in _TEXTS:
        if not isinstance(value := delta.message.get(name), str | None):
            return f"gave a message whose `{name}` is {_shown(value)}, not a string"
    if not isinstance(calls := delta.message.get("tool_calls"), list | tuple | None):
        return f"gave a message whose `tool_calls` is {_shown(calls)}, not a list"
    return ""


def _shown(value: object) -> str:
    return "None" if value is None else f"a value of the type {type(value).__name__}"


def _place(method: Callable[..., object]) -> str:
    code = getattr(inspect.unwrap(method), "__code__", None)
    return "" if code is None else f"{code.co_filename}, line {code.co_firstlineno}"


def foreign_chat(body: Body, model: str, max_tokens: int, fixed: FixedFields | None = None) -> ChatRequest:
    """Return the request for a dialect, without fields that the channel drops or sets. Raises `Refused` for several answers."""
    if body.n > 1:
        raise unsupported("n", "'n' must be 1 for this model: its upstream gives one answer.")
    fields = {name: value for name, value in body.top.items() if name not in _OWN}
    if fixed is not None:
        fields = {name: value for name, value in fields.items() if not fixed.replaces(name)}
    return ChatRequest(model, body.max_tokens or max_tokens, fields)


async def foreign_parts(calls: DialectCalls, body: Body, candidate: Candidate) -> list[BodyPart]:
    """Return the body to send. Raises `Refused` for a request that cannot be said in the dialect, and `DialectFailed`.

    A large one is written in a thread, one at a time: several would keep the interpreter from the event loop for longer.
    """
    ceiling = candidate.max_output_tokens or DEFAULT_MAX_TOKENS
    fixed = candidate.channel.fields
    chat = foreign_chat(body, candidate.model, ceiling, fixed)
    if body.size <= SMALL_BYTES:
        return [_written(calls, chat, fixed)]
    return [await asyncio.get_running_loop().run_in_executor(_thread, _written, calls, chat, fixed)]


def _written(calls: DialectCalls, chat: ChatRequest, fixed: FixedFields | None) -> bytes:
    text = calls.request(chat)
    if fixed is None:
        return text
    top = _top.decode(text)
    fixed.apply(top)
    return msgspec.json.encode(top)


def _with_total(usage: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a usage with its total, which client libraries read."""
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if "total_tokens" in usage or type(prompt) is not int or type(completion) is not int:
        return usage
    return {**usage, "total_tokens": prompt + completion}

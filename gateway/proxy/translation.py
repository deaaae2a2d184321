"""One answer of an upstream of another dialect, as the chat completion chunks that a caller gets. Sans-I/O.

What the dialect reads in an event becomes chunks; the framing, the order and the end of the stream are made here. The first chunk
waits for something that a caller can see, so that an upstream that begins with an error has not begun.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from gateway.chat.counts import MAX_KEPT, Counts, read_counts
from gateway.chat.dialect import AnswerDelta, Dialect
from gateway.chat.sse import EVENT_BOUNDARY, boundary_pattern, parse_event, whole_events
from gateway.chat.usage import ReportedUsage
from gateway.proxy.dialect_calls import DialectCalls, DialectFailed

MAX_EVENT: Final = 1 << 20
"""Bytes of an event that is waited for."""
DONE: Final = b"data: [DONE]\n\n"
TOO_LONG: Final = "an event is too long"

_encoder: Final = msgspec.json.Encoder()


class Translation:
    """The events of one answer. `usage` gets what is known of it before the answer is finished."""

    def __init__(self, dialect: Dialect, usage: ReportedUsage, request_id: str = "") -> None:
        """Raises `DialectFailed` where the dialect gives no reader."""
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
        if self._ended:
            return
        searched = max(0, len(self._pending) - 3)
        self._pending += data
        if boundary_pattern(self._pending, searched).search(self._pending, searched) is None:
            if len(self._pending) > MAX_EVENT:
                yield self._fail(TOO_LONG)
            return
        yield from self._take(bytes(self._pending))

    def close(self) -> tuple[bytes, bool]:
        """Return what the clean end of the upstream's data completes, and whether that end cut no event."""
        rest = bytes(self._pending).rstrip(b"\r\n")
        if self._ended or not rest:
            return b"", True
        if EVENT_BOUNDARY.search(bytes(self._pending) + b".") or self._is_end(rest):
            return b"".join(self._take(rest + b"\n\n")), True
        return b"", False

    def _is_end(self, event: bytes) -> bool:
        """Return whether an event that lacks only its last line ends is the end of an answer that is finished."""
        if not self._finished:
            return False
        try:
            return any(delta.done for delta in self._deltas(event))
        except DialectFailed:
            return False

    def _take(self, data: bytes) -> Iterator[bytes]:
        end = 0
        for event in whole_events(data):
            end += len(event)
            yield self._translate(event) if len(event) <= MAX_EVENT else self._fail(TOO_LONG)
            if self._ended:
                break
        self._pending[:] = data[end:]

    def _translate(self, event: bytes) -> bytes:
        chunks = b""
        try:
            for delta in self._deltas(event):
                chunks += self._chunks(delta)
                if self._ended:
                    break
        except DialectFailed:
            chunks += self._fail("an event cannot be read")
        except (TypeError, ValueError, RecursionError) as error:
            self._calls.note_unwritable(self._reader, error)
            chunks += self._fail("an event cannot be read")
        return chunks

    def _deltas(self, event: bytes) -> Iterator[AnswerDelta]:
        name, data = parse_event(event)
        return self._calls.deltas(self._reader, name.decode("ascii", "replace"), data) if data else iter(())

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
        counts = read_counts(_encode(delta.usage))
        chunk = self._event(choices=[], usage=delta.usage)
        if self._finished and (counts is None or counts.certain):
            return chunk
        if counts is not None:
            self.noted = counts
            self._usage.add(counts, final=False)
            self._last_usage = chunk if counts.certain else b""
        return b""

    def _event(self, **members: object) -> bytes:
        head = {"id": self._id, "object": "chat.completion.chunk", "created": self._created, "model": self._model}
        return b"data: %b\n\n" % _encode(head | members)

    def _fail(self, what: str) -> bytes:
        self._ended = True
        return _error({"message": f"The upstream's answer is not in its dialect: {what}.", "type": "upstream_error"})


def _encode(value: Any) -> bytes:
    """Return JSON. Half of a character, of which the other may follow, is written as an escape."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value).encode()


def _error(error: Any) -> bytes:
    """Return an error event in the shape that client libraries raise on: every field is text."""
    text = {name: str(error.get(name) or "") or None for name in ("type", "param", "code")}
    message = str(error.get("message") or "no reason given")
    return b"data: %b\n\n" % _encode({"error": {"message": message, **text}})

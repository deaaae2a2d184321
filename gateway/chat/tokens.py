"""How many tokens an answer came to, where no upstream says. Sans-I/O.

At least one for each event. An upstream that sends several tokens in one is found by its bytes: the first events tell how
many bytes of each are frame and how much of the rest is text told once, since some upstreams repeat it within an event.
What all events have beyond their frames comes to a token for every four bytes of text.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Final

import msgspec

from gateway.chat.sse import data_of, whole_events

BYTES_PER_TOKEN: Final = 4
"""What a token of text comes to."""
SAMPLE: Final = 4096
"""Bytes of output kept to learn how much of an event is text."""

_NOT_TEXT: Final = frozenset({"role", "type", "id", "finish_reason", "native_finish_reason", "logprobs"})


class Output:
    """The events of an answer that are output."""

    __slots__ = ("_sample", "bytes", "events")

    def __init__(self) -> None:
        self.events = 0
        self.bytes = 0
        self._sample = b""

    def add(self, data: bytes, events: int) -> None:
        """Count so many whole events."""
        self.events += events
        self.bytes += len(data)
        if len(self._sample) < SAMPLE:
            self._sample += data[: SAMPLE - len(self._sample)]

    def tokens(self) -> int:
        """The estimate; 0 only when there was no output."""
        sampled = [(len(event), _texts_of(event)) for event in whole_events(self._sample)]
        told = sum(len(text) for _, texts in sampled for text in texts)
        once = sum(len(text) for _, texts in sampled for text in set(texts))
        frame = (sum(size for size, _ in sampled) - told) / max(1, len(sampled))
        text = max(0.0, self.bytes - self.events * frame) * (once / told if told else 1)
        return max(self.events, ceil(text / BYTES_PER_TOKEN))


class _Chunk(msgspec.Struct):
    choices: object = None


_chunk = msgspec.json.Decoder(_Chunk)


def _texts_of(event: bytes) -> list[bytes]:
    try:
        choices = _chunk.decode(data_of(event)[1]).choices
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []
    return [text.encode() for text in _texts_in(choices)]


def _texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts_in(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name not in _NOT_TEXT:
                yield from _texts_in(item)

"""An estimate of the output tokens of a response whose upstream reports no usage. Sans-I/O.

The estimate is at least one token for each event. Some upstreams send several tokens in one event, so the text is measured
too: a sample of the first events shows how many bytes of an event are JSON around the text, and how much of the text is not
a repetition, since some upstreams send it twice in an event. Four bytes of text count as one token.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Final

import msgspec

from gateway.chat.sse import parse_event, whole_events

BYTES_PER_TOKEN: Final = 4
"""Bytes of text that count as one token."""
SAMPLE_BYTES: Final = 4096
"""Bytes of output that are stored to measure how much of an event is text."""

_NOT_TEXT: Final = frozenset({"role", "type", "id", "finish_reason", "native_finish_reason", "logprobs"})


class OutputCounter:
    """The output events of a response: how many, their bytes, and a sample of the first ones."""

    __slots__ = ("_sample", "bytes", "events")

    def __init__(self) -> None:
        self.events = 0
        self.bytes = 0
        self._sample = b""

    def add(self, data: bytes, events: int) -> None:
        """Count `events` complete events, whose bytes are `data`."""
        self.events += events
        self.bytes += len(data)
        if len(self._sample) < SAMPLE_BYTES:
            self._sample += data[: SAMPLE_BYTES - len(self._sample)]

    def tokens(self) -> int:
        """Return the estimated number of tokens; 0 only if there was no output."""
        sampled = [(len(event), _parse_texts(event)) for event in whole_events(self._sample)]
        text_bytes = sum(len(text) for _, texts in sampled for text in texts)
        distinct_bytes = sum(len(text) for _, texts in sampled for text in set(texts))
        overhead = (sum(size for size, _ in sampled) - text_bytes) / max(1, len(sampled))
        distinct_share = distinct_bytes / text_bytes if text_bytes else 1
        text = max(0.0, self.bytes - self.events * overhead) * distinct_share
        return max(self.events, ceil(text / BYTES_PER_TOKEN))


class _Chunk(msgspec.Struct):
    choices: object = None


_chunk = msgspec.json.Decoder(_Chunk)


def _parse_texts(event: bytes) -> list[bytes]:
    try:
        choices = _chunk.decode(parse_event(event)[1]).choices
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []
    return [text.encode() for text in _find_texts(choices)]


def _find_texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _find_texts(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name not in _NOT_TEXT:
                yield from _find_texts(item)

"""An estimate of the output tokens of a response whose upstream reports no usage. Sans-I/O.

- The text of an answer is counted (content, reasoning, refusals, the names and arguments of tool calls), four bytes as one
  token, but never less than one token for each event with text. What surrounds the text is not counted. Text that an event
  repeats in a second field is counted once. Where an event has log probabilities, it has one token for each of them.
- Only a sample of the events is parsed, and only when an estimate is needed. The sample is spread over the whole stream: when
  it is full, every second read leaves it, and from then on half as many are taken.
- Other events have the mean tokens of the sample, and a token for every four bytes by which they are longer: nearly always, all
  that varies is the text. Where they have log probabilities, the bytes say nothing.
- A large event is parsed when it arrives: it may be a long text, or a picture or encrypted reasoning.

`Template` is all but the text that nearly all events of a stream have in common. An event that begins and ends like an earlier
one, with neither a quote nor a line end in between, has another text in the same JSON string. Nothing has to be looked for in it
that was not in the earlier one, except what may be in a text.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from math import ceil
from typing import Any, Final

import msgspec

from gateway.base import search
from gateway.chat import sse
from gateway.chat.sse import FIRST_CHOICE, LINE_FEED, parse_event, whole_events
from gateway.chat.usage import BYTES_PER_TOKEN

MAX_SAMPLES: Final = 16
"""Reads in the sample, most of them of one event."""
MAX_SAMPLE: Final = 4096
"""Bytes of one with several events; a longer one is divided."""
MAX_SAMPLED: Final = 8192
LARGE: Final = 1024
"""Bytes above which an event is measured when it arrives."""
_large = LARGE
"""The same as a number of C, where this is compiled."""
MAX_UNMEASURED: Final = 4
LOGPROBS: Final = b'"logprobs":{'

_NOT_TEXT: Final = frozenset({
    *("annotations", "citations", "executed_tools", "search_results", "provider_specific_fields", "images", "image_url", "url"),
    *("role", "type", "id", "index", "object", "channel", "format", "signature", "data", "obfuscation", "logprobs"),
    *("stop_reason", "native_finish_reason", "token_id", "token_ids"),
})  # fmt: skip
"""Fields of a delta that have other strings than generated text."""

ALL: Final = sys.maxsize - 1
"""More bytes than any event has, and one less than the most that a compiled comparison takes."""
LEARN_AFTER: Final = 16
"""Events after which a template is replaced that fits no more: in the events of some upstreams, more than the text differs."""

_TEXT: Final = re.compile(rb'"(?:content|reasoning_content|reasoning)":"([^"\\]+)"')


class OutputCounter:
    """The output events of a response: how many, their bytes, and a sample of them. A few events are measured."""

    __slots__ = (
        "_measured_events",
        "_measured_least",
        "_measured_text",
        "_next",
        "_sampled_bytes",
        "_samples",
        "_stride",
        "_unmeasured",
        "_unread_bytes",
        "bytes",
        "events",
    )

    def __init__(self) -> None:
        self.events = 0
        self.bytes = 0
        self._measured_events = 0
        self._measured_least = 0
        self._measured_text = 0.0
        self._unmeasured: list[bytes] = []
        """Small events that are measured when an estimate is needed, which is seldom."""
        self._unread_bytes = 0
        self._next = 0
        self._stride = 1
        self._samples: list[bytes] = []
        self._sampled_bytes = 0

    @property
    def all_events(self) -> int:
        """The number of events, measured ones included."""
        return self.events + self._measured_events

    def add(self, data: bytes, events: int) -> None:
        """Count `events` complete events, whose bytes are `data`."""
        size, before = len(data), self.events
        if size > _large and events == 1:
            self.add_measured(data)
            return
        sampled = before + events > self._next
        if size > _large and ((sampled and size > MAX_SAMPLE) or _has_longer_event(data, LARGE)):
            for event in whole_events(data):
                self.add(event, 1)
            return
        self.bytes += size
        self.events = before + events
        if sampled:
            self._samples.append(data)
            self._sampled_bytes += size
            self._next = self.events - 1 + self._stride
            if len(self._samples) == MAX_SAMPLES or self._sampled_bytes > MAX_SAMPLED:
                self._thin_out()

    def counts(self, size: int) -> bool:
        """Count an event of so many bytes, unless it has to be looked at. Return whether it is counted."""
        if size > _large or self.events + 1 > self._next:
            return False
        self.bytes += size
        self.events += 1
        return True

    def add_unread(self, size: int) -> None:
        """Count so many bytes of an event that is too long to be read, all of them as text."""
        self._unread_bytes += size

    def add_measured(self, event: bytes) -> None:
        """Count an event that is unlike the others, so that they are not estimated by its size."""
        self._measured_events += 1
        if len(event) <= LARGE and len(self._unmeasured) < MAX_UNMEASURED:
            self._unmeasured.append(event)
        else:
            self._measure(event)

    def copy(self) -> OutputCounter:
        """Return a counter that counts on from here by itself."""
        made = OutputCounter()
        for name in self.__slots__:
            value = getattr(self, name)
            setattr(made, name, value.copy() if isinstance(value, list) else value)
        return made

    def tokens(self) -> int:
        """Return the estimated number of tokens; 0 only if there was no text."""
        while self._unmeasured:
            self._measure(self._unmeasured.pop())
        text, least = self._measured_text, float(self._measured_least)
        sampled = [event for data in self._samples for event in whole_events(data + b".")]  # it may end with \r
        if sampled:
            # The first event often has the role alone, and is unlike all others.
            first, *rest = map(event_tokens, sampled)
            text, least = text + first, least + (first > 0)
            if rest:
                events = self.events - 1
                longer = self.bytes - len(sampled[0]) - events * sum(map(len, sampled[1:])) / len(rest)
                if any(LOGPROBS in event for event in sampled):
                    longer = 0.0
                text += max(0.0, events * sum(rest) / len(rest) + longer / BYTES_PER_TOKEN)
                least += events * sum(tokens > 0 for tokens in rest) / len(rest)
        return ceil(round(max(text, least) + self._unread_bytes / BYTES_PER_TOKEN, 3))

    def _measure(self, event: bytes) -> None:
        tokens = event_tokens(event)
        self._measured_least += tokens > 0
        self._measured_text += tokens

    def _thin_out(self) -> None:
        """Remove every second read of the sample."""
        del self._samples[1::2]
        self._sampled_bytes = sum(map(len, self._samples))
        self._next = self.events - 1 + self._stride
        self._stride *= 2


def _has_longer_event(data: bytes, limit: int) -> bool:
    """Return whether one of several events, whose line ends are alike, is longer than `limit`."""
    boundary = b"\r\n\r\n" if data.endswith(b"\r\n") else b"\n\n"
    start = 0
    while len(data) - start > limit:
        end = data.rfind(boundary, start, start + limit)
        if end < 0:
            return True
        start = end + len(boundary)
    return False


def event_tokens(event: bytes) -> float:
    """Return the tokens of the text of an event."""
    return tokens_of(parse_event(event)[1])


def tokens_of(data: bytes) -> float:
    """Return the tokens of the text of a chunk or of a complete response."""
    try:
        choices = msgspec.json.decode(data, type=_Response).choices
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0
    return sum(_tokens_of_choice(choice) for choice in choices if isinstance(choice, dict))


class _Response(msgspec.Struct):
    choices: list[Any] = []


def _tokens_of_choice(choice: dict[str, Any]) -> float:
    logprobs = choice.get("logprobs")
    if isinstance(logprobs, dict):
        entries = sum(len(listed) for listed in logprobs.values() if isinstance(listed, list))
        if entries:
            return entries
    texts = {text for name in ("delta", "message", "text") for text in _find_texts(choice.get(name))}
    return sum(len(text.encode()) for text in texts) / BYTES_PER_TOKEN


def _find_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _find_texts(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name not in _NOT_TEXT:
                yield from _find_texts(item)


class Template:
    """The bytes around the text of an event."""

    __slots__ = ("_head", "_learn_at", "after", "before", "novel", "size")

    def __init__(self) -> None:
        self.before = self.after = b""
        self.size = -1
        """The size of both together; -1 if there is no template."""
        self.novel = ALL
        """How many bytes of the last relayed data may differ from all earlier events."""
        self._head = b"\r"
        """How the last event with only text began, up to its choices: often the next one begins so."""
        self._learn_at = 0

    def end_of(self, data: bytes, at: int) -> int:
        """Return where the event at `at` ends, which differs in its text alone; -1 for any other. `after` begins with a quote."""
        if self.size < 0 or not data.startswith(self.before, at):
            return -1
        at += len(self.before)
        size, text = len(data), data
        while at < size and (byte := text[at]) != 0x22:  # a constant of a module would be an object
            if byte == 0x0A or byte == 0x0D:  # noqa: PLR1714
                return -1
            at += 1
        return at + len(self.after) if data.startswith(self.after, at) else -1

    def has_only_text(self, data: bytes, limit: int) -> bool:
        """Return whether data is one complete event of a single line of `limit` bytes, with a JSON object that has only text."""
        return (
            search.find(data, b"\n", 0, len(data)) == len(data) - 2
            and data[-1] == LINE_FEED
            and (data.startswith(self._head) or self._learn_head(data))
            and len(data) <= limit
            and search.find(data, b"\r", 0, len(data)) < 0
            and sse.field_at(data, len(self._head), len(data)) < 0
        )

    def learn(self, event: bytes, events: int) -> None:
        """Keep the bytes around the text of an event that has only text, unless this was done just before. `events`: its number."""
        if events < self._learn_at:
            return
        self._learn_at = events + min(events, LEARN_AFTER) + 1
        if text := _TEXT.search(event, len(self._head)):
            data, begin, end = event, text.start(1), text.end(1)
            self.before, self.after = data[:begin], data[end : len(event)]
            self.size = len(self.before) + len(self.after)

    def forget(self) -> None:
        """Have no template any more: an event was relayed in another form than it had."""
        self.size, self._learn_at = -1, ALL

    def _learn_head(self, data: bytes) -> bool:
        """Return whether an event is a JSON object with a choice and nothing else before. Without a choice, it may be an error."""
        end = search.find(data, FIRST_CHOICE, 0, len(data)) + len(FIRST_CHOICE)
        if end < len(FIRST_CHOICE) or not data.startswith(b"data: {") or sse.field_at(data, 0, end) >= 0:
            return False
        self._head = data[:end]
        return True

"""An estimate of the output tokens of a response whose upstream reports no usage. Sans-I/O.

- The text of an answer is counted (content, reasoning, refusals, the names and arguments of tool calls), four bytes as one
  token, but never less than one token for each event with text. What surrounds the text is not counted. Text that an event
  repeats in a second field is counted once. Where an event has log probabilities, it has one token for each of them.
- Only a sample of the events is parsed, and only when an estimate is needed. The sample is spread over the whole stream: when
  it is full, every second event leaves it, and from then on half as many are taken.
- A large event is parsed when it arrives: it may be a long text, or a picture or encrypted reasoning.
- Other events outside the sample are estimated by their size, by linear regression. Where all that varies is the text, this is
  exact; where log probabilities outweigh the text, it is the mean of the sample.

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

from gateway.chat.sse import CARRIAGE_RETURN, CHOICES, FIELDS, FIRST_CHOICE, LINE_FEED, parse_event, whole_events
from gateway.chat.usage import BYTES_PER_TOKEN

BRACE: Final = ord("{")
MAX_SAMPLES: Final = 16
MIN_LARGE: Final = 1024
MAX_UNMEASURED: Final = 4
MAX_RUNS_BYTES: Final = 4096
"""Runs of events are kept as they came up to so many bytes, as an estimate is seldom needed."""
LARGE_TIMES: Final = 4
"""An event is large where it is longer than `MIN_LARGE` and so many times as long as the events of the sample on average."""

_NOT_TEXT: Final = frozenset({
    *("annotations", "citations", "executed_tools", "search_results", "provider_specific_fields", "images", "image_url", "url"),
    *("role", "type", "id", "index", "object", "channel", "format", "signature", "data", "obfuscation", "logprobs"),
    *("stop_reason", "native_finish_reason", "token_id", "token_ids"),
})  # fmt: skip
"""Fields of a delta that have other strings than generated text."""

ALL: Final = sys.maxsize
LEARN_AFTER: Final = 16
"""Events after which a template is replaced that fits no more: in the events of some upstreams, more than the text differs."""

_TEXT: Final = re.compile(rb'"(?:content|reasoning_content|reasoning)":"([^"\\]+)"')


class Sample(msgspec.Struct, frozen=True):
    """One event: its bytes, and the tokens of its text."""

    size: int
    tokens: float


class OutputCounter:
    """The output events of a response: how many, their bytes, and a sample of them. A few events are measured."""

    __slots__ = (
        "_beginning",
        "_large",
        "_measured_bytes",
        "_measured_events",
        "_measured_least",
        "_measured_text",
        "_next",
        "_runs",
        "_runs_bytes",
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
        self._beginning = b""
        """How the first event of the sample begins. It is stored once, as nearly all events begin so."""
        self._large = MIN_LARGE
        self._measured_bytes = 0
        self._measured_events = 0
        self._measured_least = 0
        self._measured_text = 0.0
        self._unmeasured: list[bytes] = []
        """Small events that are measured when an estimate is needed, which is seldom."""
        self._unread_bytes = 0
        self._next = 0
        self._runs: list[tuple[bytes, int]] = []
        """Data of several events, and how many, of which none is in the sample yet."""
        self._runs_bytes = 0
        self._stride = 1
        self._samples: list[bytes | Sample] = []

    @property
    def all_events(self) -> int:
        """The number of events, measured ones included."""
        return self.events + self._measured_events

    def add(self, data: bytes, events: int) -> None:
        """Count `events` complete events, whose bytes are `data`."""
        size = len(data)
        before = self.events
        if size > self._large or before + events > self._next:
            if events > 1 and self._keep_run(data, events):
                return
            if self._runs:
                self._split_runs()
                self.add(data, events)
                return
            if events > 1 or size > self._large:
                self._add_each(data, events)
                return
            self._samples.append(self._sample(data))
            self._next += self._stride
            if len(self._samples) == MAX_SAMPLES:
                self._thin_out()
        self.bytes += size
        self.events = before + events

    def add_unread(self, size: int) -> None:
        """Count so many bytes of an event that is too long to be read, all of them as text."""
        self._unread_bytes += size

    def add_measured(self, event: bytes) -> None:
        """Count an event that is unlike the others, so that they are not estimated by its size."""
        self._measured_events += 1
        if len(event) <= MIN_LARGE and len(self._unmeasured) < MAX_UNMEASURED:
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
        self._split_runs()
        while self._unmeasured:
            self._measure(self._unmeasured.pop())
        text, least = self._measured_text, float(self._measured_least)
        if self._samples:
            # The first event often has the role alone, and is unlike all others.
            first, *rest = map(self._measured, self._samples)
            text, least = text + first.tokens, least + (first.tokens > 0)
            if rest:
                text += _extrapolate(rest, self.events - 1, self.bytes - first.size)
                least += (self.events - 1) * sum(sample.tokens > 0 for sample in rest) / len(rest)
        return ceil(round(max(text, least, 0.0) + self._unread_bytes / BYTES_PER_TOKEN, 3))

    def _measure(self, event: bytes) -> None:
        tokens = measure(event).tokens
        self._measured_least += tokens > 0
        self._measured_text += tokens

    def _keep_run(self, data: bytes, events: int) -> bool:
        """Keep a run that is not larger than is allowed, and has no large event: that one is measured when it arrives."""
        size = self._runs_bytes + len(data)
        if size > MAX_RUNS_BYTES or self.events + events <= self._next or _has_longer_event(data, self._large):
            return False
        self._runs.append((data, events))
        self._runs_bytes = size
        self.bytes += len(data)
        self.events += events
        return True

    def _split_runs(self) -> None:
        """Count the events of the runs again, one by one."""
        runs, self._runs = self._runs, []
        self.bytes -= self._runs_bytes
        self.events -= sum(events for _, events in runs)
        self._runs_bytes = 0
        for data, events in runs:
            self._add_each(data, events)

    def _add_each(self, data: bytes, events: int) -> None:
        if self.events + events <= self._next and not _has_longer_event(data, self._large):
            self.bytes += len(data)
            self.events += events
            return
        for event in [data] if events == 1 else whole_events(data):
            if len(event) <= self._large:
                self.add(event, 1)
            else:
                self.add_measured(event)
                self._measured_bytes += len(event)
                self._large = max(MIN_LARGE, LARGE_TIMES * (self.bytes + self._measured_bytes) // self.all_events)

    def _sample(self, data: bytes) -> bytes | Sample:
        """Return the sample to keep of an event: how it goes on after its choices begin, if it begins like the first one."""
        if len(data) > MIN_LARGE or data.startswith(b"{"):
            return measure(data)
        if not self._samples:
            self._beginning = data[: data.find(CHOICES) + len(CHOICES)] if CHOICES in data else b""
        beginning = self._beginning
        return data[len(beginning) :] if data.startswith(beginning) and data[len(beginning)] == BRACE else data

    def _measured(self, sample: bytes | Sample) -> Sample:
        if isinstance(sample, Sample):
            return sample
        return measure(self._beginning + sample if sample[0] == BRACE else sample)

    def _thin_out(self) -> None:
        """Remove every second event of the sample."""
        del self._samples[1::2]
        self._stride *= 2
        self._next = len(self._samples) * self._stride


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


def measure(event: bytes) -> Sample:
    """Return the size of an event and the tokens of its text."""
    return Sample(len(event), tokens_of(parse_event(event)[1]))


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


def _extrapolate(samples: list[Sample], events: int, size: int) -> float:
    """Return the tokens of `events` events of `size` bytes together, of which `samples` are some."""
    mean_size = sum(sample.size for sample in samples) / len(samples)
    mean_tokens = sum(sample.tokens for sample in samples) / len(samples)
    variance = sum((sample.size - mean_size) ** 2 for sample in samples)
    covariance = sum((sample.size - mean_size) * (sample.tokens - mean_tokens) for sample in samples)
    slope = covariance / variance if variance else 1 / BYTES_PER_TOKEN
    slope = min(max(slope, 0.0), 1 / BYTES_PER_TOKEN)
    return max(0.0, events * mean_tokens + slope * (size - events * mean_size))


class Template:
    """The bytes around the text of an event. `EventStream.feed` compares them itself: a call would cost as much as that."""

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

    def has_only_text(self, data: bytes, limit: int) -> bool:
        """Return whether data is one complete event of a single line of `limit` bytes, with a JSON object that has only text."""
        return (
            data.find(b"\n") == len(data) - 2
            and data[-1] == LINE_FEED
            and (data.startswith(self._head) or self._learn_head(data))
            and len(data) <= limit
            and CARRIAGE_RETURN not in data
            and FIELDS.search(data, len(self._head)) is None
        )

    def learn(self, event: bytes, events: int) -> None:
        """Keep the bytes around the text of an event that has only text, unless this was done just before. `events`: its number."""
        if events < self._learn_at:
            return
        self._learn_at = events + min(events, LEARN_AFTER) + 1
        if text := _TEXT.search(event, len(self._head)):
            self.before, self.after = event[: text.start(1)], event[text.end(1) :]
            self.size = len(self.before) + len(self.after)

    def forget(self) -> None:
        """Have no template any more: an event was relayed in another form than it had."""
        self.size, self._learn_at = -1, ALL

    def _learn_head(self, data: bytes) -> bool:
        """Return whether an event is a JSON object with a choice and nothing else before. Without a choice, it may be an error."""
        end = data.find(FIRST_CHOICE) + len(FIRST_CHOICE)
        if end < len(FIRST_CHOICE) or not data.startswith(b"data: {") or FIELDS.search(data, 0, end):
            return False
        self._head = data[:end]
        return True

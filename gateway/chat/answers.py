"""Answers of upstreams: complete ones, streamed ones put together to one JSON answer, and the texts in them. Sans-I/O.

Putting a stream together:

- Texts go on where they ended. What tells which thing is meant (`role`, `type`, `id`) is taken once, and a repeated `name`, too.
  Of gpt-oss' `channel` the last one counts.
- Entries of lists go on by their `index`. Those without one are added, but parts of a text and fragments of a tool call go on.
- Of other fields the last value counts. Padding of the stream (`obfuscation`) is left out.

Texts: every string is one, but for those that say what a thing is (`role`, `type`, `id`) and for what is encoded. `DeltaReader`
reads what is about to be written to a caller: whole events, and pieces of one that is too long to wait for. Of that event, and of
one that is no JSON, nothing is read, and a delta says so. What is kept from one chunk to the next is bounded.
"""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import suppress
from math import ceil, isfinite
from typing import Any, Final, Literal, NamedTuple

import msgspec

from gateway.chat import sse, upstream_errors
from gateway.chat.request import decode, joined_halves
from gateway.chat.sse import boundary_pattern, parse_event, whole_events
from gateway.chat.tokens import tokens_of
from gateway.chat.usage import ReportedUsage

ONCE: Final = frozenset(("role", "type", "id", "format", "object"))
FIRST: Final = ("id", "created", "model")
"""Fields of a chunk of which the first value counts: those of an early chunk may be empty."""
NOT_KEPT: Final = frozenset(("choices", "object", "usage", "obfuscation", "error"))
NOT_OF_A_CHOICE: Final = frozenset(("index", "delta", "message", "text", "usage"))

Fields = dict[str, Any]

Key = tuple[int, str, int]

MOST_HALVES: Final = 256
END: Final = b"."
"""Follows the data: an event that ends with a carriage return has ended once the next byte is no line feed."""

Kind = Literal["content", "refusal", "reasoning", "tool_name", "tool_call", "transcript", "other", "unread"]

NO_TEXT: Final = frozenset(
    (
        *("role", "type", "id", "object", "model", "provider", "system_fingerprint", "service_tier", "finish_reason"),
        *(
            "native_finish_reason",
            "stop_reason",
            "format",
            "usage",
            "obfuscation",
            "signature",
            "data",
            "encrypted_content",
        ),
        *("tool_call_id", "call_id"),
    )
)
"""Fields that hold no text."""
HOLDERS: Final = (str, list, dict)
"""Types of values that may hold text."""
ENCODED: Final = ";base64,"
WITHIN: Final = 100
"""Characters at the beginning of a text in which a data URL says how it is encoded."""

KINDS: Final[dict[str, Kind]] = {
    "content": "content",
    "refusal": "refusal",
    "reasoning_content": "reasoning",
    "reasoning": "reasoning",
    "text": "content",
}
_PARTS: Final = ("text", "thinking", "refusal")
_CALLS: Final[dict[str, Kind]] = {"name": "tool_name", "arguments": "tool_call", "input": "tool_call"}


class _Pieces(list[str]):
    """A text that is not put together yet."""


class GatheredCompletion:
    """The completion of the chunks that were added."""

    def __init__(self) -> None:
        self._fields: Fields = {}
        self._choices: dict[int, Fields] = {}
        self._usage: Fields | None = None

    def add(self, data: bytes) -> None:
        """Add the data of one event. Raises `ValueError` for what is no chunk."""
        try:
            self._add(decode(data))
        except RecursionError:
            raise ValueError("nested too deeply") from None

    def encode(self) -> bytes:
        """Return the answer as JSON. Raises `ValueError` where no chunk had a choice."""
        if not self._choices:
            raise ValueError("no choice")
        answer: Fields = {name: self._fields.pop(name) for name in FIRST if name in self._fields}
        answer |= {"object": "chat.completion", "choices": [self._choices[index] for index in sorted(self._choices)]}
        for choice in answer["choices"]:
            choice["message"] = {"role": "assistant", "content": None} | choice["message"]
            calls = choice["message"].get("tool_calls")
            for call in calls if isinstance(calls, list) else ():
                if isinstance(call, dict):
                    call.pop("index", None)
        if self._usage is not None:
            answer["usage"] = self._usage
        try:
            return msgspec.json.encode(_whole({**answer, **self._fields}))
        except RecursionError:
            raise ValueError("nested too deeply") from None

    def _add(self, chunk: Any) -> None:
        if not isinstance(chunk, dict):
            raise ValueError("no chunk")
        for name, value in chunk.items():
            if name in NOT_KEPT or (name in FIRST and self._fields.get(name)):
                continue
            if value is not None or name not in self._fields:
                self._fields[name] = value
        groq = chunk.get("x_groq")
        self._note_usage(groq.get("usage") if isinstance(groq, dict) else None)
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                self._note_usage(choice.get("usage"))
                self._add_choice(choice)
        self._note_usage(chunk.get("usage"))

    def _note_usage(self, usage: object) -> None:
        if isinstance(usage, dict):
            self._usage = usage

    def _add_choice(self, choice: Fields) -> None:
        index = choice.get("index")
        index = index if isinstance(index, int) else 0
        known = self._choices.setdefault(index, {"index": index, "message": {}, "finish_reason": None})
        if isinstance(delta := choice.get("delta"), dict):
            _merge(known["message"], delta)
        for name, value in choice.items():
            if name in NOT_OF_A_CHOICE:
                continue
            if name == "logprobs" and isinstance(value, dict) and isinstance(known.get(name), dict):
                _extend(known[name], value)
            elif value or name not in known:
                known[name] = value


def _merge(into: Fields, delta: Fields) -> None:
    for name, value in delta.items():
        before = into.get(name)
        if value is None:
            into.setdefault(name, None)
        elif isinstance(value, str):
            _merge_text(into, name, value)
        elif isinstance(value, list):
            if isinstance(before, _Pieces):
                text = "".join(before)
                before = into[name] = [{"type": "text", "text": _Pieces([text])}] if text else []
            elif not isinstance(before, list):
                before = into[name] = []
            _merge_entries(before, value)
        elif isinstance(value, dict):
            if not isinstance(before, dict):
                before = into[name] = {}
            _merge(before, value)
        else:
            into[name] = value


def _merge_text(into: Fields, name: str, value: str) -> None:
    before = into.get(name)
    if name in ONCE:
        into[name] = before or value
    elif name == "channel":
        into[name] = value
    elif isinstance(before, _Pieces):
        if name != "name" or "".join(before) != value:
            before.append(value)
    elif isinstance(before, list):
        _merge_entries(before, [{"type": "text", "text": value}] if value else [])
    else:
        into[name] = _Pieces([value])


def _merge_entries(into: list[Any], entries: list[Any]) -> None:
    for entry in entries:
        if not isinstance(entry, dict):
            into.append(entry)
            continue
        known = _known(into, entry)
        if known is None:
            into.append(known := {})
        _merge(known, entry)


def _known(entries: list[Any], entry: Fields) -> Fields | None:
    """Return the entry that this one continues, or None for another one."""
    index, kind = entry.get("index"), entry.get("type")
    for last in reversed(entries):
        if not isinstance(last, dict) or (index is not None and last.get("index") != index):
            continue
        if kind and last.get("type") and kind != last["type"]:
            return None
        if index is not None or "function" in entry:
            return None if _begins_call(last, entry) else last
        is_part = isinstance(kind, str) and entry.keys() == {"type", kind} and isinstance(entry[kind], (str, list))
        return last if is_part and last.keys() == entry.keys() else None
    return None


def _begins_call(last: Fields, entry: Fields) -> bool:
    """Return whether an entry is another tool call than `last`: some upstreams give all calls the same index, or none."""
    function = entry.get("function")
    named = isinstance(function, dict) and bool(function.get("name"))
    if "index" not in entry and not entry.get("id"):
        return named
    return named and bool(entry.get("id") and last.get("id")) and entry["id"] != last["id"]


def _extend(known: Fields, more: Fields) -> None:
    """Add the tokens of log probabilities to those before."""
    for name, value in more.items():
        if isinstance(value, list) and isinstance(known.get(name), list):
            known[name] += value
        elif value is not None or name not in known:
            known[name] = value


def _whole(value: Any) -> Any:
    """Return a value with its texts put together, without half characters."""
    if isinstance(value, _Pieces):
        return _whole("".join(value))
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:  # the halves of a character may have come in two events
            return joined_halves(value)
        return value
    if isinstance(value, dict):
        return {_whole(name): _whole(each) for name, each in value.items()}
    return [_whole(each) for each in value] if isinstance(value, list) else value


class Response(msgspec.Struct, frozen=True):
    """What a response says. `text`: as it came. `error`: it is an error, although its status may be 200. `facts`: strict JSON."""

    text: bytes
    facts: bytes
    error: bool = False

    @classmethod
    def read(cls, text: bytes) -> Response | None:
        """Return the response; None where it is neither an object with `choices` nor an error.

        Raises `ValueError` for what is not JSON even to the lenient decoders of clients.
        """
        facts = strict_json(text.removeprefix(BOM_UTF8))
        value: Any = upstream_errors.decode(facts)
        if upstream_errors.is_error(value):
            return cls(text, facts, error=True)
        return cls(text, facts) if isinstance(value, dict) and isinstance(value.get("choices"), list) else None

    @property
    def usage(self) -> ReportedUsage:
        """The usage that the response reports."""
        chunk = sse.read(b"", self.facts)
        reported = ReportedUsage(service_tier=chunk.service_tier)
        if chunk.counts:
            reported.add(chunk.counts, final=True)
        return reported

    @property
    def completion_id(self) -> str:
        """The id that the upstream gave the completion."""
        return sse.id_text(sse.read(b"", self.facts).id)

    def estimate_output(self) -> int:
        """Return the estimated tokens of its text."""
        return ceil(tokens_of(self.text))


def strict_json(text: bytes) -> bytes:
    """Return JSON without infinite numbers, lone surrogates and invalid UTF-8. Raises `ValueError` for what is not JSON."""
    try:
        msgspec.json.decode(text)
        return text
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        value = json.loads(text.decode("utf-8", "replace"), parse_constant=lambda _: None, parse_float=_finite)
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _finite(text: str) -> float | None:
    value = float(text)
    return value if isfinite(value) else None


class Delta(msgspec.Struct, frozen=True):
    """The addition of one event to one text, which `key` names: texts of the same key go on where they ended.

    `kind`: `content`, `refusal`, `reasoning`, `tool_name`, `tool_call` (the arguments, or the input of a custom tool), `transcript`
    (of a sound), `other` (a text in any other field, such as `reasoning_details`), or `unread`: an event of more than a megabyte,
    which is passed on in pieces, or one that is no JSON. `choice`: the number of the answer. `call`: of the tool call. `start`:
    where in the chunk its event begins, for `exchange.stop(error, keep=delta.start)`. `field`: the field's name, with those around
    it, as in `reasoning_details.text`: several fields may be of one kind, and some clients read one of them alone.
    """

    choice: int
    kind: Kind
    text: str
    start: int
    call: int = 0
    field: str = ""

    @property
    def key(self) -> Key:
        """Return which text this is a piece of."""
        return self.choice, f"other {self.field}" if self.kind == "other" else self.kind, self.call


class DeltaReader:
    """Reads the chunks of one stream, each once, for all who ask."""

    value: Final = None
    """There is no answer in one piece."""

    __slots__ = ("_chunk", "_deltas", "_halves", "_in_overlong")

    def __init__(self) -> None:
        self._chunk = b""
        self._deltas: tuple[Delta, ...] = ()
        self._halves: dict[tuple[int, str, int], str] = {}
        """The first halves of characters whose second halves are in later events."""
        self._in_overlong = False

    def read(self, chunk: bytes | None) -> tuple[Delta, ...]:
        """Return the deltas of a chunk, in their order. The same chunk may be asked for again, until the next one."""
        if chunk is None:
            return ()
        if chunk is not self._chunk:
            self._chunk, self._deltas = chunk, tuple(self._read(chunk))
        return self._deltas

    def read_whole(self, value: Any) -> Iterator[Delta]:
        """Yield the texts of an answer in JSON. Raises `RecursionError`."""
        if value is None:
            yield Delta(0, "unread", "", 0)
        else:
            yield from self._read_value(value, 0, whole=True)

    def _read(self, chunk: bytes) -> Iterator[Delta]:
        data, at = chunk + END, 0
        if self._in_overlong:
            boundary = boundary_pattern(data).search(data)
            if boundary is None:
                return
            self._in_overlong, at = False, boundary.end()
        for event in whole_events(data[at:]):
            text = parse_event(event)[1]
            if text and text != b"[DONE]":
                yield from self._read_event(text, at)
            at += len(event)
        if at < len(chunk):
            self._in_overlong = True
            yield Delta(0, "unread", "", at)

    def _read_event(self, data: bytes, start: int) -> Iterator[Delta]:
        try:
            yield from self._read_value(decode(data), start)
        except (ValueError, RecursionError):
            yield Delta(0, "unread", "", start)

    def _read_value(self, value: Any, start: int, *, whole: bool = False) -> Iterator[Delta]:
        for choice, kind, call, field, text in texts(value, whole=whole):
            if joined := self._whole((choice, field, call), text):
                yield Delta(choice, kind, joined, start, call, field)

    def _whole(self, place: tuple[int, str, int], text: str) -> str:
        """Join a text with the half of a surrogate pair kept before it; keep a half that it ends with for the next text."""
        if not self._halves and text.isascii():
            return text
        text = self._halves.pop(place, "") + text
        if text and "\ud800" <= text[-1] <= "\udbff" and len(self._halves) < MOST_HALVES:
            self._halves[place], text = text[-1], text[:-1]
        return joined_halves(text)


class WholeAnswer:
    """An answer in one piece, which is JSON unless a plugin made it. It is decoded when it is first needed."""

    __slots__ = ("_deltas", "_is_read", "_text", "_value")

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._value: Any = None
        self._is_read = False
        self._deltas: tuple[Delta, ...] | None = None

    @property
    def value(self) -> Any:
        """What was decoded; None for what is no JSON."""
        if not self._is_read:
            self._is_read = True
            with suppress(ValueError, RecursionError):
                self._value = decode(self._text.removeprefix(BOM_UTF8))
        return self._value

    def read(self, chunk: bytes | None = None) -> tuple[Delta, ...]:
        """Return each text of the answer. There are no chunks."""
        if self._deltas is None:
            try:
                self._deltas = tuple(DeltaReader().read_whole(self.value))
            except RecursionError:
                self._deltas = (Delta(0, "unread", "", 0),)
        return self._deltas


class Text(NamedTuple):
    """A text, or a piece of one: of which choice, of which kind and tool call, and in which field."""

    choice: int
    kind: Kind
    call: int
    field: str
    text: str


def texts(value: Any, *, whole: bool = False) -> Iterator[Text]:
    """Yield the texts in decoded JSON: in an event, or, if it is `whole`, in an answer that is not streamed.

    Raises `RecursionError` for what is nested too deeply.
    """
    choices = value.get("choices") if isinstance(value, dict) else None
    if not isinstance(choices, list):
        yield from _others(0, 0, "", value)
        return
    for position, choice in enumerate(choices):
        if isinstance(choice, dict):
            index = choice.get("index")
            yield from _of_choice(index if isinstance(index, int) else position if whole else 0, choice, whole)
        else:
            yield from _others(0, 0, "choices", choice)
    if len(value) > 1:
        for name, more in value.items():
            if isinstance(more, HOLDERS) and name != "choices" and name not in NO_TEXT:
                yield from _others(0, 0, name, more)


def _of_choice(number: int, choice: dict[str, Any], whole: bool) -> Iterator[Text]:
    message = choice.get("delta")
    if isinstance(message, dict):
        yield from _of_message(number, message, "", whole)
    for name, value in choice.items():
        if name == "message" and isinstance(value, dict):
            yield from _of_message(number, value, "message." if isinstance(message, dict) else "", whole)
        elif name == "text":
            yield from _strings(number, "content", name, value)
        elif isinstance(value, HOLDERS) and name not in NO_TEXT and (name != "delta" or not isinstance(value, dict)):
            yield from _others(number, 0, name, value)


def _of_message(number: int, message: dict[str, Any], prefix: str, whole: bool) -> Iterator[Text]:
    for name, value in message.items():
        if not isinstance(value, HOLDERS):
            continue
        if (kind := KINDS.get(name)) is not None:
            if name != "reasoning" or value != message.get("reasoning_content"):  # the same text under two names
                yield from _strings(number, kind, prefix + name, value)
        elif name == "tool_calls" and isinstance(value, list):
            for position, call in enumerate(value):
                index = call.get("index") if isinstance(call, dict) else None
                yield from _of_call(number, index if isinstance(index, int) else position if whole else 0, call)
        elif name == "function_call":
            yield from _of_function(number, 0, value)
        elif name == "audio" and isinstance(value, dict):
            for field, each in value.items():
                if field == "transcript":
                    yield from _strings(number, "transcript", prefix + field, each)
                elif field not in NO_TEXT:
                    yield from _others(number, 0, f"{prefix}audio.{field}", each)
        elif name not in NO_TEXT:
            yield from _others(number, 0, prefix + name, value)


def _of_call(number: int, call: int, value: Any) -> Iterator[Text]:
    if not isinstance(value, dict):
        yield from _others(number, call, "tool_calls", value)
        return
    for name, each in value.items():
        if name in ("function", "custom"):
            yield from _of_function(number, call, each)
        elif name not in NO_TEXT:
            yield from _others(number, call, f"tool_calls.{name}", each)


def _of_function(number: int, call: int, function: Any) -> Iterator[Text]:
    if not isinstance(function, dict):
        yield from _others(number, call, "function", function)
        return
    for name, value in function.items():
        if name in _CALLS and isinstance(value, str):
            yield Text(number, _CALLS[name], call, name, value)
        elif name not in NO_TEXT:
            yield from _others(number, call, f"function.{name}", value)


def _strings(number: int, kind: Kind, field: str, value: Any) -> Iterator[Text]:
    """Yield the text of a string, or the texts in a list of parts."""
    if isinstance(value, str):
        if value:
            yield Text(number, kind, 0, field, value)
    elif isinstance(value, list):
        for part in value:
            if isinstance(part, dict):
                for name, each in part.items():
                    if name in _PARTS:
                        yield from _strings(number, kind, field, each)
                    elif name not in NO_TEXT:
                        yield from _others(number, 0, f"{field}.{name}", each)
            else:
                yield from _strings(number, kind, field, part)
    elif isinstance(value, dict):
        yield from _others(number, 0, field, value)


def _others(number: int, call: int, field: str, value: Any) -> Iterator[Text]:
    """Yield the strings of a field that has no kind of its own.

    Those of a further entry of a list begin with a line feed, unless the entry says by its `index` what it goes on with: they are
    another text. So do the tokens of log probabilities, of which the content has the text.
    """
    if isinstance(value, str):
        if value and value.find(ENCODED, 0, WITHIN) < 0:
            yield Text(number, "other", call, field, f"\n{value}" if field.startswith("logprobs") else value)
    elif isinstance(value, dict):
        index = value.get("index")
        call = index if isinstance(index, int) else call
        for name, each in value.items():
            if name not in NO_TEXT:
                yield from _others(number, call, f"{field}.{name}" if field else name, each)
    elif isinstance(value, list):
        for position, entry in enumerate(value):
            alone = position and not (isinstance(entry, dict) and isinstance(entry.get("index"), int))
            for text in _others(number, call, field, entry):
                yield text._replace(text=f"\n{text.text}") if alone else text

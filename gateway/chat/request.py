"""The body of a chat completion request: checked once, then written anew for the upstream. Sans-I/O.

- Nothing is spent before `check` returned: every refusal is a 400 that names the field and says what to do.
- What was checked is what is sent. The top level is written anew from the checked keys, so that a key given
  twice, or spelt with escapes, cannot mean one thing here and another upstream; values go on byte for byte.
- No field chooses an upstream's address or credential: only `model` is read to decide where to go.
- A whole body is never made into Python objects. Skipping a value checks its syntax fully (numbers, escapes,
  surrogate pairs, control characters), but neither the encoding of its strings nor a depth of our choice.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Final, TypeVar

import msgspec

from gateway.errors import Refused

LONGEST_MODEL_NAME: Final = 256
MESSAGE_ALLOWANCE: Final = 16
"""Tokens that a chat template may put around one message."""
REQUEST_ALLOWANCE: Final = 128
"""Tokens that a chat template may put around a whole conversation, such as a date or a system text."""

MOST_STRINGS: Final = 50_000
MOST_BRACKETS: Final = 100_000
"""A body is read while nothing else is: bounding what it holds bounds the time, about 50 ms."""
FEW_BYTES: Final = 64 * 1024

Value = TypeVar("Value")
BodyPart = bytes | memoryview


class BodyRules(msgspec.Struct, frozen=True):
    """What the operator lets through. `max_output_tokens` bounds what a caller may ask of any model."""

    allow_non_streaming: bool = False
    max_n: int = 16
    max_output_tokens: int = 1_000_000
    max_depth: int = 100


class Body(msgspec.Struct, frozen=True):
    """A body that passed `check`. `max_tokens` is the caller's ceiling for each of `n` answers, if any."""

    model: str
    stream: bool
    max_tokens: int | None
    n: int
    asked_usage: bool
    """The caller asked for the usage chunk (`stream_options.include_usage`)."""
    size: int
    """Bytes of the body as it came."""
    messages: int
    """How many messages there are."""
    stream_options: dict[str, msgspec.Raw]
    top: dict[str, msgspec.Raw]
    """The top level, each value as the caller wrote it."""

    @property
    def prompt_tokens_bound(self) -> int:
        """Upper bound of the input tokens: each stands for a byte of the body or is the chat template's.

        Text only: what an upstream fetches for itself (an image by its address, a search) is not in the body.
        """
        return self.size + self.messages * MESSAGE_ALLOWANCE + REQUEST_ALLOWANCE

    @property
    def prompt_tokens_estimate(self) -> int:
        """Likely input tokens: a token for every four bytes of the messages, rounded up."""
        return -(-len(memoryview(self.top["messages"])) // 4)

    def upstream(self, model: str, *, ask_usage: bool) -> list[BodyPart]:
        """The body to send, in order: `model` is the name there, `ask_usage` has a stream tell its usage at the end.

        What is large is a view of the body as it came, so that a body is in memory once.
        """
        top: dict[str, object] = dict(self.top)
        if model != self.model:
            top["model"] = model
        if self.stream and ask_usage and not self.asked_usage:
            top["stream_options"] = {**self.stream_options, "include_usage": True}
        elif self.stream_options:
            top["stream_options"] = self.stream_options
        return [_encode(top)] if self.size <= FEW_BYTES else _pieces(top)


class _Message(msgspec.Struct):
    role: str


_encode = msgspec.json.Encoder().encode
_top = msgspec.json.Decoder(dict[str, msgspec.Raw])
_text = msgspec.json.Decoder(str)
_messages = msgspec.json.Decoder(list[_Message])
_number = msgspec.json.Decoder(float | None)
_integer = msgspec.json.Decoder(int | None)
_boolean = msgspec.json.Decoder(bool | None)
_options = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)

_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))


def _pieces(top: dict[str, object]) -> list[BodyPart]:
    pieces: list[BodyPart] = []
    small = bytearray(b"{")
    for name, value in top.items():
        small += _encode(name) + b":"
        if isinstance(value, msgspec.Raw) and len(view := memoryview(value)) > FEW_BYTES:
            pieces += (bytes(small), view)
            small = bytearray()
        else:
            small += _encode(value)
        small += b","
    small[-1:] = b"}"
    return [*pieces, bytes(small)]


def check(raw: bytes | bytearray, rules: BodyRules) -> Body:
    """Read a body and check all that is checked before anything is spent.

    Raises `Refused` (400): `invalid_json`, `invalid_request` with the field in `param`, or `stream_required`.
    """
    top = _parse(raw, rules.max_depth)
    stream = _checked_stream(top, rules)
    model = _checked_model(top)
    messages = _field(top, "messages", _messages, "a non-empty array of objects, each with a string 'role'")
    if not messages:
        raise _wrong("messages", "'messages' is required: a non-empty array of objects, each with a string 'role'.")
    _field(top, "temperature", _number, "a number")
    options = _field(top, "stream_options", _options, "an object, or left out") or {}
    asked_usage = _field(options, "include_usage", _boolean, "true or false", within="stream_options.")
    return Body(
        model=model,
        stream=stream,
        max_tokens=_checked_ceiling(top, rules.max_output_tokens),
        n=_positive(top, "n", rules.max_n) or 1,
        asked_usage=bool(asked_usage),
        size=len(raw),
        messages=len(messages),
        stream_options=options,
        top=top,
    )


def _parse(raw: bytes | bytearray, max_depth: int) -> dict[str, msgspec.Raw]:
    if len(raw) > 2 * MOST_STRINGS and _has_more_quotes(raw, 2 * MOST_STRINGS):
        raise _too_many("strings", MOST_STRINGS)
    try:
        raw.decode()
        top = _top.decode(raw)
    except UnicodeDecodeError as error:
        raise _invalid_json(f"it is not UTF-8 (byte {error.start})") from None
    except RecursionError:
        raise _too_deep(max_depth) from None
    except msgspec.ValidationError:
        raise Refused(400, "invalid_request", "The body must be a JSON object with 'model' and 'messages'.") from None
    except msgspec.DecodeError as error:
        raise _invalid_json(str(error).removeprefix("JSON is malformed: ")) from None
    if _has_more_brackets(raw, max_depth):
        within = max_depth - 1
        if any(_has_more_brackets(value, within) and _depth(value) > within for value in map(bytes, top.values())):
            raise _too_deep(max_depth)
    return top


def _has_more_quotes(raw: bytes | bytearray, most: int) -> bool:
    """Whether more quotes open or close strings; those escaped within strings do not."""
    return raw.count(b'"') > most and raw.count(b'"') - raw.count(rb"\"") > most


def _has_more_brackets(valid: bytes | bytearray, most: int) -> bool:
    """Whether it could be nested deeper. `replace` finds a few bytes in many sooner than `count`, but many later."""
    if len(valid) > FEW_BYTES:
        return valid.count(b"{") + valid.count(b"[") > most
    return 2 * len(valid) - len(valid.replace(b"{", b"")) - len(valid.replace(b"[", b"")) > most


def _depth(valid: bytes) -> int:
    """Levels of nesting in valid JSON: without its strings, each bracket is a step up or down."""
    if b"\\" in valid:
        valid = valid.replace(rb"\\", b"").replace(rb"\"", b"")
    steps = b"".join(valid.split(b'"')[::2]).translate(_STEPS, _NOT_BRACKETS)
    if len(steps) > 2 * MOST_BRACKETS:
        raise _too_many("arrays and objects", MOST_BRACKETS)
    return max(accumulate(memoryview(steps).cast("b")), default=0)


def _checked_stream(top: dict[str, msgspec.Raw], rules: BodyRules) -> bool:
    given = top.get("stream")
    if given is not None and bytes(given) == b"true":
        return True
    if not rules.allow_non_streaming:
        raise Refused(400, "stream_required", 'Answers are streamed: add "stream": true to the body.', param="stream")
    return bool(_field(top, "stream", _boolean, "true or false"))


def _checked_model(top: dict[str, msgspec.Raw]) -> str:
    model = _field(top, "model", _text, "a string")
    if not model:
        raise _wrong("model", "'model' is required: the name of a model. GET /v1/models lists those you may use.")
    if len(model) > LONGEST_MODEL_NAME or not model.isprintable():
        raise _wrong("model", f"'model' must be at most {LONGEST_MODEL_NAME} printable characters.")
    return model


def _checked_ceiling(top: dict[str, msgspec.Raw], most: int) -> int | None:
    newer, older = _positive(top, "max_completion_tokens", most), _positive(top, "max_tokens", most)
    if newer and older and newer != older:
        raise _wrong("max_tokens", "'max_tokens' and 'max_completion_tokens' differ: send one of them.")
    return newer or older


def _positive(top: dict[str, msgspec.Raw], name: str, most: int) -> int | None:
    expected = f"a whole number from 1 to {most}"
    value = _field(top, name, _integer, expected)
    if value is not None and not 1 <= value <= most:
        raise _wrong(name, f"'{name}' must be {expected}.")
    return value


def _field(
    values: dict[str, msgspec.Raw],
    name: str,
    decoder: msgspec.json.Decoder[Value],
    expected: str,
    within: str = "",
) -> Value | None:
    raw = values.get(name)
    if raw is None:
        return None
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _wrong(within + name, f"'{within}{name}' must be {expected}: {error}.") from None


def _wrong(param: str, message: str) -> Refused:
    return Refused(400, "invalid_request", message, param=param)


def _invalid_json(why: str) -> Refused:
    return Refused(400, "invalid_json", f"The body is not valid JSON: {why}. Send a JSON object in UTF-8.")


def _too_deep(max_depth: int) -> Refused:
    return Refused(400, "invalid_request", f"The body is nested deeper than {max_depth} levels. Send it flatter.")


def _too_many(what: str, most: int) -> Refused:
    return Refused(400, "invalid_request", f"The body holds more than {most} {what}. Send fewer, larger ones.")

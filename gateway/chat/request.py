"""The body of a chat completion request: checked once, then encoded again for the upstream. Sans-I/O.

- `check` runs before anything is spent. Every refusal is a 400 that names the field and says what to do.
- The gateway sends what it checked. The top level is encoded again from the checked keys, so a duplicate key, or one
  written with escapes, cannot mean one thing here and another upstream. Checked settings are written again, too; all other
  values are sent byte for byte. What an upstream may read in place of a checked field is refused (`gateway.chat.fields`).
- No field chooses an upstream's address or credential: only `model` decides where the request goes.
- A body is never decoded to Python objects as a whole. Skipping a value checks its syntax fully (numbers, escapes,
  surrogate pairs, control characters), but neither the encoding of its strings nor its depth; both are checked here.
- A change (`changed`) sets fields and drops fields. The whole body is encoded again and goes through the same checks as one of a
  caller, so that a change can do nothing that a caller could not ask for.
- `FixedFields` are put into the top level of a body, which is encoded again in any case: the caller's other values stay as they
  are.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Mapping, MutableMapping
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal, TypeVar

import msgspec

from gateway.base.errors import GatewayError, Refused
from gateway.chat.fields import CEILINGS, check_names, check_option_names, fold_case, unpriced
from gateway.chat.prompt import (
    ABSENT,
    DEFAULTS,
    MESSAGE_ALLOWANCE,
    REQUEST_ALLOWANCE,
    SETTINGS_BYTES,
    Message,
    PartTokens,
    PromptBound,
    bound_prompt,
    check_bounds,
    check_encoding,
    estimate_tokens,
    too_deep,
)
from gateway.chat.usage import BYTES_PER_TOKEN

MAX_MODEL_NAME_LENGTH: Final = 256
SMALL_BYTES: Final = 64 * 1024
PLAIN_DEPTH: Final = 3
"""Levels of a body of texts alone."""

Value = TypeVar("Value")
BodyPart = bytes | memoryview

_encode = msgspec.json.Encoder().encode
_top = msgspec.json.Decoder(dict[str, msgspec.Raw])
_text = msgspec.json.Decoder(str)
_messages = msgspec.json.Decoder(list[Message])
_number = msgspec.json.Decoder(float | None)
_integer = msgspec.json.Decoder(int | None)
_boolean = msgspec.json.Decoder(bool | None)
_options = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)
_text_or_null = msgspec.json.Decoder(str | None)

DEFAULT_TIER: Final = "default"
AUTO_TIER: Final = "auto"
"""The service tier that the upstream chooses."""


class _OwnTool(msgspec.Struct, tag_field="type", forbid_unknown_fields=True):
    """A tool that the caller runs. An entry with anything else may be one that the upstream runs, and bills."""

    name: msgspec.Raw = ABSENT
    description: msgspec.Raw = ABSENT
    parameters: msgspec.Raw = ABSENT
    strict: msgspec.Raw = ABSENT
    cache_control: msgspec.Raw = ABSENT


class _Function(_OwnTool, tag="function"):
    function: msgspec.Raw = ABSENT


class _Custom(_OwnTool, tag="custom"):
    custom: msgspec.Raw = ABSENT


_own_tools = msgspec.json.Decoder(list[_Function | _Custom] | None)


class _TextMessage(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["system", "developer", "user", "assistant"]
    content: str


class _TextOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None


class _TextBody(msgspec.Struct, forbid_unknown_fields=True):
    """A body of texts alone, with the settings that most bodies have. One pass reads and checks it."""

    model: str
    messages: list[_TextMessage]
    stream: bool
    stream_options: _TextOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    user: str | None = None


_text_body = msgspec.json.Decoder(_TextBody).decode

FIXED: Final = frozenset({"stream", "stream_options"})
"""How the answer is delivered. The caller reads what it asked for."""

_one_value: Final = msgspec.json.Decoder(msgspec.Raw)


class BodyRules(msgspec.Struct, frozen=True):
    """The operator's limits for bodies. `max_output_tokens` is the most that a caller may request of any model.

    `allow_fields`: fields that are accepted although an upstream may read them in place of a checked one, or bill them.
    `service_tiers`: the tiers that a model has a price for. `aliases`: other names of models.
    """

    allow_non_streaming: bool = False
    allow_fields: frozenset[str] = frozenset()
    service_tiers: Mapping[str, Collection[str]] = {}
    aliases: Mapping[str, str] = {}
    max_n: int = 16
    max_output_tokens: int = 1_000_000
    max_depth: int = 100


class Body(msgspec.Struct, frozen=True):
    """A body that passed `check`. `max_tokens` is the caller's limit for each of `n` choices, if any."""

    model: str
    prompt_bound: PromptBound
    stream: bool = False
    max_tokens: int | None = None
    n: int = 0
    asked_usage: bool = False
    """The caller requested the usage chunk (`stream_options.include_usage`)."""
    size: int = 0
    """Bytes of the body as received."""
    messages: int = 0
    """The number of messages."""
    prompt_tokens_estimate: int = 0
    """An estimate of the input tokens: four bytes of the body a token, an encoded part at most 1,105."""
    _stream_options: dict[str, msgspec.Raw] = {}
    _top: dict[str, msgspec.Raw] = {}
    service_tier: str = ""
    """What the caller asked for, such as `priority` or `auto`; empty for the default."""
    unit: str = ""
    """What the operation is billed by: `image`, `second` or `character`; empty for tokens."""
    units: int = 0
    """The most of them that the request can order."""
    editable: ClassVar[bool] = True
    variant: tuple[str, ...] = ()
    """What may have a price of its own, such as the quality and the size of pictures."""

    @property
    def top(self) -> Mapping[str, msgspec.Raw]:
        """The top-level fields, each value as the caller wrote it. Empty from the first byte of the answer on."""
        return MappingProxyType(self._top)

    def prompt_tokens_bound(self, parts: PartTokens = DEFAULTS) -> int:
        """Return an upper bound of the input tokens: one for each byte of text, and what `parts` says for each encoded part.

        What an upstream fetches besides (a search, say) is not in the body.
        """
        return self.prompt_bound.tokens(parts)

    def drop_values(self) -> None:
        """Free the values, in place: whatever else refers to this body does not keep the received bytes either."""
        self._top.clear()
        self._stream_options.clear()

    def upstream(
        self,
        model: str,
        ceiling_field: str,
        ceiling: int | None,
        *,
        ask_usage: bool,
        stream: bool | None = None,
        fields: FixedFields | None = None,
    ) -> list[BodyPart]:
        """Return the body to send, in parts: `model` is the upstream's name, `ask_usage` requests the usage chunk.

        `stream` tells the upstream to stream or not; None: as the caller asked. `fields`: what the channel sets and drops.
        The limit of each choice is the caller's, else `ceiling`, and has the one name that the upstream reads. A large value
        is a view of the received body, so that its bytes are in memory once.
        """
        top: dict[str, object] = {**self._top, "model": model}
        if fields is not None:
            fields.apply(top)
        stream = self.stream if stream is None else stream
        self._settle(top, ceiling_field, self.max_tokens or ceiling, ask_usage, stream)
        return [_encode(top)] if self.size <= SMALL_BYTES else _encode_in_parts(top)

    def _settle(
        self, top: dict[str, object], ceiling_field: str, most: int | None, ask_usage: bool, stream: bool
    ) -> None:
        """Write the settings that were checked into the top level of the body to send."""
        for name in CEILINGS:
            top.pop(name, None)
        if most is not None:
            top[ceiling_field] = most
        if stream or "stream" in top:
            top["stream"] = stream
        if "n" in top:
            top["n"] = self.n
        self._add_options(top, ask_usage=stream and ask_usage)

    def _add_options(self, top: dict[str, object], *, ask_usage: bool) -> None:
        if ask_usage or "include_usage" in self._stream_options:
            top["stream_options"] = {**self._stream_options, "include_usage": ask_usage or self.asked_usage}
        elif self._stream_options:
            top["stream_options"] = self._stream_options


def _encode_in_parts(top: dict[str, object]) -> list[BodyPart]:
    parts: list[BodyPart] = []
    small = bytearray(b"{")
    for name, value in top.items():
        small += _encode(name) + b":"
        if isinstance(value, msgspec.Raw) and len(view := memoryview(value)) > SMALL_BYTES:
            parts += (bytes(small), view)
            small = bytearray()
        else:
            small += _encode(value)
        small += b","
    small[-1:] = b"}"
    return [*parts, bytes(small)]


def check(raw: bytes | bytearray, rules: BodyRules) -> Body:
    """Parse and check a body before anything is spent.

    Raises `Refused` (400): `invalid_json`, `invalid_request` with the field in `param`, or `stream_required`.
    """
    return check_texts(raw, rules) or checked(check_in_steps(raw, rules))


def checked(steps: Generator[None, None, Value]) -> Value:
    """Return the result of a check that is done without its pauses. Raises `Refused`."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Value = end.value
            return result


def check_in_steps(raw: bytes | bytearray, rules: BodyRules) -> Generator[None, None, Body]:
    """Do what `check` does, with a pause after each part that may take more than a millisecond for a large body."""
    top = yield from parse_top(raw, rules.max_depth)
    check_names(top, rules.allow_fields)
    stream = _check_stream(top, rules)
    model = check_model(top)
    yield
    _check_tools(top, rules)
    messages = field(top, "messages", _messages, "a non-empty array of objects, each with a string 'role'")
    if not messages:
        raise invalid_field(
            "messages", "'messages' is required: a non-empty array of objects, each with a string 'role'."
        )
    yield
    field(top, "temperature", _number, "a number")
    options = field(top, "stream_options", _options, "an object, or left out") or {}
    check_option_names(options)
    asked_usage = field(options, "include_usage", _boolean, "true or false", prefix="stream_options.")
    return Body(
        model=model,
        stream=stream,
        max_tokens=_check_max_tokens(top, rules.max_output_tokens),
        n=positive(top, "n", rules.max_n) or 1,
        asked_usage=bool(asked_usage),
        size=len(raw),
        messages=len(messages),
        prompt_tokens_estimate=estimate_tokens(raw, top["messages"], messages),
        prompt_bound=(yield from bound_prompt(raw, top, messages)),
        _stream_options=options,
        _top=top,
        service_tier=check_service_tier(top, model, rules),
    )


def check_texts(raw: bytes | bytearray, rules: BodyRules) -> Body | None:
    """Return the checked body of texts alone, the same as by the general check; None for any other, also for a wrong one."""
    size, escaped, escapes = len(raw), raw.find(b"\\") >= 0, 0
    if size > SMALL_BYTES or rules.max_depth < PLAIN_DEPTH or (escaped and raw.find(b"\\u") >= 0):
        return None
    try:
        body, top = _text_body(raw), _top.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    count, model, newer, older = len(body.messages), body.model, body.max_completion_tokens, body.max_tokens
    ceiling = older if newer is None else newer
    if not (body.stream and count and 0 < len(model) <= MAX_MODEL_NAME_LENGTH and model.isprintable()):
        return None
    if ceiling is not None and not (1 <= ceiling <= rules.max_output_tokens and older in (None, ceiling)):
        return None
    messages, asked = top["messages"], body.stream_options
    if escaped and (text := bytes(messages)).find(b"\\") >= 0:
        if text.count(b'"content"') != count:
            return None  # of a field that comes twice, only the last one counts
        escapes = text.count(b"\\") - text.count(rb"\\")
    return Body(
        model,
        PromptBound(size + count * MESSAGE_ALLOWANCE + REQUEST_ALLOWANCE - escapes),
        True,
        ceiling,
        1,
        asked is not None and asked.include_usage is True,
        size,
        count,
        -(-max(len(messages), size - SETTINGS_BYTES) // BYTES_PER_TOKEN),
        {} if asked is None else _options.decode(top["stream_options"]) or {},
        top,
    )


def parse_top(
    raw: bytes | bytearray, max_depth: int, needed: str = "'model' and 'messages'"
) -> Generator[None, None, dict[str, msgspec.Raw]]:
    """Return the top level of a body, whose bounds and syntax are checked. Raises `Refused`."""
    yield from check_bounds(raw, max_depth)
    try:
        yield from check_encoding(raw)
        return _top.decode(raw)
    except UnicodeDecodeError as error:
        raise _invalid_json(f"it is not UTF-8 (byte {error.start})") from None
    except RecursionError:
        raise too_deep(max_depth) from None
    except msgspec.ValidationError:
        raise Refused(400, "invalid_request", f"The body must be a JSON object with {needed}.") from None
    except msgspec.DecodeError as error:
        raise _invalid_json(str(error).removeprefix("JSON is malformed: ")) from None


def _check_stream(top: dict[str, msgspec.Raw], rules: BodyRules) -> bool:
    raw = top.get("stream")
    if raw is not None and bytes(raw) == b"true":
        return True
    if not rules.allow_non_streaming:
        text = (
            'Answers are streamed: add "stream": true to the body, or have the operator set `port.allow_non_streaming`.'
        )
        raise Refused(400, "stream_required", text, param="stream")
    return bool(field(top, "stream", _boolean, "true or false"))


def check_model(top: dict[str, msgspec.Raw]) -> str:
    """Return the model that a body names. Raises `Refused`."""
    model = field(top, "model", _text, "a string")
    if not model:
        raise invalid_field(
            "model", "'model' is required: the name of a model. GET /v1/models lists those you may use."
        )
    if len(model) > MAX_MODEL_NAME_LENGTH or not model.isprintable():
        raise invalid_field("model", f"'model' must be at most {MAX_MODEL_NAME_LENGTH} printable characters.")
    return model


def _check_tools(top: dict[str, msgspec.Raw], rules: BodyRules) -> None:
    if "tools" in top and "tools" not in rules.allow_fields:
        try:
            _own_tools.decode(top["tools"])
        except (msgspec.DecodeError, RecursionError) as error:
            remedy = f"send an array of `function` and `custom` tools, which you run yourself ({error})"
            raise unpriced("tools", remedy) from None


def check_service_tier(top: dict[str, msgspec.Raw], model: str, rules: BodyRules) -> str:
    """Return the tier that a body asks for, empty for the default. Raises `Refused` for one without a price."""
    if "service_tier" not in top:
        return ""
    tier = field(top, "service_tier", _text_or_null, "a string") or DEFAULT_TIER
    known = (DEFAULT_TIER, AUTO_TIER, *rules.service_tiers.get(model, ()))
    if tier not in known and "service_tier" not in rules.allow_fields:
        raise unpriced("service_tier", f"send {' or '.join(known)}, or leave it out")
    return "" if tier == DEFAULT_TIER else tier


def _check_max_tokens(top: dict[str, msgspec.Raw], limit: int) -> int | None:
    newer, older = positive(top, "max_completion_tokens", limit), positive(top, "max_tokens", limit)
    if newer and older and newer != older:
        raise invalid_field("max_tokens", "'max_tokens' and 'max_completion_tokens' differ: send one of them.")
    return newer or older


def positive(top: dict[str, msgspec.Raw], name: str, limit: int) -> int | None:
    """Return a number from 1 to `limit`; None where it is absent or null. Raises `Refused`."""
    if name not in top:
        return None
    expected = f"a whole number from 1 to {limit}"
    value = field(top, name, _integer, expected)
    if value is not None and not 1 <= value <= limit:
        raise invalid_field(name, f"'{name}' must be {expected}.")
    return value


def field(
    values: dict[str, msgspec.Raw],
    name: str,
    decoder: msgspec.json.Decoder[Value],
    expected: str,
    prefix: str = "",
) -> Value | None:
    """Return a decoded field; None where it is absent. Raises `Refused`, which says what is `expected`."""
    raw = values.get(name)
    if raw is None:
        return None
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid_field(prefix + name, f"'{prefix}{name}' must be {expected}: {error}.") from None


def invalid_field(param: str, message: str) -> Refused:
    """Return the error for a field that is not valid."""
    return Refused(400, "invalid_request", message, param=param)


def _invalid_json(reason: str) -> Refused:
    return Refused(400, "invalid_json", f"The body is not valid JSON: {reason}. Send a JSON object in UTF-8.")


async def changed(
    body: Body,
    fields: Mapping[str, object],
    drop: Collection[str],
    check: Callable[[bytes], Awaitable[Body]],
    editor: str,
) -> Body | None:
    """Return the body with some fields set and others dropped, checked; None where that changes nothing.

    Raises `GatewayError`, which names the plugin `editor`, for a change that is not valid, and `Refused` for one that makes the
    body too large.
    """
    try:
        raw = edited(body, fields, drop)
        return None if raw is None else await check(raw)
    except (Refused, ValueError, TypeError) as error:
        if isinstance(error, Refused) and error.status != 400:
            raise
        raise GatewayError(f"'{editor}' makes a request that is not valid: {error}") from None


def edited(body: Body, fields: Mapping[str, object], drop: Collection[str]) -> bytes | None:
    """Return a body with some fields set and others dropped, in JSON; None where that changes nothing.

    Raises `ValueError` for a field that cannot be changed, or that JSON does not have, and `Refused` for a form.
    """
    if not body.editable:
        text = (
            "This gateway changes texts before they are sent, and a form passes as it came. Send it without such texts."
        )
        raise Refused(415, "unsupported_media_type", text)
    if isinstance(drop, str):
        raise TypeError(f"`drop` is a list of names: [{drop!r}]")
    if not body.top:
        raise ValueError("the body cannot be changed any more: its values were freed")
    for name in FIXED.intersection((*fields, *drop)):
        raise ValueError(f"`{name}` cannot be changed: the caller decides how its answer is delivered")
    before = body.top
    top: dict[str, object] = dict(before)
    for name in drop:
        top.pop(name, None)
    for name, value in fields.items():
        top[name] = _in_json(name, value)
    return None if top == before else _encode(top)


class FixedFields:
    """The fields of one channel."""

    def __init__(self, always: Mapping[str, Any], never: Iterable[str]) -> None:
        self._always = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in always.items()}
        self._replaced = frozenset(map(fold_case, (*always, *never)))

    def replaces(self, name: str) -> bool:
        """Return whether a field of a caller is dropped, or set to another value."""
        return fold_case(name) in self._replaced

    def apply(self, top: MutableMapping[str, Any]) -> None:
        """Drop and set the fields of a body's top level."""
        for name in filter(self.replaces, list(top)):
            del top[name]
        top.update(self._always)

    def tokens_bound(self) -> int:
        """Return the most tokens that the fields that are set can add to a prompt."""
        if not self._always:
            return 0
        return checked(bound_prompt(msgspec.json.encode(self._always), self._always, ())).text - REQUEST_ALLOWANCE


def _in_json(name: str, value: object) -> msgspec.Raw:
    """Return a field's value in JSON. Raises `ValueError` for one that JSON does not have, such as NaN, bytes or a set."""
    try:
        name.encode()
        if isinstance(value, msgspec.Raw):
            _one_value.decode(value)  # with more than one, it could set other fields
            return value
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_decoded)
        return msgspec.Raw(text.encode())
    except (AttributeError, TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise ValueError(f"`{ascii(name)[1:-1][:64]}` is no JSON: {error}") from None


def _decoded(value: object) -> object:
    if isinstance(value, msgspec.Raw):
        return msgspec.json.decode(value)
    raise TypeError(f"a {type(value).__name__} is not JSON serializable")


def decode(data: bytes) -> Any:
    """Return a JSON value, also one with infinite numbers or half characters. Raises `ValueError`."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return json.loads(data.decode("utf-8", "replace"))


def joined_halves(text: str) -> str:
    """Return a text without half characters: two halves that meet are one character, any other is replaced."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")

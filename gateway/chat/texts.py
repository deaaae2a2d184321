"""The texts of an answer: of one event of a stream, or of a whole answer in JSON. Sans-I/O.

Every string is one, but for those that say what a thing is (`role`, `type`, `id`) and for what is encoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

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
"""What may hold text."""
ENCODED: Final = ";base64,"
WITHIN: Final = 100
"""Characters at the beginning of a text in which a data URL says how it is encoded."""

_KINDS: Final[dict[str, Kind]] = {
    "content": "content",
    "refusal": "refusal",
    "reasoning_content": "reasoning",
    "reasoning": "reasoning",
    "text": "content",
}
_PARTS: Final = ("text", "thinking", "refusal")
_CALLS: Final[dict[str, Kind]] = {"name": "tool_name", "arguments": "tool_call", "input": "tool_call"}


class Text(NamedTuple):
    """A text, or a piece of one: of which choice, of which kind and tool call, and in which field."""

    choice: int
    kind: Kind
    call: int
    field: str
    text: str


def texts(value: Any, *, whole: bool = False) -> Iterator[Text]:
    """Yield the texts of what was decoded: of an event, or, if it is `whole`, of an answer in JSON.

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
        if (kind := _KINDS.get(name)) is not None:
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
    """Yield a string, or those of a list of parts."""
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

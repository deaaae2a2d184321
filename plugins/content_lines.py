"""The lines of the content log: what a request asked, and what was answered, in JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from re import Pattern
from typing import Any, Final

import msgspec

from plugins.text_search import replace

REDACTED: Final = "[redacted]"


class Content(msgspec.Struct):
    """What one request asked and was answered, until its line is written. `about`: who asked, and how it ended.

    `events`: of a stream. `whole`: an answer that is not streamed.
    """

    messages: bytes
    events: list[bytes] = []
    whole: bytes = b""
    size: int = 0
    about: dict[str, object] = {}


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None
    input: str | None = None


class _Call(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None
    custom: _Function | None = None


class _Message(msgspec.Struct):
    content: Any = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_Call] | None = None
    function_call: _Function | None = None


class _Choice(msgspec.Struct):
    delta: _Message | None = None
    message: _Message | None = None
    index: int = 0
    finish_reason: str | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice] = []


class Said(msgspec.Struct):
    """What one choice says. `calls`: of tools, by their numbers."""

    content: str = ""
    refusal: str = ""
    reasoning: str = ""
    calls: dict[int, dict[str, str]] = {}
    finish_reason: str = ""


_answer: Final = msgspec.json.Decoder(_Answer)


def line_of(content: Content, patterns: Sequence[Pattern[str]]) -> dict[str, object]:
    """Return a line, with what matches one of `patterns` replaced. Raises `ValueError`, and what msgspec raises.

    `answers` has the text of each choice, and `tool_calls`, `refusals` and `reasoning`, where there are any, what else it says.
    """
    prompt = msgspec.json.decode(content.messages) if content.messages else None
    found = said(content.events, content.whole)
    line: dict[str, object] = {"prompt": prompt, "answers": [each.content for each in found]}
    if any(each.calls for each in found):
        line["tool_calls"] = [list(each.calls.values()) for each in found]
    if any(each.refusal for each in found):
        line["refusals"] = [each.refusal for each in found]
    if any(each.reasoning for each in found):
        line["reasoning"] = [each.reasoning for each in found]
    line["model"] = content.about.get("model", "")  # which may be any text of the caller
    return {**content.about, **{name: _redacted(value, patterns) for name, value in line.items()}}


def said(events: Iterable[bytes], whole: bytes) -> list[Said]:
    """Return what each choice says, of the events of a stream, or of a whole answer where there is one."""
    choices: dict[int, Said] = {}
    for answer in [whole] if whole else b"".join(events).splitlines():
        for choice in _choices(answer if whole else answer.removeprefix(b"data:")):
            texts = choices.setdefault(choice.index, Said())
            texts.finish_reason = choice.finish_reason or texts.finish_reason
            for message in (choice.delta, choice.message):
                if message is not None:
                    _add(texts, message)
    return list(choices.values())


def _choices(text: bytes) -> list[_Choice]:
    try:
        return _answer.decode(text).choices
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return []  # the end, a comment, or what no client reads


def _add(texts: Said, message: _Message) -> None:
    texts.content += _text(message.content)
    texts.refusal += message.refusal or ""
    texts.reasoning += message.reasoning_content or message.reasoning or ""
    for position, call in enumerate(message.tool_calls or ()):
        _add_call(texts, position if call.index is None else call.index, call.function or call.custom, call.id)
    _add_call(texts, 0, message.function_call, None)


def _add_call(texts: Said, number: int, function: _Function | None, id: str | None) -> None:  # noqa: A002
    if function is None:
        return
    call = texts.calls.setdefault(number, {"id": "", "name": "", "arguments": ""})
    call["id"] = call["id"] or id or ""
    call["name"] = call["name"] or function.name or ""
    call["arguments"] += function.arguments or function.input or ""


def _text(content: Any) -> str:
    """Return a text, or those of its parts."""
    if isinstance(content, list):
        return "".join(_text(part.get("text")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _redacted(value: Any, patterns: Sequence[Pattern[str]]) -> Any:
    """Return a value with what matches replaced, in all its texts and names."""
    if isinstance(value, str):
        return _replaced(value, patterns)
    if isinstance(value, list):
        return [_redacted(each, patterns) for each in value]
    if isinstance(value, dict):
        return {_redacted(name, patterns): _redacted(each, patterns) for name, each in value.items()}
    return value


def _replaced(text: str, patterns: Sequence[Pattern[str]]) -> str:
    """Return a text with what matches replaced, also where the text is JSON that escapes it."""
    pieces = replace(patterns, [REDACTED] * len(patterns), text, urls=False)
    while True:
        try:
            next(pieces)
        except StopIteration as ended:
            return str(ended.value)

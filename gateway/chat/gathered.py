"""A streamed completion, put together to the one JSON answer that the upstream would have given without streaming. Sans-I/O.

- Texts go on where they ended. What tells which thing is meant (`role`, `type`, `id`) is taken once, and a repeated `name`, too.
  Of gpt-oss' `channel` the last one counts.
- Entries of lists go on by their `index`. Those without one are added, but parts of a text and fragments of a tool call go on.
- Of other fields the last value counts. Padding of the stream (`obfuscation`) is left out.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gateway.chat.lenient_json import decode, joined_halves

ONCE: Final = frozenset(("role", "type", "id", "format", "object"))
FIRST: Final = ("id", "created", "model")
"""Fields of a chunk of which the first value counts: those of an early chunk may be empty."""
NOT_KEPT: Final = frozenset(("choices", "object", "usage", "obfuscation", "error"))
NOT_OF_A_CHOICE: Final = frozenset(("index", "delta", "message", "text", "usage"))

Fields = dict[str, Any]


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

"""Replaces what matches patterns in every text of a JSON value, and in the names of its fields. Sans-I/O.

A value is searched as it is decoded: of names that an object has twice the last counts, and a value that has such an object is
changed by being encoded again, so that what was not searched is not sent.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from plugins.text_search import PIECE, replace

STRING: Final = 64
"""What the search of a short text counts as, in characters."""
PAYLOADS: Final = frozenset({("input_audio", "data"), ("file", "file_data"), ("source", "data")})
"""Fields, with that of the object that they are in, whose text is a sound or a file in base64."""
_NAMES: Final = """
    model messages role content name type text refusal reasoning reasoning_content audio tool_calls tool_call_id id index
    function arguments custom input image_url url detail input_audio data format file file_id file_data filename
    cache_control stream n seed tools tool_choice functions function_call description parameters strict properties
    required items enum anyOf additionalProperties title default $ref $defs const minimum maximum response_format
    json_schema schema stop user metadata temperature top_p max_tokens logprobs max_completion_tokens parallel_tool_calls
    presence_penalty frequency_penalty logit_bias top_logprobs reasoning_effort store stream_options include_usage
    modalities prediction service_tier verbosity
"""
NAMES: Final = frozenset(_NAMES.split())
"""Names of the API, which hold nothing of a caller: no pattern changes them."""


class Found(NamedTuple):
    """A value after the search, and whether it must be sent in place of what was searched."""

    value: Any
    changed: bool


class Search:
    """The patterns, and what replaces their matches."""

    def __init__(self, patterns: Sequence[re.Pattern[str]], names: Sequence[str]) -> None:
        self._patterns = patterns
        self._names = names

    def name(self, name: str) -> Generator[None, None, str]:
        """Return the name of a field with what matches replaced."""
        return name if name in NAMES else (yield from replace(self._patterns, self._names, name))

    def value(self, raw: msgspec.Raw) -> Generator[None, None, Found]:
        """Return a value with what matches replaced, with a pause after each piece. Raises `msgspec.DecodeError`."""
        whole = [msgspec.json.decode(raw)]
        changed, strings, work = False, 0, 0
        containers: list[tuple[Any, str]] = [(whole, "")]
        while containers:
            container, within = containers.pop()
            if isinstance(container, dict):
                strings += len(container)
                changed |= yield from self._names_of(container)
                places: Any = list(container)
            else:
                places = range(len(container))
            for place in places:
                value = container[place]
                work += STRING
                if isinstance(value, str):
                    strings += 1
                    work += len(value)
                    payload = (within, place) in PAYLOADS
                    after = yield from replace(self._patterns, self._names, value, payload=payload)
                    if after is not value:
                        container[place], changed = after, True
                elif isinstance(value, (dict, list)):
                    containers.append((value, place if isinstance(place, str) else within))
                if work > PIECE:
                    work = 0
                    yield
        return Found(whole[0], changed or strings != (yield from _strings(raw)))

    def _names_of(self, container: dict[str, Any]) -> Generator[None, None, bool]:
        """Replace what matches in the names of an object, in place. Return whether anything does."""
        names, work = [], 0
        for name in container:
            names.append((yield from self.name(name)))
            work += STRING
            if work > PIECE:
                work = 0
                yield
        if names == list(container):
            return False
        values = list(container.values())
        container.clear()
        container.update(zip(names, values, strict=True))
        return True


def _strings(raw: msgspec.Raw) -> Generator[None, None, int]:
    """Return how many strings a JSON value has, those of names included."""
    view, at, quotes = memoryview(raw), 0, 0
    while at < len(view):
        piece = bytes(view[at : at + PIECE])
        if piece.endswith(b"\\") and (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece = bytes(view[at : at + PIECE + 1])  # an escape is not split
        at += len(piece)
        if b"\\" in piece:
            piece = piece.replace(rb"\\", b"").replace(rb"\"", b"")
        quotes += piece.count(b'"')
        if at < len(view) and at % (8 * PIECE) < PIECE:
            yield
    return quotes // 2

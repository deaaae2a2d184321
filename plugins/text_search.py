"""Replaces what matches patterns in a text, or in every text and name of a JSON value, in pieces, so that others can be served in
between. Sans-I/O.

- A search of a pattern sees at most `WINDOW` characters: in a longer text each piece overlaps the next, so that a match of up to
  `OVERLAP` characters is found wherever it is.
- A text may itself be JSON, such as the arguments of a tool, or quote some. Escapes in it (`\n`, `\u0040`) are searched as the
  characters that they stand for, too. A match takes each escape that it cuts with it, so that what was JSON still is.
- The payload of a data URL is passed over, at the speed at which its end is found. It has `SHORTEST` characters of base64 at
  least: what is shorter may be plain text in its place, and is searched.

A JSON value is searched as it is decoded: of names that an object has twice the last counts, and a value that has such an object
is changed by being encoded again, so that what was not searched is not sent.
"""

from __future__ import annotations

import io
import re
import sys
from bisect import bisect_right
from collections.abc import Generator, Iterable, Sequence
from contextlib import redirect_stdout
from typing import Any, Final, NamedTuple

import msgspec

PIECE: Final = 32 * 1024
OVERLAP: Final = 16 * 1024
WINDOW: Final = PIECE + OVERLAP
BEFORE: Final = 256
"""Characters before a piece that a pattern may look back at, where the piece has escapes."""
PARTS: Final = 1024
"""Parts of a text between data URLs that are searched without a pause."""
SETTLED: Final = 4 * BEFORE
"""How far before a piece no match of it can begin."""

DATA_URL: Final = ";base64,"
SHORTEST: Final = 256
_PAYLOAD: Final = re.compile(r"[A-Za-z0-9+/=_-]*")
_ESCAPE: Final = re.compile(r'(?<!\\)\\+(?:u([0-9a-fA-F]{4})|(["/bfnrt]))')
_MEANT: Final = {'"': '"', "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}

Pauses = Generator[None, None, None]

Span = tuple[int, int, int]
"""Where something matches, from and to, and the number of the pattern. The garbage collector does not look at such tuples."""

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
    modalities prediction service_tier verbosity source media_type input_schema system thinking budget_tokens dimensions
"""
NAMES: Final = frozenset(_NAMES.split())
"""Names of the API, which hold nothing of a caller: no pattern changes them."""


def pattern_of(text: str) -> re.Pattern[str]:
    """Compile the regular expression of a setting. Raises `re.error`, also for one that this Python matches wrongly.

    Before 3.11.5, `(?>...)` and a repeat that gives nothing back (`*+`) may end a match too early:
    https://github.com/python/cpython/issues/106052
    """
    if sys.version_info < (3, 11, 5):
        parsed = io.StringIO()
        with redirect_stdout(parsed):
            re.compile(text, re.DEBUG)
        if "POSSESSIVE" in parsed.getvalue() or "ATOMIC" in parsed.getvalue():
            raise re.error(
                "before 3.11.5, Python matches `(?>...)`, `*+`, `++` and `?+` wrongly: write it without them"
            )
    return re.compile(text)


def replace(
    patterns: Sequence[re.Pattern[str]], names: Sequence[str], text: str, *, payload: bool = False, urls: bool = True
) -> Generator[None, None, str]:
    """Return a text with the name of its pattern in place of each match, with a pause after each piece of a long one.

    Matches that overlap are one, of the pattern that comes first. Where nothing matches, the same object is returned. `payload`:
    the text begins with what may follow `;base64,`. `urls`: payloads of data URLs are passed over.
    """
    output, parts = _Output(text, names), 0
    at = (yield from _payload_end(text, 0)) if payload else 0
    while at < len(text):
        parts += 1
        if parts % PARTS == 0:
            yield
        begins = text.find(DATA_URL, at) if urls else -1
        end = len(text) if begins < 0 else begins + len(DATA_URL)
        yield from _search(patterns, text, at, end, output)
        at = end if begins < 0 else (yield from _payload_end(text, end))
    return output.whole()


def unescaped(text: str) -> str:
    """Return a text with the escapes of JSON in it as the characters that they stand for."""
    if "\\" not in text:
        return text
    read = _ESCAPE.sub(lambda match: _MEANT[match[2]] if match[2] else chr(int(match[1], 16)), text)
    # Characters beyond the first 65,536 are escaped in two halves.
    return read.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _payload_end(text: str, begin: int) -> Generator[None, None, int]:
    at = begin
    while True:
        match = _PAYLOAD.match(text, at, at + WINDOW)
        end = match.end() if match else at
        if end < at + WINDOW:
            return end if end - begin >= SHORTEST else begin
        at = end
        yield


def _search(patterns: Sequence[re.Pattern[str]], text: str, begin: int, end: int, output: _Output) -> Pauses:
    """Note what matches from `begin` to `end`."""
    for at in range(begin, end, PIECE):
        stop = min(end, at + WINDOW)
        next_piece = end if stop == end else at + PIECE
        spans: list[Span] = []
        escaped = None
        if text.find("\\", at, stop) >= 0:
            escaped = _Escaped(text, max(begin, at - BEFORE), stop)
        for number, pattern in enumerate(patterns):
            found = [match.span() for match in pattern.finditer(text, at, stop)]
            if escaped is not None:
                found = [escaped.widened(*span) for span in found]
                found += [escaped.span(*match.span()) for match in pattern.finditer(escaped.text)]
            spans += [(first, last, number) for first, last in found if first < last > at and first < next_piece]
            if end - begin > WINDOW:
                yield
        output.add(spans, at)
        if stop == end:
            return


class _Output:
    """A text and what matches in it so far."""

    def __init__(self, text: str, names: Sequence[str]) -> None:
        self._text = text
        self._names = names
        self._parts: list[str] = []
        self._at = 0
        self._spans: list[Span] = []
        """In order, without overlaps. What further pieces cannot change is in `_parts`."""

    def add(self, spans: Iterable[Span], at: int) -> None:
        """Add what matches in the piece from `at` on."""
        for span in sorted(spans):
            start, end, pattern = span
            while self._spans and start < self._spans[-1][1]:
                before = self._spans.pop()
                start, end, pattern = min(start, before[0]), max(end, before[1]), min(pattern, before[2])
            self._spans.append((start, end, pattern))
        settled = 0
        while settled < len(self._spans) and self._spans[settled][1] < at - SETTLED:
            settled += 1
        self._write(settled)

    def whole(self) -> str:
        """Return the text."""
        self._write(len(self._spans))
        return "".join((*self._parts, self._text[self._at :])) if self._parts else self._text

    def _write(self, count: int) -> None:
        parts: list[str] = []
        for start, end, pattern in self._spans[:count]:
            parts += (self._text[self._at : start], self._names[pattern])
            self._at = end
        del self._spans[:count]
        if parts:
            self._parts.append("".join(parts))


class _Escaped:
    """A piece of a text with its escapes read, and where in the text each of its characters is."""

    def __init__(self, text: str, begin: int, end: int) -> None:
        if (cut := text.rfind("\\", max(0, begin - 6), begin)) >= 0:  # an escape is not split
            begin = cut - BEFORE if cut > BEFORE else 0
            begin += len(text[begin:cut].rstrip("\\"))
        self._begin = begin
        self._starts: list[int] = []
        """Where in the text each escape begins."""
        self._ends: list[int] = []
        self._places: list[int] = []
        """Where in the piece its character is."""
        parts: list[str] = []
        at, length = begin, 0
        for match in _ESCAPE.finditer(text, begin, end):
            start, stop = match.span()
            parts += (text[at:start], _MEANT[match[2]] if match[2] else chr(int(match[1], 16)))
            length += start - at + 1
            self._starts.append(start)
            self._ends.append(stop)
            self._places.append(length - 1)
            at = stop
        self.text = "".join((*parts, text[at:end]))

    def widened(self, start: int, end: int) -> tuple[int, int]:
        """Return a span of the text with the whole of each escape that it cuts."""
        first, last = bisect_right(self._starts, start) - 1, bisect_right(self._starts, end - 1) - 1
        if first >= 0 and start < self._ends[first]:
            start = self._starts[first]
        if last >= 0 and end < self._ends[last]:
            end = self._ends[last]
        return start, end

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return where in the text a span of the piece is."""
        return self._place(start)[0], self._place(end - 1)[1] if start < end else 0

    def _place(self, at: int) -> tuple[int, int]:
        number = bisect_right(self._places, at) - 1
        if number >= 0 and at == self._places[number]:
            return self._starts[number], self._ends[number]
        start = self._begin + at if number < 0 else self._ends[number] + at - self._places[number] - 1
        return start, start + 1


class SearchedValue(NamedTuple):
    """A value after the search, and whether it must be sent in place of what was searched."""

    value: Any
    changed: bool


class JsonSearch:
    """The patterns, and what replaces their matches."""

    def __init__(self, patterns: Sequence[re.Pattern[str]], names: Sequence[str]) -> None:
        self._patterns = patterns
        self._names = names

    def name(self, name: str) -> Generator[None, None, str]:
        """Return the name of a field with what matches replaced."""
        return name if name in NAMES else (yield from replace(self._patterns, self._names, name))

    def value(self, raw: msgspec.Raw) -> Generator[None, None, SearchedValue]:
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
        return SearchedValue(whole[0], changed or strings != (yield from _strings(raw)))

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

"""Bounds of a body that are checked before it is parsed, since to parse it blocks the event loop. Sans-I/O.

They are generators, with a pause after each window of a large body, so that other work can be done in between.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import accumulate
from typing import Final

from gateway.errors import Refused

MAX_STRINGS: Final = 50_000
MAX_BRACKETS: Final = 100_000
"""These limits bound the time that parsing takes, to about 50 ms."""
WINDOW: Final = 64 * 1024

_BRACKETS_TO_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))

Windows = Generator[None, None, None]


def check_bounds(raw: bytes | bytearray, max_depth: int) -> Windows:
    """Raise `Refused` for a body with too many strings, arrays or objects, or one that is nested too deeply.

    The depth and the number of arrays are those of valid JSON. Of other input, they may be anything.
    """
    if len(raw) > 2 * MAX_STRINGS:
        yield from _check_strings(raw)
    opened = 0
    for at in range(0, len(raw), WINDOW):
        opened += raw.count(b"[", at, at + WINDOW) + raw.count(b"{", at, at + WINDOW)
        if opened > max_depth:
            yield from _check_brackets(raw, max_depth)
            return
        if at + WINDOW < len(raw):
            yield


def check_encoding(raw: bytes | bytearray) -> Windows:
    """Raise `UnicodeDecodeError` for what is not UTF-8. Its `start` is that of the whole."""
    at = 0
    while at < len(raw):
        end = at + WINDOW
        while end < len(raw) and raw[end] & 0xC0 == 0x80 and end > at + WINDOW - 4:  # within a character
            end -= 1
        try:
            raw[at:end].decode()
        except UnicodeDecodeError as error:
            error.start += at
            raise
        at = end
        if at < len(raw):
            yield


def too_deep(max_depth: int) -> Refused:
    """Return the error for a body that is nested too deeply."""
    return Refused(400, "invalid_request", f"The body is nested deeper than {max_depth} levels. Send it flatter.")


def _check_strings(raw: bytes | bytearray) -> Windows:
    """Count the quotes that open or close strings: escaped ones do not count."""
    quotes = 0
    for at in range(0, len(raw), WINDOW):
        quotes += raw.count(b'"', at, at + WINDOW) - raw.count(rb"\"", max(0, at - 1), at + WINDOW)
        if quotes > 2 * MAX_STRINGS:
            raise _too_many("strings", MAX_STRINGS)
        yield


def _check_brackets(raw: bytes | bytearray, max_depth: int) -> Windows:
    """Follow the depth: outside strings, each bracket is one level up or down."""
    at = depth = brackets = in_string = 0
    while at < len(raw):
        window = raw[at : at + WINDOW]
        if window[-1:] == b"\\" and (len(window) - len(window.rstrip(b"\\"))) % 2:
            window = raw[at : at + WINDOW + 1]  # an escape is not split
        at += len(window)
        if b"\\" in window:
            window = window.replace(rb"\\", b"").replace(rb"\"", b"")
        pieces = window.split(b'"')
        steps = b"".join(pieces[in_string::2]).translate(_BRACKETS_TO_STEPS, _NOT_BRACKETS)
        in_string ^= (len(pieces) - 1) % 2
        brackets += len(steps)
        if brackets > 2 * MAX_BRACKETS:
            raise _too_many("arrays and objects", MAX_BRACKETS)
        levels = list(accumulate(memoryview(steps).cast("b"), initial=depth))
        depth = levels[-1]
        if max(levels) > max_depth:
            raise too_deep(max_depth)
        if at < len(raw):
            yield


def _too_many(what: str, limit: int) -> Refused:
    return Refused(400, "invalid_request", f"The body holds more than {limit} {what}. Send fewer, larger ones.")

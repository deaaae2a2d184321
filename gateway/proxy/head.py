"""The head of a response, rendered and checked before its first byte is written."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Final

from gateway.errors import GatewayError

MAX_SHOWN: Final = 64
"""Characters of the name of an invalid header that are logged."""

_STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}
_NOT_IN_NAME: Final = re.compile(r"[^!#$%&'*+.^_`|~0-9A-Za-z-]")
_NOT_IN_VALUE: Final = re.compile(r"[^\t\x20-\x7e\x80-\xff]")
_IN_LINES: Final = bytes([*b"\t", *range(0x20, 0x7F), *range(0x80, 0x100)])
"""What the lines of headers may have besides their ends."""

OWN: Final = frozenset({"connection", "content-length", "date", "transfer-encoding", "x-request-id"})
"""Headers that the gateway writes itself. Two that say where the body ends let a client and a proxy in between disagree about that;
two ids name two requests.
"""


class InvalidHeader(GatewayError):
    """A header cannot be sent. The message names it, and does not contain its value."""


def render_head(status: int, headers: Mapping[str, str], framing: str) -> bytes:
    """Return the head of a response. `framing`: the lines of the gateway's own. Raises `InvalidHeader`."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    try:
        encoded = lines.encode("latin-1")
    except UnicodeEncodeError:
        raise _invalid(headers) from None
    # One search in all lines together costs less than one of each.
    if not _are_valid(tuple(headers)) or encoded.translate(None, _IN_LINES) != b"\r\n" * len(headers):
        raise _invalid(headers)
    start = _STATUS_LINES.get(status) or f"HTTP/1.1 {status} \r\n"
    return b"".join(((start + _date.line()).encode(), encoded, framing.encode(), b"\r\n"))


def valid_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that can be sent."""
    return {name: value for name, value in headers.items() if _is_valid(name, value)}


@lru_cache(1024)
def _are_valid(names: tuple[str, ...]) -> bool:
    """Return whether these are names of headers that can be sent. Most responses have the same ones."""
    return all(_is_valid(name, "") for name in names)


def _invalid(headers: Mapping[str, str]) -> InvalidHeader:
    """Return the error about the first header that cannot be sent."""
    name = next(name for name, value in headers.items() if not _is_valid(name, value))
    if str(name).lower() in OWN:
        return InvalidHeader(f"the response header {name!r} cannot be sent: the gateway writes its own")
    return InvalidHeader(
        f"the response header {str(name)[:MAX_SHOWN]!r} cannot be sent: a name is a token, and a value has no control "
        "characters and none outside latin-1"
    )


def _is_valid(name: str, value: str) -> bool:
    return _is_sendable(name, value) and str(name).lower() not in OWN


def _is_sendable(name: str, value: str) -> bool:
    return bool(name) and not (_NOT_IN_NAME.search(str(name)) or _NOT_IN_VALUE.search(str(value)))


class _DateLine:
    """The `Date` header line (RFC 9110, 6.6.1), formatted once a second."""

    __slots__ = ("_line", "_second")

    def __init__(self) -> None:
        self._second = -1
        self._line = ""

    def line(self) -> str:
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._line = f"Date: {formatdate(second, usegmt=True)}\r\n"
        return self._line


_date: Final = _DateLine()

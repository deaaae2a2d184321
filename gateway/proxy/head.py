"""The head of a response, rendered and checked before its first byte is written."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

from gateway.errors import GatewayError

MAX_SHOWN: Final = 64
"""Characters of the name of an invalid header that are logged."""

_STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}
_NOT_IN_NAME: Final = re.compile(r"[^!#$%&'*+.^_`|~0-9A-Za-z-]")
_NOT_IN_VALUE: Final = re.compile(r"[^\t\x20-\x7e\x80-\xff]")

FRAMING: Final = frozenset({"content-length", "transfer-encoding"})
"""Headers that say where the body ends. Two of them let a client and a proxy in between disagree about that."""


class InvalidHeader(GatewayError):
    """A header cannot be sent. The message names it, and does not contain its value."""


def render_head(status: int, headers: Mapping[str, str], framing: str) -> bytes:
    """Return the head of a response. `framing`: lines about the body and the connection. Raises `InvalidHeader`."""
    # One check of all headers together costs less than one of each, and nearly always two methods of `str` are enough.
    names, values = "".join(map(str, headers)), "".join(map(str, headers.values()))
    plain = (names + values).isascii() and names.replace("-", "").isalnum() and values.isprintable()
    if "" in headers or not (plain or (_NOT_IN_NAME.search(names) or _NOT_IN_VALUE.search(values)) is None):
        name = next(name for name, value in headers.items() if not _is_sendable(name, value))
        raise InvalidHeader(
            f"the response header {str(name)[:MAX_SHOWN]!r} cannot be sent: a name is a token, and a value has no control "
            "characters and none outside latin-1"
        )
    lowered = names.lower()
    if ("length" in lowered or "encoding" in lowered) and not FRAMING.isdisjoint(map(str.lower, headers)):
        name = next(name for name in headers if name.lower() in FRAMING)
        raise InvalidHeader(f"the response header {name!r} cannot be sent: the gateway writes its own")
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    start = _STATUS_LINES.get(status) or f"HTTP/1.1 {status} \r\n"
    return f"{start}{_date.line()}{lines}{framing}\r\n".encode("latin-1")


def valid_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that can be sent."""
    return {name: value for name, value in headers.items() if _is_valid(name, value)}


def _is_valid(name: str, value: str) -> bool:
    return _is_sendable(name, value) and name.lower() not in FRAMING


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

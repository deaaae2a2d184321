"""The bytes of a command, as a server reads them (RESP), and its error replies as exceptions.

A command is packed by a compiled function, else by hiredis. hiredis formats each part with `sprintf`: the 80 parts of a request's
commands take 110,000 instructions, a tenth of the request. The compiled function (`_pack.pyx`) returns the same bytes for a tenth
of that.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Final

from hiredis import pack_command

from gateway.base.compiled import WHY_PURE
from gateway.base.errors import StoreAway, StoreError

Argument = str | bytes | int
Command = tuple[Argument, ...]

_pack: Final = None if WHY_PURE else import_module("gateway.store.client._pack")
pack: Final[Callable[[Command], bytes]] = _pack.pack if _pack else pack_command  # type: ignore[assignment, unused-ignore]
"""Returns a command in the form in which it is sent. Raises `TypeError` for an argument of another type."""


def _fill(parts: tuple[object, ...], request_id: str, values: tuple[Argument, ...]) -> bytes:
    """Return the command of these parts: bytes, None for the id of a request, anything else for the next value."""
    given = iter(values)
    filled: list[bytes] = []
    for part in parts:
        if isinstance(part, bytes):
            filled.append(part)
        elif part is None:
            filled.append(request_id.encode())
        else:
            value = next(given)
            raw = value if isinstance(value, bytes) else str(value).encode()
            filled += (b"$%d\r\n" % len(raw), raw, b"\r\n")
    return b"".join(filled)


fill: Final[Callable[[tuple[object, ...], str, tuple[Argument, ...]], bytes]] = _pack.fill if _pack else _fill
"""Fills the holes of a command that was packed beforehand. Raises `ValueError` or `StopIteration` for too few values."""

MOMENTARY: Final = (
    *("LOADING", "MASTERDOWN", "READONLY", "OOM", "CLUSTERDOWN", "NOREPLICAS", "BUSY", "TRYAGAIN", "MISCONF", "MOVED"),
    *("NOAUTH", "WRONGPASS"),
)
"""Error codes of a server that cannot serve at the moment, or does not accept our credentials."""
REFUSED: Final = {
    "NOAUTH": "the store wants a password (NOAUTH): write it into `redis:`, as in redis://:PASSWORD@host",
    "WRONGPASS": "the store refuses the name or the password in `redis:` (WRONGPASS): correct it",
}


class UnknownScript(StoreError):
    """The store does not know the script's digest: it was restarted, or its script cache was flushed."""


class Demoted(StoreAway):
    """The server is now a replica: the new primary must be found."""


def error_of(text: str) -> Exception:
    """Return the exception for an error reply. Its text never contains the command."""
    word = text.partition(" ")[0]
    if word == "NOSCRIPT":
        return UnknownScript(word)
    if word in MOMENTARY:
        return (Demoted if word == "READONLY" else StoreAway)(REFUSED.get(word, f"the store cannot serve: {word}"))
    return StoreError(text[:200])


def with_text(packed: bytes, script: str) -> bytes:
    """Return the command that sends the text of a script (EVAL) in place of its digest (EVALSHA)."""
    count, _, _, _, _, rest = packed.split(b"\r\n", 5)
    text = script.encode()
    return b"\r\n".join((count, b"$4", b"EVAL", b"$%d" % len(text), text, rest))

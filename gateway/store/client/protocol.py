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

pack: Final[Callable[[Command], bytes]] = (
    pack_command if WHY_PURE else import_module("gateway.store.client._pack").pack  # type: ignore[assignment]
)
"""Returns a command in the form in which it is sent. Raises `TypeError` for an argument of another type."""

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

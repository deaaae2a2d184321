"""The error replies of a server, as exceptions."""

from __future__ import annotations

from typing import Final

from gateway.errors import StoreAway, StoreError

MOMENTARY: Final = (
    *("LOADING", "MASTERDOWN", "READONLY", "OOM", "CLUSTERDOWN", "NOREPLICAS", "BUSY", "TRYAGAIN", "MISCONF", "MOVED"),
    *("NOAUTH", "WRONGPASS"),
)
"""Error codes of a server that cannot serve at the moment, or does not accept our credentials."""


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
        return (Demoted if word == "READONLY" else StoreAway)(f"the store cannot serve: {word}")
    return StoreError(text[:200])

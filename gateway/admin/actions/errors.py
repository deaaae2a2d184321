"""Translation of errors to answers of the API, and back: an error has the same words and kind here and over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gateway.base.errors import GatewayError, Refused, StoreAway

PREFIX: Final = "/api/v1"
IN_USE: Final = "idempotency_key_in_use"
STATUSES: Final[Mapping[str, tuple[int, str]]] = {
    "refused": (400, "invalid_request"),
    "misconfigured": (400, "invalid_request"),
    "not_found": (404, "not_found"),
    "exists": (409, "exists"),
    "conflict": (409, "conflict"),
    "store_away": (503, "service_unavailable"),
}
"""Kinds of errors with their status and code."""
AWAY: Final = "the store does not answer. Try again; a write with the same `Idempotency-Key` is done once"


def refused(error: GatewayError) -> Refused:
    """Return an error of the gateway as the answer that says so."""
    if isinstance(error, Refused):
        return error
    status, code = STATUSES[error.kind]
    words = AWAY if error.kind == "store_away" else str(error)
    return Refused(status, code, f"{words[:1].upper()}{words[1:].removesuffix('.')}.")


def in_own_words(answer: Refused) -> GatewayError:
    """Return the error that an answer was made of: with its kind, and with its words as a command prints them."""
    kind = next((kind for kind, (_, code) in STATUSES.items() if code == answer.code), "refused")
    words = answer.message
    if not words[1:2].isupper():
        words = words[:1].lower() + words[1:]
    if not words.endswith(".."):
        words = words.removesuffix(".")
    error = StoreAway(words) if kind == "store_away" else GatewayError(words)
    error.kind = kind
    return error

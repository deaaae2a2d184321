"""Anthropic's errors, in a stream or as a response, in whatever shape they come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from gateway import AnswerDelta

STATUSES: Final[Mapping[str, int]] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""The status that a response with an error of a type has; in a stream there is none."""
MAX_DEPTH: Final = 8
MAX_MESSAGE: Final = 2000


def error_delta(data: bytes) -> AnswerDelta:
    """Return what an event with an error says. One that is not JSON is its own message."""
    kind, message = error_of(data)
    if not (message or data.startswith((b"{", b"["))):
        message = data.decode(errors="replace")[:MAX_MESSAGE]
    return AnswerDelta(error={"message": message, "type": kind, "code": kind}, status=STATUSES.get(kind, 500))


def error_of(data: bytes) -> tuple[str, str]:
    """Return the type and the message of an error in JSON. Its type is `api_error`, and its message empty, where it says none."""
    try:
        value = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        value = None
    kind = message = ""
    for _ in range(MAX_DEPTH):
        if isinstance(value, list) and value:
            value = value[0]
        if not isinstance(value, dict):
            break
        kind = _text(value, "type") or kind
        message = _text(value, "message") or _text(value, "detail") or message
        value = value.get("error")
    if isinstance(value, str):
        message = value or message
    return (kind if kind not in ("", "error") else "api_error"), message[:MAX_MESSAGE]


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""

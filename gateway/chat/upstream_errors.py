"""Errors in JSON, in the dialects of many upstreams. Sans-I/O.

An object with a `choices` list is an error only where its field `error` is true to Python, as the official client decides: an
object, a string, a number or `true`, but not 0, `false`, `null` or what is empty. Without `choices`, every other way to spell an
error counts, too: a `message`, a `detail`, a list of `errors`, and a list around the object.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

_FIELDS: Final = ("message", "type", "param", "code")
_OTHER_MESSAGES: Final = ("detail", "errors", "error_message", "error_msg")
"""Where the message is, if there is neither `error` nor `message`."""


def decode(data: bytes) -> Any:
    """Return the JSON value, or None where the data is not JSON."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def is_error(value: Any) -> bool:
    """Return whether a decoded value is an error. A chunk of content is none, whatever other fields it has."""
    if isinstance(value, list):
        return bool(value) and isinstance(value[0], dict) and is_error(value[0])
    if not isinstance(value, dict):
        return False
    error = value.get("error")
    if isinstance(value.get("choices"), list):
        return bool(error)
    named = "error" in (value.get("object"), value.get("type"))
    return bool(error) or named or bool(_message(value))


def details(value: Any) -> dict[str, str]:
    """Return the string fields `message`, `type`, `param` and `code` of a decoded error; empty where there are none."""
    if isinstance(value, list) and value:
        return details(value[0])
    if isinstance(value, str):
        return {"message": value} if value else {}
    if not isinstance(value, dict):
        return {}
    inner = value.get("error") or value
    if not isinstance(inner, dict):
        inner = {**value, "message": value.get("message") or inner}
    found = {name: inner[name] for name in _FIELDS if isinstance(inner.get(name), str)}
    message = _message(inner)
    return found | ({"message": message} if message else {})


def raises_in_clients(value: Any) -> bool:
    """Return whether client libraries raise on an event with this error: an object in `error` whose fields are strings."""
    error = value.get("error") if isinstance(value, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("message"), str) or not error["message"]:
        return False
    return all(error.get(name) is None or isinstance(error[name], str) for name in _FIELDS)


def _message(error: dict[str, Any]) -> str:
    for name in ("message", *_OTHER_MESSAGES):
        if text := _text(error.get(name)):
            return text
    return ""


def _text(value: Any) -> str:
    """Return the text of a message: a string, or the text within a list or an object as FastAPI or JSON:API writes them."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value:
        return _text(value[0])
    if isinstance(value, dict):
        return next((text for name in ("message", "msg", "detail", "error") if (text := _text(value.get(name)))), "")
    return ""

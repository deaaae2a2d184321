"""The query of a path: each parameter at most once, with a value that is accepted, or a 400 that says which one is not."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import date
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from gateway.errors import Refused
from gateway.exchange import Operation, Outcome
from gateway.request_id import check_time
from gateway.usage.pages import OWN_GROUPS
from gateway.usage.reference import ACCEPTED, is_reference

MOST: Final = 100
"""Lines of a list in one answer."""
DEFAULT: Final = 20
MAX_NAME: Final = 256
MAX_SHOWN: Final = 64
"""Characters of a wrong name that its error repeats."""

_LIMIT: Final = re.compile(r"[0-9]{1,6}")
_REQUEST: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_LINE: Final = re.compile(r"[1-9][0-9]{0,14}-[0-9]{1,18}")
_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_GROUP_NAMES: Final = {name.removesuffix("_id"): name for name in OWN_GROUPS}


class Parameter:
    """One parameter: what is accepted, in words, and how its text is read; `read` raises `ValueError` for any other."""

    def __init__(self, accepted: str, read: Callable[[str], Any]) -> None:
        self.accepted = accepted
        self.read = read


def parameters(query: str, known: Mapping[str, Parameter]) -> dict[str, Any]:
    """Return the values of the parameters that a query has, by their names. Raises `Refused`."""
    values: dict[str, Any] = {}
    for part in filter(None, query.split("&")):
        name, _, text = (_decoded(piece) for piece in part.partition("="))
        if name not in known:
            raise _wrong(f"There is no parameter {_shown(name)} here. Known: {', '.join(known)}.", name)
        if name in values:
            raise _wrong(f"Give the parameter {name} once.", name)
        try:
            values[name] = known[name].read(text)
        except ValueError:
            raise _wrong(f"The parameter {name} must be {known[name].accepted}.", name) from None
    return values


def _limit(text: str) -> int:
    if not (_LIMIT.fullmatch(text) and 1 <= int(text) <= MOST):
        raise ValueError
    return int(text)


def _request(text: str) -> str:
    if not _REQUEST.fullmatch(text):
        raise ValueError
    check_time(text)
    return text


def _line(text: str) -> str:
    if not _LINE.fullmatch(text):
        raise ValueError
    return text


def _name(text: str) -> str:
    if not 0 < len(text) <= MAX_NAME:
        raise ValueError
    return text


def _reference(text: str) -> str:
    if not is_reference(text):
        raise ValueError
    return text


def _day(text: str) -> date:
    if not _DAY.fullmatch(text):
        raise ValueError
    return date.fromisoformat(text)


def _groups(text: str) -> list[str]:
    names = text.split(",")
    if len(set(names)) != len(names) or not set(names) <= _GROUP_NAMES.keys():
        raise ValueError
    return [_GROUP_NAMES[name] for name in names]


LIMIT: Final = Parameter(f"a number from 1 to {MOST}", _limit)
AFTER_REQUEST: Final = Parameter("`next` of the answer before, which is a request's id", _request)
AFTER_LINE: Final = Parameter("`next` of the answer before", _line)
MODEL: Final = Parameter(f"a model's name, of at most {MAX_NAME} characters", _name)
OUTCOME: Final = Parameter(f"one of {', '.join(Outcome)}", Outcome)
OPERATION: Final = Parameter(f"one of {', '.join(Operation)}", Operation)
REFERENCE: Final = Parameter(f"what was sent as X-Client-Request-Id, {ACCEPTED}", _reference)
DAY: Final = Parameter("a day (UTC), as in 2026-11-21", _day)
GROUPS: Final = Parameter(f"some of {','.join(_GROUP_NAMES)}, each once, with commas between them", _groups)


def _decoded(text: str) -> str:
    with suppress(UnicodeError):
        return unquote_to_bytes(text.replace("+", " ").encode("utf-8", "surrogateescape")).decode()
    raise _wrong("The query must be UTF-8 with percent encoding.")


def _wrong(message: str, name: str | None = None) -> Refused:
    return Refused(400, "invalid_request", message, param=None if name is None else _cleaned(name))


def _shown(name: str) -> str:
    return _cleaned(name) or "without a name"


def _cleaned(name: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in name[:MAX_SHOWN])

"""Which values of Python are JSON. Sans-I/O.

An encoder writes more than JSON has: NaN as null, bytes as Base64, a set as an array, a number that is a key as a string. What was
meant would be lost without a word.
"""

from __future__ import annotations

from math import isfinite
from typing import Final

import msgspec

MOST_LEVELS: Final = 200
"""More than a body may have: that limit is checked with the whole body."""

_one_value: Final = msgspec.json.Decoder(msgspec.Raw)


def check_field(name: object, value: object) -> None:
    """Raise `ValueError` or `TypeError` for a field that JSON does not have. Lists and tuples are arrays.

    `msgspec.Raw` is one value in JSON.
    """
    if not isinstance(name, str):
        raise TypeError(f"a field is named by a {type(name).__name__}: in JSON, names are text")
    try:
        _check_text(name)
        _check(value, MOST_LEVELS)
    except (TypeError, ValueError) as error:
        raise type(error)(f"`{ascii(name[:64])[1:-1]}` {error}") from None


def _check(value: object, levels: int) -> None:
    if value is None or isinstance(value, bool | int):
        return
    if isinstance(value, str):
        _check_text(value)
    elif isinstance(value, float):
        if not isfinite(value):
            raise ValueError(f"has {value}, which JSON does not have")
    elif isinstance(value, msgspec.Raw):
        _check_raw(value)
    elif not isinstance(value, dict | list | tuple):
        raise TypeError(f"has a value of the type {type(value).__name__}, which JSON does not have")
    elif not levels:
        raise ValueError(f"is nested deeper than {MOST_LEVELS} levels")
    elif isinstance(value, dict):
        for name, each in value.items():
            if not isinstance(name, str):
                raise TypeError(f"has a name of the type {type(name).__name__}: in JSON, names are text")
            _check_text(name)
            _check(each, levels - 1)
    else:
        for each in value:
            _check(each, levels - 1)


def _check_text(text: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("has half of a surrogate pair, which UTF-8 does not have") from None


def _check_raw(raw: msgspec.Raw) -> None:
    try:
        _one_value.decode(raw)  # with more than one, it could set other fields
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"is not one value in JSON: {str(error).removeprefix('JSON is malformed: ')}") from None

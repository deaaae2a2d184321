"""A change of a request's body: fields that are set, and fields that are dropped. Sans-I/O.

The whole body is encoded again and goes through the same checks as one of a caller, so that a change can do nothing that a caller
could not ask for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

import msgspec

from gateway.chat.json_values import check_field
from gateway.chat.request import Body
from gateway.errors import GatewayError, Refused

FIXED: Final = frozenset({"stream", "stream_options"})
"""How the answer is delivered. The caller reads what it asked for."""

_encode = msgspec.json.Encoder().encode


async def changed(
    body: Body,
    fields: Mapping[str, object],
    drop: Collection[str],
    check: Callable[[bytes], Awaitable[Body]],
    editor: str,
) -> Body | None:
    """Return the body with some fields set and others dropped, checked; None where that changes nothing.

    Raises `GatewayError`, which names the plugin `editor`, for a change that is not valid, and `Refused` for one that makes the
    body too large.
    """
    try:
        raw = edited(body, fields, drop)
        return None if raw is None else await check(raw)
    except (Refused, ValueError, TypeError) as error:
        if isinstance(error, Refused) and error.status != 400:
            raise
        raise GatewayError(f"'{editor}' makes a request that is not valid: {error}") from None


def edited(body: Body, fields: Mapping[str, object], drop: Collection[str]) -> bytes | None:
    """Return a body with some fields set and others dropped, in JSON; None where that changes nothing.

    Raises `ValueError` for a field that cannot be changed, and `ValueError` or `TypeError` for one that JSON does not have.
    """
    if isinstance(drop, str):
        raise TypeError(f"`drop` is a list of names: [{drop!r}]")
    if not body.top:
        raise ValueError("the body cannot be changed any more: its values were freed")
    for name in FIXED.intersection((*fields, *drop)):
        raise ValueError(f"`{name}` cannot be changed: the caller decides how its answer is delivered")
    before = body.top
    top: dict[str, object] = dict(before)
    for name in drop:
        top.pop(name, None)
    for name, value in fields.items():
        check_field(name, value)
        top[name] = value if isinstance(value, msgspec.Raw) else msgspec.Raw(_encode(value))
    return None if top == before else _encode(top)

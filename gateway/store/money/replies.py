"""The replies of wallet scripts."""

from __future__ import annotations

import re
from typing import Any, Final

from gateway import crash_points
from gateway.errors import StoreAway
from gateway.store.money.results import HOLDS, HoldReply

_MARK: Final = re.compile(r"[A-Z][a-z0-9]*E[0-9]+")


def checked(reply: list[Any], key: str) -> list[Any]:
    """Return the reply. Raises `StoreAway` if it belongs to another call."""
    if reply[0] != key.encode():
        raise StoreAway("the store's reply belongs to another call")
    return reply


def hold_reply(reply: list[Any], label: str = "hold.after") -> HoldReply:
    """Return the result of a hold or of its extension. `label`: the crash point."""
    _, outcome, balance, held, credit_line, *more = reply
    crash_points.point(label)
    if len(more) % 2 == 0:
        return HoldReply(HOLDS[outcome], balance, held, credit_line, tuple(pairs(more)) if more else ())
    marks, _, used = more.pop().decode().partition(" ")
    ended = tuple(pairs(more)) if more else ()
    return HoldReply(HOLDS[outcome], balance, held, credit_line, ended, marks, int(used or 0))


def pairs(flat: list[Any]) -> list[tuple[str, int]]:
    """Return requests and charges."""
    return [(request_id.decode(), charged) for request_id, charged in zip(flat[::2], flat[1::2], strict=True)]


def used_in(marks: bytes, *sums: int) -> tuple[tuple[str, int], ...]:
    """Return the mark of each budget that a settlement counts in, and what is charged. Those whose window is over are left out."""
    found = zip(_MARK.findall(marks.decode()), sums, strict=True)
    return tuple((mark, used) for mark, used in found if used >= 0)

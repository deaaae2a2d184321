"""A part of an account's ledger as people and programs read it, newest first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from gateway.base.ids import utc
from gateway.store.client.client import Client
from gateway.store.money.archive import MOVES, Archived, Entry
from gateway.store.money.scripts import keys_of

KINDS: Final = {b"settle": "charge", b"orphan": "charge", b"expire": "expiry"}
"""The public kinds of lines whose kind in the store has another name.

`charge`: the cost of a request. `release`: a request that cost nothing. `expiry`: a request that was not settled in time, because
its gateway died, and its charge until then. `late`: the correction of such a charge. `credit` and `adjust`: by the operator.
"""


SEARCHED: Final = 2000
"""Lines that are read for one page where one kind is asked for."""


class Line(msgspec.Struct, frozen=True, gc=False):
    """One change of the balance. `request_id` or `transaction` is what it is for; `reason`: the operator's, of an adjustment."""

    id: str
    at: str
    kind: str
    amount_micros: int
    request_id: str | None = None
    transaction: str | None = None
    reason: str | None = None

    @classmethod
    def of(cls, entry: Entry) -> Line:
        """Return the line of an entry of the stream."""
        id_, fields = entry[0].decode(), entry[1]
        kind, subject = fields[b"kind"], fields[b"id"].decode(errors="replace")
        moves = kind in MOVES
        return cls(
            id_,
            _time_of(id_),
            KINDS.get(kind) or kind.decode(errors="replace"),
            int(fields[b"amount"]),
            None if moves else subject,
            subject if moves else None,
            _reason(fields),
        )


class ArchivedLines(msgspec.Struct, frozen=True):
    """The oldest lines, which were moved into a file by `gateway account archive`: how many, until when, and their sums."""

    lines: int
    until: str
    amount_micros: int
    credited_micros: int

    @classmethod
    def of(cls, archived: Archived) -> ArchivedLines | None:
        """Return the archived part of an account's ledger; None where there is none."""
        if not archived.lines:
            return None
        return cls(archived.lines, _time_of(archived.last), archived.total, archived.credited)


class LedgerPage(msgspec.Struct, frozen=True):
    """Lines of a ledger, newest first. `next`: the line after which the next part begins; empty where there is none."""

    lines: list[Line]
    next: str
    archived: ArchivedLines | None


async def ledger_page(client: Client, account: str, limit: int, after: str = "", kind: str | None = None) -> LedgerPage:
    """Return up to `limit` lines, those older than the line `after`, of one public kind or of all. Raises `StoreAway`.

    Of one kind there may be fewer, or none, though `next` is not empty: no more than `SEARCHED` lines are looked through.
    """
    keys = keys_of(account)
    entries = await client.call(
        *("XREVRANGE", keys.ledger, f"({after}" if after else "+", "-", "COUNT", SEARCHED if kind else limit + 1)
    )
    # Read after the lines: a line that is archived meanwhile is counted twice then, and never missing.
    archived = Archived.of(await client.call("HGET", keys.wallet, "archived"))
    lines = [line for line in map(Line.of, entries) if kind in (None, line.kind)]
    following = lines[limit - 1].id if len(lines) > limit else ""
    if kind and not following and len(entries) == SEARCHED:
        following = entries[-1][0].decode()
    return LedgerPage(lines[:limit], following, ArchivedLines.of(archived))


def _reason(fields: Mapping[bytes, bytes]) -> str | None:
    return fields[b"reason"].decode(errors="replace") or None if b"reason" in fields else None


def _time_of(line: str) -> str:
    return utc(int(line.partition("-")[0]))

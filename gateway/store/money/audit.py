"""What must hold of one account's money, told from what the store keeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from gateway.store.money.archive import MOVES, Archived, ArchiveError, Entry

FIRST = frozenset((b"settle", b"release", b"expire", b"orphan"))
"""The lines that resolve a request. One of them comes once; after an expiry, one `late` may follow."""

_SHOWN = 20


class Snapshot(msgspec.Struct, frozen=True):
    """An account at one moment. `last_line` is the last line of its ledger at that moment."""

    balance: int
    held: int
    count: int
    holds: dict[bytes, tuple[int, int]]
    """Request id -> amount and the end of its lease."""
    leases: dict[bytes, int]
    credits: dict[bytes, int]
    resolved: list[bytes]
    """Requests that are held although they were resolved."""
    last_line: bytes
    now_ms: int
    archived: Archived

    @classmethod
    def of(cls, reply: list[Any]) -> Snapshot:
        """The snapshot script's reply."""
        _, (balance, held, count, archived), holds, leases, moved, resolved, last_line, now_ms = reply
        terms = {request_id: record.split() for request_id, record in _pairs(holds)}
        return cls(
            int(balance or 0),
            int(held or 0),
            int(count or 0),
            {request_id: (int(parts[1]), int(parts[2])) for request_id, parts in terms.items()},
            {request_id: int(float(expiry)) for request_id, expiry in _pairs(leases)},
            {transaction: int(amount) for transaction, amount in _pairs(moved)},
            resolved,
            last_line,
            int(now_ms),
            Archived.of(archived),
        )


class Resolved(msgspec.Struct, frozen=True):
    """A request as the ledger tells it: the last line's kind and time, and what it was charged in all."""

    kind: bytes = b""
    charged: int = 0
    at_ms: int = 0


class Audit(msgspec.Struct, frozen=True):
    """An account's money at one moment: what does not hold, in words, and what the ledger tells of each request.

    `expired`: holds that were found past their lease, and ended. `stale`: costs that came too late to be charged.
    `unread`: what is archived, of which only the sums are known.
    """

    wrong: list[str]
    requests: dict[str, Resolved]
    lines: int
    expired: list[tuple[str, int]]
    stale: dict[str, int]
    at_ms: int
    unread: Archived


class Ledger:
    """The sums of a ledger and what is wrong with its lines, fed line by line; of the `unread` ones before, the sums."""

    def __init__(self, unread: Archived) -> None:
        self.unread = unread
        self.lines = 0
        self.total = 0
        self.credits: dict[bytes, int] = {}
        self.wrong: list[str] = []
        self.requests: dict[bytes, Resolved] = {}

    @classmethod
    def after(cls, archived: Archived, entries: Iterable[Entry]) -> Ledger:
        """A ledger whose archived lines are read; they stay unread where they are not as the store says. Blocks."""
        ledger = cls(Archived())
        try:
            for line, fields in entries:
                ledger.add(line, fields)
        except ArchiveError as error:
            ledger = cls(archived)
            ledger.wrong.append(str(error))
        return ledger

    def add(self, line: bytes, fields: Mapping[bytes, bytes]) -> None:
        """The next line, by its id and its fields."""
        kind, key, amount = fields[b"kind"], fields[b"id"], int(fields[b"amount"])
        self.lines += 1
        self.total += amount
        if kind in MOVES:
            if key in self.credits:
                self.wrong.append(f"transaction {key.decode()} moved the balance twice")
            self.credits[key] = amount
            return
        if kind == b"late" and key not in self.requests and self.unread.may_have(key.decode()):
            return  # its expiry is archived, so what it was charged in all is not known here
        before = self.requests.get(key, Resolved())
        charged = before.charged - amount
        if not (kind in FIRST and not before.kind) and not (kind == b"late" and before.kind == b"expire"):
            order = f"{kind.decode()} after {before.kind.decode() or 'nothing'}"
            self.wrong.append(f"request {key.decode()} was resolved twice: {order}")
        if charged < 0:
            self.wrong.append(f"request {key.decode()} was given {-charged} micros")
        self.requests[key] = Resolved(kind, charged, int(line.partition(b"-")[0]))


def violations(snapshot: Snapshot, ledger: Ledger, swept_ms: int) -> list[str]:
    """Every invariant that does not hold, in words; of one that fails for many requests the first few.

    `swept_ms`: no hold whose lease ended by then may be left.
    """
    wrong = ledger.wrong[:_SHOWN]
    unread = ledger.unread
    if snapshot.balance != unread.total + ledger.total:
        wrong.append(f"the balance is {snapshot.balance}, the ledger adds up to {unread.total + ledger.total}")
    old = {key: amount for key, amount in snapshot.credits.items() if unread.lines and key not in ledger.credits}
    differ = {key.decode() for key, _ in snapshot.credits.items() ^ (old | ledger.credits).items()}
    if differ:
        wrong.append(f"credits and ledger differ in transactions {', '.join(sorted(differ)[:_SHOWN])}")
    if (len(old), sum(old.values())) != (unread.transactions, unread.credited):
        wrong.append(
            f"credits whose lines are archived come to {sum(old.values())} in {len(old)} transactions, "
            f"the archive to {unread.credited} in {unread.transactions}"
        )
    stated = f"{snapshot.held} in {snapshot.count}"
    found = f"{sum(amount for amount, _ in snapshot.holds.values())} in {len(snapshot.holds)}"
    if stated != found:
        wrong.append(f"the account says it holds {stated} holds, there are {found}")
    if {request_id: expiry for request_id, (_, expiry) in snapshot.holds.items()} != snapshot.leases:
        wrong.append("the leases are not those of the holds")
    wrong += [
        f"request {request_id.decode()} is held although it was resolved" for request_id in snapshot.resolved[:_SHOWN]
    ]
    overdue = [request_id.decode() for request_id, expiry in snapshot.leases.items() if expiry <= swept_ms]
    wrong += [f"request {request_id} is held past its lease" for request_id in overdue[:_SHOWN]]
    return wrong


def _pairs(flat: list[bytes]) -> list[tuple[bytes, bytes]]:
    return list(zip(flat[::2], flat[1::2], strict=True))

"""The audit of one account: invariants of its balance, holds and whole ledger, checked on what the store and the archive hold."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from gateway.base.amounts import amount as units
from gateway.store.client.client import Client
from gateway.store.money.archive import MOVES, Archive, Archived, ArchiveError, Entry
from gateway.store.money.budgets import Window, budget_fields, count, differences, windows
from gateway.store.money.scripts import keys_of

RESOLVING_KINDS = frozenset((b"settle", b"release", b"expire", b"orphan"))
"""The kinds of ledger lines that resolve a request. Each request has one of them; one `late` may follow an `expire`."""

MAX_LISTED = 20

PAGE_SIZE: Final = 1000


class Snapshot(msgspec.Struct, frozen=True):
    """An account at one moment. `last_line`: the id of the last line of its ledger at that moment."""

    balance: int
    held: int
    count: int
    holds: dict[bytes, tuple[int, int]]
    """Request id -> amount, end of the lease."""
    leases: dict[bytes, int]
    credits: dict[bytes, int]
    resolved: list[bytes]
    """Requests with a hold although they are resolved."""
    last_line: bytes
    now_ms: int
    archived: Archived
    marks: list[tuple[bytes, int]]
    """Of each hold the text with its marks, and its amount."""
    budgets: dict[Window, int]

    @classmethod
    def of(cls, reply: list[Any], fields: Sequence[str] = ()) -> Snapshot:
        """Return the snapshot in a reply of the script `snapshot`, which was given these fields of budgets."""
        _, (numbers, archived), holds, leases, moved, resolved, last_line, now_ms, budgets = reply
        balance, held, count, _ = (numbers or b"0 0 0 0").split()
        terms = {request_id: record.split() for request_id, record in _pairs(holds)}
        return cls(
            int(balance),
            int(held),
            int(count),
            {request_id: (int(parts[1]), int(parts[2])) for request_id, parts in terms.items()},
            {request_id: int(float(expiry)) for request_id, expiry in _pairs(leases)},
            {transaction: int(amount) for transaction, amount in _pairs(moved)},
            resolved,
            last_line,
            int(now_ms),
            Archived.of(archived),
            [(parts[4], int(parts[1])) for parts in terms.values()],
            windows(fields, budgets),
        )


class Resolved(msgspec.Struct, frozen=True):
    """A request in the ledger: the kind and the time of its last line, and its total charge."""

    kind: bytes = b""
    charged: int = 0
    at_ms: int = 0


class AccountAudit(msgspec.Struct, frozen=True):
    """An account at one moment: each violated invariant, in words, and each request of its ledger.

    `expired`: holds whose lease had expired, which the audit ended. `stale`: costs that came too late to be
    charged, and that the ledger does not have.
    `unread`: the archived lines of which only the sums are known.
    """

    wrong: list[str]
    requests: dict[str, Resolved]
    lines: int
    expired: list[tuple[str, int]]
    stale: dict[str, int]
    at_ms: int
    unread: Archived

    @classmethod
    def of(
        cls,
        snapshot: Snapshot,
        ledger: LedgerSums,
        swept_ms: int,
        expired: list[tuple[str, int]],
        stale: dict[str, int],
    ) -> AccountAudit:
        """Return the audit of an account that was swept at `swept_ms`."""
        requests = {request_id.decode(): resolved for request_id, resolved in ledger.requests.items()}
        wrong = violations(snapshot, ledger, swept_ms)
        late = {key: cost for key, cost in stale.items() if key not in requests or requests[key].charged != cost}
        return cls(wrong, requests, ledger.lines, expired, late, snapshot.now_ms, ledger.unread)


class LedgerSums:
    """The sums of a ledger and the errors in its lines, added line by line. `unread`: the sums of archived lines before them."""

    def __init__(self, unread: Archived) -> None:
        self.unread = unread
        self.lines = 0
        self.total = 0
        self.credits: dict[bytes, int] = {}
        self.wrong: list[str] = []
        self.requests: dict[bytes, Resolved] = {}
        self.budgets = Counter[Window]()
        self.tokens: list[bytes] = []

    @classmethod
    def after(cls, archived: Archived, entries: Iterable[Entry]) -> LedgerSums:
        """Return a ledger with its archived lines; they stay unread if they do not match the store's sums. Blocks."""
        ledger = cls(Archived())
        try:
            for line, fields in entries:
                ledger.add(line, fields)
        except ArchiveError as error:
            ledger = cls(archived)
            ledger.wrong.append(str(error))
        return ledger

    def add(self, line: bytes, fields: Mapping[bytes, bytes]) -> None:
        """Add the next line, given its id and its fields."""
        kind, key, amount = fields[b"kind"], fields[b"id"], int(fields[b"amount"])
        self.lines += 1
        self.total += amount
        if kind in MOVES:
            if key in self.credits:
                self.wrong.append(f"transaction {key.decode()} moved the balance twice")
            self.credits[key] = amount
            return
        count(self.budgets, fields.get(b"budgets", b""), -amount)
        if kind == b"late" and key not in self.requests and self.unread.may_have(key.decode()):
            return  # its `expire` line is archived, so its total charge is not known here
        before = self.requests.get(key, Resolved())
        charged = before.charged - amount
        if not (kind in RESOLVING_KINDS and not before.kind) and not (kind == b"late" and before.kind == b"expire"):
            order = f"{kind.decode()} after {before.kind.decode() or 'nothing'}"
            self.wrong.append(f"request {key.decode()} was resolved twice: {order}")
        if charged < 0:
            self.wrong.append(f"request {key.decode()} was given {units(-charged)}")
        self.requests[key] = Resolved(kind, charged, int(line.partition(b"-")[0]))


def violations(snapshot: Snapshot, ledger: LedgerSums, swept_ms: int) -> list[str]:
    """Return each violated invariant in words; of one that fails for many requests, the first few.

    `swept_ms`: the time of the last sweep. No hold whose lease ended by then may be left.
    """
    wrong = ledger.wrong[:MAX_LISTED]
    unread = ledger.unread
    if snapshot.balance != unread.total + ledger.total:
        wrong.append(
            f"the balance is {units(snapshot.balance)}, the ledger adds up to {units(unread.total + ledger.total)}"
        )
    archived = {key: amount for key, amount in snapshot.credits.items() if unread.lines and key not in ledger.credits}
    differing = {key.decode() for key, _ in snapshot.credits.items() ^ (archived | ledger.credits).items()}
    if differing:
        wrong.append(f"credits and ledger differ in transactions {', '.join(sorted(differing)[:MAX_LISTED])}")
    if (len(archived), sum(archived.values())) != (unread.transactions, unread.credited):
        wrong.append(
            f"credits whose lines are archived come to {units(sum(archived.values()))} in {len(archived)} transactions, "
            f"the archive to {units(unread.credited)} in {unread.transactions}"
        )
    stated = f"{units(snapshot.held)} in {snapshot.count}"
    actual = f"{units(sum(amount for amount, _ in snapshot.holds.values()))} in {len(snapshot.holds)}"
    if stated != actual:
        wrong.append(f"the account says it holds {stated} holds, there are {actual}")
    if {request_id: expiry for request_id, (_, expiry) in snapshot.holds.items()} != snapshot.leases:
        wrong.append("the leases are not those of the holds")
    wrong += [
        f"request {request_id.decode()} is held although it was resolved"
        for request_id in snapshot.resolved[:MAX_LISTED]
    ]
    sums = Counter(ledger.budgets)
    for marks, amount in snapshot.marks:
        count(sums, marks, amount)
    wrong += differences(snapshot.budgets, sums, unread.last_ms, snapshot.now_ms, ledger.tokens)
    overdue = [request_id.decode() for request_id, expiry in snapshot.leases.items() if expiry <= swept_ms]
    wrong += [f"request {request_id} is held past its lease" for request_id in overdue[:MAX_LISTED]]
    return wrong


def _pairs(flat: list[bytes]) -> list[tuple[bytes, bytes]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


async def read_ledger(
    client: Client, account: str, read_snapshot: Callable[..., Awaitable[list[Any]]], archive: Archive | None
) -> tuple[Snapshot, LedgerSums]:
    """Return a snapshot of the account and its ledger up to then. Starts again if lines were archived meanwhile."""
    keys = keys_of(account)
    while True:
        fields = await budget_fields(client, account)
        snapshot = Snapshot.of(await read_snapshot(*fields), fields)
        ledger, start = LedgerSums(snapshot.archived), "-"
        if archive is not None:
            entries = archive.entries(account, snapshot.archived)
            ledger = await asyncio.to_thread(LedgerSums.after, snapshot.archived, entries)
        while lines := await client.call("XRANGE", keys.ledger, start, snapshot.last_line, "COUNT", PAGE_SIZE):
            for line, fields in lines:
                ledger.add(line, fields)
            start = "(" + lines[-1][0].decode()
        ledger.tokens = await client.call("HKEYS", f"gw:{{{account}}}:tokens")
        if Archived.of(await client.call("HGET", keys.wallet, "archived")) == snapshot.archived:
            return snapshot, ledger

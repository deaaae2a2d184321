"""The balances of accounts: hold before the upstream is called, settle after it, each exactly once.

1. **Every call carries an idempotency key** (the request's id, or the operator's transaction id), so a retry after a lost
   reply changes nothing. Every reply repeats the key, and a reply with another key counts as no reply.
2. **A charge is never dropped.** A settlement is retried while the store is away, then written to the journal, as is one
   that the store refuses.
3. **A request is charged once.** The store remembers its end for as long as its id is accepted. A settlement of an older
   request that the store does not know is not charged, but stored where an operator finds it: `Wallet.dead_letters`.
4. **Leases expire by the store's own clock**, and the next hold of an account ends an overdue one, swept or not.

Amounts are micros below 2^53, times are milliseconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, Literal

import msgspec

from gateway.base import crash_points, ids
from gateway.base.errors import StoreAway, StoreError
from gateway.domain.budgets import Budget, BudgetUse
from gateway.store.client.client import Argument, Client
from gateway.store.client.durability import ReplayBuffer
from gateway.store.client.steps import HOLE, ID, Declared, retried
from gateway.store.money.archive import Archive
from gateway.store.money.audit import AccountAudit, read_ledger
from gateway.store.money.budgets import arguments_of, limits_of, read_budgets
from gateway.store.money.journal import Journal
from gateway.store.money.ledger import LedgerPage, ledger_page
from gateway.store.money.scripts import (
    KEEP_S,
    SETTLES,
    SKEW_S,
    Credit,
    Credited,
    Hold,
    HoldReply,
    Settle,
    Settled,
    Settlement,
    checked,
    hold_reply,
    keys_of,
    pairs,
    script,
    used_in,
)

__all__ = ["Credit", "Credited", "Hold", "HoldReply", "Settle", "Settled", "Settlement", "Wallet"]

PAGE_SIZE: Final = 1000

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(tuple[str, str, int, Literal["settle", "release"], str]).decode


class Wallet:
    """The balances of one store. Calls may raise `StoreAway`, and `StoreError` for an argument out of range.

    Settlements use the client `settling`, so that a burst of new requests cannot delay a charge. `keep_s`: how long a
    request's id is accepted; `skew_s`: the maximum difference between two clocks. All gateways of a store need the same
    values of these two. `retry_for_s`: how long a settlement is retried before it is written to the journal.
    """

    def __init__(
        self,
        client: Client,
        *,
        settling: Client | None = None,
        journal: Journal | None = None,
        keep_s: float = KEEP_S,
        skew_s: float = SKEW_S,
        retry_for_s: float = 3,
    ) -> None:
        self._client = client
        self._settling = settling or client
        self._journal = journal
        self._window = (int(keep_s * 1000), int(skew_s * 1000))
        self._retry_for_s = retry_for_s
        self._recent = ReplayBuffer()
        """Settlements of about the last minute that the store has acknowledged."""
        self.scripts = {name: script(name) for name in ("hold", "extend", "settle", "credit", "sweep", "snapshot")}

    async def hold(
        self,
        account: str,
        request_id: str,
        *,
        amount: int,
        floor: int,
        lease_ms: int,
        fingerprint: str,
        max_holds: int,
        budgets: Sequence[Budget] = (),
    ) -> HoldReply:
        """Reserve `amount` of the available balance and of each of `budgets`, for `lease_ms` at most.

        If the lease expires, `floor` is charged, or `amount` if that is less. The call is retried within the client's
        timeout. After `StoreAway` the hold may exist: release it.
        """
        terms = self._terms(amount, floor, lease_ms, fingerprint, max_holds, budgets)
        crash_points.point("hold.before")
        attempt = partial(self._call, "hold", self._client, account, request_id, *terms)
        return hold_reply(await retried(attempt, self._client.timeout_s))

    async def extend(
        self, account: str, request_id: str, *, amount: int, floor: int, budgets: Sequence[Budget] = ()
    ) -> HoldReply:
        """Raise a hold to `amount`, and its floor to `floor`, before a further attempt. Its lease stays as it is.

        Both are totals: a repeated call changes nothing. It is retried as `hold` is.
        """
        crash_points.point("extend.before")
        terms = (amount, min(floor, amount), *limits_of(budgets))
        attempt = partial(self._call, "extend", self._client, account, request_id, *terms)
        return hold_reply(await retried(attempt, self._client.timeout_s), "extend.after")

    async def follow_clock(self) -> None:
        """Let the ids of this process follow the store's clock."""
        ids.follow(ids.ms_of(await self._client.call("TIME")))

    @staticmethod
    def to_hold(amount: int, floor: int, fingerprint: str) -> tuple[int, int, str]:
        """Return what fills the holes of `holding`."""
        crash_points.point("hold.before")
        return amount, min(floor, amount), fingerprint

    @staticmethod
    def held(request_id: str, reply: list[Any]) -> HoldReply:
        """Return the result of a hold by its reply. Raises `StoreAway` for the reply to another call."""
        return hold_reply(checked(reply, request_id))

    def holding(self, account: str, lease_ms: int, max_holds: int, budgets: Sequence[Budget] = ()) -> Declared:
        """Return the declared step that does what `hold` does, whose holes `to_hold` fills. Its reply is one for `held`."""
        arguments = (ID, HOLE, HOLE, lease_ms, HOLE, max_holds, *self._window, *arguments_of(budgets))
        return Declared(self.scripts["hold"], keys_of(account), arguments)

    @staticmethod
    def to_settle(settlement: Settlement) -> tuple[str, int, str]:
        """Return what fills the holes of `settling`."""
        crash_points.point("settle.before")
        return settlement.kind, settlement.cost, settlement.marks

    def settling(self, account: str) -> Declared:
        """Return the declared step of a settlement, whose holes `to_settle` fills. Its reply is one for `settled`.

        Give a settlement whose step failed to `resolve`.
        """
        return Declared(self.scripts["settle"], keys_of(account), (ID, HOLE, HOLE, *self._window, HOLE))

    async def settle(self, account: str, request_id: str, cost: int, marks: str = "") -> Settled:
        """Charge a request its cost and end its hold, as `resolve` does."""
        return await self.resolve(Settlement(account, request_id, cost, marks=marks))

    async def release(self, account: str, request_id: str, marks: str = "") -> Settled:
        """End a hold without a charge, as `settle` does."""
        return await self.resolve(Settlement(account, request_id, kind="release", marks=marks))

    async def credit(self, account: str, transaction: str, amount: int) -> Credited:
        """Add to the balance of an account that is not closed, once for each transaction id."""
        return await self._move(account, transaction, "credit", amount, "")

    async def adjust(self, account: str, transaction: str, amount: int, reason: str) -> Credited:
        """Correct the balance up or down, once for each transaction id; the reason is stored in the ledger."""
        return await self._move(account, transaction, "adjust", amount, reason)

    async def refund(self, account: str, refunds: Sequence[str], credit: str, amount: int) -> Credited:
        """Take back a credit: `amount` of it, or the rest for 0, but no more than is left of the balance and not held.

        `refunds`: the transaction ids of its refunds up to this one, which is the last of them and is booked once.
        """
        *before, transaction = refunds
        return await self._move(account, transaction, "adjust", -amount, f"refund of {credit}", credit, *before)

    async def booked(self, account: str, transactions: Sequence[str]) -> list[int | None]:
        """Return the amounts of transactions; None for those that there are not. Raises `StoreAway`."""
        found = await self._client.call("HMGET", keys_of(account).credits, *transactions)
        return [None if each is None else int(each) for each in found]

    async def sweep(self, account: str, limit: int = 100) -> list[tuple[str, int]]:
        """End up to `limit` holds whose lease has expired; return each request and its charge."""
        return (await self._sweep(account, limit))[1]

    async def deliver(self, settlement: Settlement) -> Settled:
        """Send a settlement once."""
        crash_points.point("settle.before")
        account, request_id, terms = settlement.account, settlement.request_id, self._resolving(settlement)
        return self.settled(settlement, await self._call("settle", self._settling, account, request_id, *terms))

    def settled(self, settlement: Settlement, reply: list[Any]) -> Settled:
        """Return the result of a settlement by its reply. Raises `StoreAway` for the reply to another call."""
        checked(reply, settlement.request_id)
        outcome, charged = reply[1], reply[2]
        crash_points.point("settle.after")
        terms = settlement.account, settlement.request_id, settlement.cost, settlement.kind, settlement.marks
        self._recent.add(_encode(terms))
        return Settled(SETTLES[outcome], charged, used_in(*reply[3:]) if len(reply) > 3 else ())

    async def repeat(self) -> int:
        """Send the last settlement of each recent request again, to a store that may have lost it; return how many."""
        settlements = (Settlement(*_decode(line)) for line in self._recent)
        recent = list({settlement.request_id: settlement for settlement in settlements}.values())
        for start in range(0, len(recent), PAGE_SIZE):
            await asyncio.gather(*map(self.deliver, recent[start : start + PAGE_SIZE]))
            crash_points.point("settlements.repeated")
        return len(recent)

    async def verify(self, account: str) -> list[str]:
        """Sweep the account, then return each violated invariant in words; empty if there is none."""
        return (await self.audit(account)).wrong

    async def audit(self, account: str, archive: Archive | None = None) -> AccountAudit:
        """Sweep the account, then check its balance against its ledger, with the archived lines if an archive is given.

        Raises `StoreError`, and `ArchiveError`, where what is stored of it cannot be read.
        """
        expired = list[tuple[str, int]]()
        swept_ms, ended = await self._sweep(account)
        while ended:
            expired += ended
            swept_ms, ended = await self._sweep(account)
        read_snapshot = partial(self._call, "snapshot", self._settling, account, account)
        try:
            snapshot, ledger = await read_ledger(self._settling, account, read_snapshot, archive)
            return AccountAudit.of(snapshot, ledger, swept_ms, expired, await self.dead_letters(account))
        except (LookupError, ValueError) as error:
            raise StoreError(f"what is stored of it is not as it was written ({error!r}): restore the store") from None

    async def resolve(self, settlement: Settlement) -> Settled:
        """Do what a settlement says. With a journal, no error of the store is raised."""
        try:
            return await retried(partial(self.deliver, settlement), self._retry_for_s)
        except asyncio.CancelledError:
            if self._journal is not None:
                self._journal.keep(settlement)
            raise
        except (StoreAway, StoreError):
            if self._journal is None:
                raise
            await asyncio.to_thread(self._journal.keep, settlement)
            crash_points.point("journal.kept")
            return Settled(Settle.KEPT, settlement.cost)

    async def _sweep(self, account: str, limit: int = 100) -> tuple[int, list[tuple[str, int]]]:
        """Return the store's time, and the holds that were ended because their lease had expired by then."""
        _, now_ms, *expired = await self._call("sweep", self._settling, account, account, limit, *self._window)
        return now_ms, pairs(expired)

    async def _move(self, account: str, transaction: str, kind: str, amount: int, reason: str, *of: str) -> Credited:
        terms: tuple[Argument, ...] = (kind, amount, reason, *of)
        _, outcome, balance, *booked = await self._call("credit", self._settling, account, transaction, *terms)
        return Credited(Credit(outcome.decode()), balance, *booked)

    async def _call(self, name: str, client: Client, account: str, key: str, *arguments: Argument) -> list[Any]:
        reply: list[Any] = await client.run(self.scripts[name], keys_of(account), (key, *arguments))
        return checked(reply, key)

    def _terms(
        self, amount: int, floor: int, lease_ms: int, fingerprint: str, max_holds: int, budgets: Sequence[Budget]
    ) -> tuple[Argument, ...]:
        terms: tuple[Argument, ...] = (amount, min(floor, amount), lease_ms, fingerprint, max_holds, *self._window)
        return terms + arguments_of(budgets) if budgets else terms

    def _resolving(self, settlement: Settlement) -> tuple[Argument, ...]:
        terms: tuple[Argument, ...] = (settlement.kind, settlement.cost, *self._window)
        return (*terms, settlement.marks) if settlement.marks else terms

    async def budgets(self, account: str, budgets: Sequence[Budget]) -> list[BudgetUse]:
        """Return the present count of each budget of one request. Holds whose lease has expired count until they are swept."""
        return await read_budgets(self._client, account, budgets)

    async def ledger(self, account: str, limit: int, after: str = "", kind: str | None = None) -> LedgerPage:
        """Return up to `limit` lines of the account's ledger, newest first; those older than `after`, of one kind or of all."""
        return await ledger_page(self._client, account, limit, after, kind)

    async def ends(self, account: str, request_ids: Sequence[str]) -> dict[str, int]:
        """Return the charge of each resolved request among these, by its id. Requests that are still open are left out."""
        records = await self._settling.call("HMGET", keys_of(account).wallet, *request_ids)
        stored = {key: record.split() for key, record in zip(request_ids, records, strict=True) if record}
        return {key: int(words[2]) for key, words in stored.items() if words[1].isalpha()}

    async def dead_letters(self, account: str) -> dict[str, int]:
        """Return the requests, with their costs, whose settlement came too late to know whether they were charged."""
        letters = await self._settling.call("HGETALL", keys_of(account).stale)
        return {request_id.decode(): int(cost) for request_id, cost in letters.items()}

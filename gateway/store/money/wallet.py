"""The money of accounts: hold before the upstream is called, settle after it, each once.

1. **Every call carries its own key** (the request's id, or the operator's transaction id), so that repeating
   one after a lost reply changes nothing; every reply carries it back, and one with another counts as none.
2. **A charge is never dropped.** A settlement is repeated while the store is away, then kept in the journal; so is
   one that the store refuses.
3. **A request is charged once.** Its end is remembered for as long as its id counts as fresh; a settlement of
   an older request that nobody knows is not charged but put where an operator finds it.
4. **Leases are judged by the store's own clock**, and the next hold ends an overdue one, swept or not.

Amounts are micros below 2^53, times are milliseconds.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeVar

import msgspec

from gateway import crash_points
from gateway.errors import StoreAway, StoreError
from gateway.store.client.client import Argument, Client
from gateway.store.client.replay_buffer import ReplayBuffer
from gateway.store.money.archive import Archive, Archived
from gateway.store.money.audit import Audit, Ledger, Snapshot, violations
from gateway.store.money.journal import Journal
from gateway.store.money.results import Credit, Credited, Hold, HoldReply, Settle, Settled, Settlement
from gateway.store.money.scripts import KEEP_S, SKEW_S, keys_of, script

__all__ = ["Credit", "Credited", "Hold", "HoldReply", "Settle", "Settled", "Settlement", "Wallet"]

Answer = TypeVar("Answer")

_PAGE: Final = 1000
_line: Final = msgspec.json.Encoder().encode
_told: Final = msgspec.json.Decoder(tuple[str, str, int, Literal["settle", "release"]]).decode


class Wallet:
    """All money calls. Each may raise `StoreAway`, and `StoreError` for an argument outside its range.

    Settlements use `settling`, so that a burst of arrivals cannot keep a charge waiting. `keep_s`: how long a
    request's id counts as fresh; `skew_s`: the most that two clocks may differ. All gateways of a store must
    agree on these two. `retry_for_s`: how long a settlement is repeated before it goes to the journal.
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
        self._patience_s = retry_for_s
        self._recent = ReplayBuffer()
        self.scripts = {name: script(name) for name in ("hold", "settle", "credit", "sweep", "snapshot")}

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
    ) -> HoldReply:
        """Take `amount` out of what is available, for `lease_ms` at most.

        `floor`, at most the amount, is what is charged where the lease expires. Repeated within the client's
        timeout; after `StoreAway` the hold may have been taken all the same: release it.
        """
        terms = (amount, min(floor, amount), lease_ms, fingerprint, max_holds, *self._window)
        crash_points.point("hold.before")
        attempt = partial(self._call, "hold", self._client, account, request_id, *terms)
        _, word, balance, held, credit_line, *over = await _repeated(attempt, self._client.timeout_s)
        crash_points.point("hold.after")
        return HoldReply(Hold(word.decode()), balance, held, credit_line, tuple(_pairs(over)))

    async def settle(self, account: str, request_id: str, cost: int) -> Settled:
        """Charge the request its cost and give its hold back. With a journal it raises nothing of the store's."""
        return await self._end(Settlement(account, request_id, cost))

    async def release(self, account: str, request_id: str) -> Settled:
        """Give the hold back at no charge, as `settle` does."""
        return await self._end(Settlement(account, request_id, kind="release"))

    async def credit(self, account: str, transaction: str, amount: int) -> Credited:
        """Add to the balance, once for each transaction id."""
        return await self._move(account, transaction, "credit", amount, "")

    async def adjust(self, account: str, transaction: str, amount: int, reason: str) -> Credited:
        """Correct the balance up or down, once for each transaction id; the ledger keeps the reason."""
        return await self._move(account, transaction, "adjust", amount, reason)

    async def sweep(self, account: str, limit: int = 100) -> list[tuple[str, int]]:
        """End up to `limit` holds whose lease is over: each request and what it was charged."""
        return (await self._sweep(account, limit))[1]

    async def ends(self, account: str, request_ids: Sequence[str]) -> dict[str, int]:
        """Which of these requests are over in this account, and what each was charged."""
        told = await self._settling.call("HMGET", keys_of(account)[3], *request_ids)
        return {
            request_id: int(end.split()[2])
            for request_id, end in zip(request_ids, told, strict=True)
            if end is not None
        }

    async def dead_letters(self, account: str) -> dict[str, int]:
        """Requests and costs that came too late to know whether they were charged."""
        letters = await self._settling.call("HGETALL", keys_of(account)[-1])
        return {request_id.decode(): int(cost) for request_id, cost in letters.items()}

    async def deliver(self, settlement: Settlement) -> Settled:
        """One attempt at a settlement."""
        terms = (settlement.kind, settlement.cost, *self._window)
        crash_points.point("settle.before")
        _, word, charged = await self._call("settle", self._settling, settlement.account, settlement.request_id, *terms)
        crash_points.point("settle.after")
        self._recent.add(_line((settlement.account, settlement.request_id, settlement.cost, settlement.kind)))
        return Settled(Settle(word.decode()), charged)

    async def repeat(self) -> int:
        """Repeat what was delivered lately, to a store that may have forgotten it; returns how many. Raises `StoreAway`."""
        remembered = (Settlement(*_told(line)) for line in self._recent)
        recent = list({settlement.request_id: settlement for settlement in remembered}.values())
        for start in range(0, len(recent), _PAGE):
            await asyncio.gather(*map(self.deliver, recent[start : start + _PAGE]))
            crash_points.point("settlements.repeated")
        return len(recent)

    async def verify(self, account: str) -> list[str]:
        """What does not hold of this account's money, in words; empty when all does. Sweeps it first."""
        return (await self.audit(account)).wrong

    async def audit(self, account: str, archive: Archive | None = None) -> Audit:
        """All that can be said of this account's money, with its archived lines where an archive is given. Sweeps it first."""
        expired = list[tuple[str, int]]()
        swept_ms, over = await self._sweep(account)
        while over:
            expired += over
            swept_ms, over = await self._sweep(account)
        snapshot, ledger = await self._books(account, archive)
        requests = {request_id.decode(): resolved for request_id, resolved in ledger.requests.items()}
        stale = await self.dead_letters(account)
        wrong = violations(snapshot, ledger, swept_ms)
        return Audit(wrong, requests, ledger.lines, expired, stale, snapshot.now_ms, ledger.unread)

    async def _books(self, account: str, archive: Archive | None) -> tuple[Snapshot, Ledger]:
        """The account at one moment and its ledger up to then. An archiver that is at work makes it begin again."""
        snapshot = Snapshot.of(await self._call("snapshot", self._settling, account, account))
        ledger, start = Ledger(snapshot.archived), "-"
        if archive is not None:
            entries = archive.entries(account, snapshot.archived)
            ledger = await asyncio.to_thread(Ledger.after, snapshot.archived, entries)
        while lines := await self._settling.call(
            "XRANGE", keys_of(account)[5], start, snapshot.last_line, "COUNT", _PAGE
        ):
            for line, fields in lines:
                ledger.add(line, fields)
            start = "(" + lines[-1][0].decode()
        archived = Archived.of(await self._settling.call("HGET", keys_of(account)[0], "archived"))
        return (snapshot, ledger) if archived == snapshot.archived else await self._books(account, archive)

    async def _end(self, settlement: Settlement) -> Settled:
        try:
            return await _repeated(partial(self.deliver, settlement), self._patience_s)
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
        """The store's time, and the holds whose lease was over by then."""
        _, now, *over = await self._call("sweep", self._settling, account, account, limit, *self._window)
        return now, _pairs(over)

    async def _move(self, account: str, transaction: str, kind: str, amount: int, reason: str) -> Credited:
        _, word, balance = await self._call("credit", self._settling, account, transaction, kind, amount, reason)
        return Credited(Credit(word.decode()), balance)

    async def _call(self, name: str, client: Client, account: str, key: str, *arguments: Argument) -> list[Any]:
        reply: list[Any] = await client.run(self.scripts[name], keys_of(account), (key, *arguments))
        if reply[0] != key.encode():
            raise StoreAway("the store's reply belongs to another call")
        return reply


async def _repeated(attempt: Callable[[], Awaitable[Answer]], retry_for_s: float) -> Answer:
    """The first answer of a call that may be repeated. Raises `StoreAway` after so many seconds.

    Each attempt is bounded by its client, so the first one, which nearly always is the only one, needs no timer.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + retry_for_s
    try:
        return await attempt()
    except StoreAway as error:
        away = error
    pause_s = 0.02
    try:
        async with asyncio.timeout_at(deadline):
            while True:
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))  # noqa: S311 - only spreads the repeats
                pause_s = min(2 * pause_s, 0.5)
                try:
                    return await attempt()
                except StoreAway as error:
                    away = error
    except TimeoutError:
        raise away from None


def _pairs(over: list[Any]) -> list[tuple[str, int]]:
    """Requests and what they were charged, from a flat reply."""
    return [(request_id.decode(), charged) for request_id, charged in zip(over[::2], over[1::2], strict=True)]

"""The balances of accounts: hold before the upstream is called, settle after it, each exactly once.

1. **Every call carries an idempotency key** (the request's id, or the operator's transaction id), so a retry after a lost
   reply changes nothing. Every reply repeats the key, and a reply with another key counts as no reply.
2. **A charge is never dropped.** A settlement is retried while the store is away, then written to the journal. So is a
   settlement that the store refuses.
3. **A request is charged once.** The store remembers its end for as long as its id is accepted. A settlement of an older
   request that the store does not know is not charged, but stored where an operator finds it: `Wallet.dead_letters`.
4. **Leases expire by the store's own clock**, and the next hold of an account ends an overdue one, swept or not.

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

Result = TypeVar("Result")

PAGE_SIZE: Final = 1000
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(tuple[str, str, int, Literal["settle", "release"]]).decode


class Wallet:
    """The balances of one store. Each call may raise `StoreAway`, and `StoreError` for an argument outside its range.

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
        """Reserve `amount` of the available balance, for `lease_ms` at most.

        If the lease expires, `floor` is charged, or `amount` if that is less. The call is retried within the client's
        timeout. After `StoreAway` the hold may exist: release it.
        """
        terms = (amount, min(floor, amount), lease_ms, fingerprint, max_holds, *self._window)
        crash_points.point("hold.before")
        attempt = partial(self._call, "hold", self._client, account, request_id, *terms)
        _, outcome, balance, held, credit_line, *expired = await _retry(attempt, self._client.timeout_s)
        crash_points.point("hold.after")
        return HoldReply(Hold(outcome.decode()), balance, held, credit_line, tuple(_pairs(expired)))

    async def settle(self, account: str, request_id: str, cost: int) -> Settled:
        """Charge a request its cost and end its hold. With a journal, no error of the store is raised."""
        return await self._resolve(Settlement(account, request_id, cost))

    async def release(self, account: str, request_id: str) -> Settled:
        """End a hold without a charge, as `settle` does."""
        return await self._resolve(Settlement(account, request_id, kind="release"))

    async def credit(self, account: str, transaction: str, amount: int) -> Credited:
        """Add to the balance, once for each transaction id."""
        return await self._move(account, transaction, "credit", amount, "")

    async def adjust(self, account: str, transaction: str, amount: int, reason: str) -> Credited:
        """Correct the balance up or down, once for each transaction id; the reason is stored in the ledger."""
        return await self._move(account, transaction, "adjust", amount, reason)

    async def sweep(self, account: str, limit: int = 100) -> list[tuple[str, int]]:
        """End up to `limit` holds whose lease has expired; return each request and its charge."""
        return (await self._sweep(account, limit))[1]

    async def ends(self, account: str, request_ids: Sequence[str]) -> dict[str, int]:
        """Return which of these requests of the account are resolved, and the charge of each."""
        records = await self._settling.call("HMGET", keys_of(account).wallet, *request_ids)
        words = ((record or b"").split() for record in records)
        return {
            request_id: int(record[2])
            for request_id, record in zip(request_ids, words, strict=True)
            if record and record[1].isalpha()  # else it is a hold
        }

    async def dead_letters(self, account: str) -> dict[str, int]:
        """Return the requests, with their costs, whose settlement came too late to know whether they were charged."""
        letters = await self._settling.call("HGETALL", keys_of(account).stale)
        return {request_id.decode(): int(cost) for request_id, cost in letters.items()}

    async def deliver(self, settlement: Settlement) -> Settled:
        """Send a settlement once."""
        terms = (settlement.kind, settlement.cost, *self._window)
        crash_points.point("settle.before")
        _, outcome, charged = await self._call(
            "settle", self._settling, settlement.account, settlement.request_id, *terms
        )
        crash_points.point("settle.after")
        self._recent.add(_encode((settlement.account, settlement.request_id, settlement.cost, settlement.kind)))
        return Settled(Settle(outcome.decode()), charged)

    async def repeat(self) -> int:
        """Send the latest settlements again, to a store that may have lost them; return how many. Raises `StoreAway`."""
        delivered = (Settlement(*_decode(line)) for line in self._recent)
        recent = list({settlement.request_id: settlement for settlement in delivered}.values())
        for start in range(0, len(recent), PAGE_SIZE):
            await asyncio.gather(*map(self.deliver, recent[start : start + PAGE_SIZE]))
            crash_points.point("settlements.repeated")
        return len(recent)

    async def verify(self, account: str) -> list[str]:
        """Sweep the account, then return each violated invariant in words; empty if there is none."""
        return (await self.audit(account)).wrong

    async def audit(self, account: str, archive: Archive | None = None) -> Audit:
        """Sweep the account, then check its balance against its ledger, with the archived lines if an archive is given."""
        expired = list[tuple[str, int]]()
        swept_ms, ended = await self._sweep(account)
        while ended:
            expired += ended
            swept_ms, ended = await self._sweep(account)
        snapshot, ledger = await self._read_ledger(account, archive)
        requests = {request_id.decode(): resolved for request_id, resolved in ledger.requests.items()}
        stale = await self.dead_letters(account)
        wrong = violations(snapshot, ledger, swept_ms)
        return Audit(wrong, requests, ledger.lines, expired, stale, snapshot.now_ms, ledger.unread)

    async def _read_ledger(self, account: str, archive: Archive | None) -> tuple[Snapshot, Ledger]:
        """Return a snapshot of the account and its ledger up to then. Starts again if lines were archived meanwhile."""
        snapshot = Snapshot.of(await self._call("snapshot", self._settling, account, account))
        ledger, start = Ledger(snapshot.archived), "-"
        if archive is not None:
            entries = archive.entries(account, snapshot.archived)
            ledger = await asyncio.to_thread(Ledger.after, snapshot.archived, entries)
        while lines := await self._settling.call(
            "XRANGE", keys_of(account).ledger, start, snapshot.last_line, "COUNT", PAGE_SIZE
        ):
            for line, fields in lines:
                ledger.add(line, fields)
            start = "(" + lines[-1][0].decode()
        archived = Archived.of(await self._settling.call("HGET", keys_of(account).wallet, "archived"))
        return (snapshot, ledger) if archived == snapshot.archived else await self._read_ledger(account, archive)

    async def _resolve(self, settlement: Settlement) -> Settled:
        try:
            return await _retry(partial(self.deliver, settlement), self._retry_for_s)
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
        return now_ms, _pairs(expired)

    async def _move(self, account: str, transaction: str, kind: str, amount: int, reason: str) -> Credited:
        _, outcome, balance = await self._call("credit", self._settling, account, transaction, kind, amount, reason)
        return Credited(Credit(outcome.decode()), balance)

    async def _call(self, name: str, client: Client, account: str, key: str, *arguments: Argument) -> list[Any]:
        reply: list[Any] = await client.run(self.scripts[name], keys_of(account), (key, *arguments))
        if reply[0] != key.encode():
            raise StoreAway("the store's reply belongs to another call")
        return reply


async def _retry(attempt: Callable[[], Awaitable[Result]], retry_for_s: float) -> Result:
    """Retry an idempotent call with backoff until it returns. Raises `StoreAway` after `retry_for_s`.

    Each attempt has the client's timeout, so the first one, which nearly always is the only one, needs no timer.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + retry_for_s
    try:
        return await attempt()
    except StoreAway as error:
        last_error = error
    pause_s = 0.02
    try:
        async with asyncio.timeout_at(deadline):
            while True:
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))  # noqa: S311 - jitter
                pause_s = min(2 * pause_s, 0.5)
                try:
                    return await attempt()
                except StoreAway as error:
                    last_error = error
    except TimeoutError:
        raise last_error from None


def _pairs(flat: list[Any]) -> list[tuple[str, int]]:
    """Return requests and their charges from a flat reply."""
    return [(request_id.decode(), charged) for request_id, charged in zip(flat[::2], flat[1::2], strict=True)]

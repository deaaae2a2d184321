"""Pacing of refusals: two uses of the limiter by key of one process, in bounded memory.

**Paced refusals**: a caller that goes on all the same gets its refusals later and later, so that it does not take the time of
others. Each worker answers `REFUSALS_PER_S` of one account or one address, as long as each connection waits for its answer. A
client that waits between its retries does not reach this.

**Counted refusals**: a caller that has caused as many records as it may is refused without one, so that no caller can fill the
disk.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

import msgspec

from gateway import Caller, Clock, Exchange, LeakyBuckets, Outcome, Record, arrival_ms, network_of, utc

MAX_KEYS: Final = 10_000
"""Addresses and accounts of which refusals are counted."""

REFUSALS_PER_S: Final = 20
"""Refusals of one caller that are answered in a second, of which all may be at once."""
LONGEST_DELAY_S: Final = 2.0
MAX_DELAYED: Final = 1000
"""Refusals that wait at once, of all callers. Any more are answered at once."""

COUNTED: Final = "counted"
"""The operation in the record of counted refusals."""
ALL_ADDRESSES: Final = 100
"""All addresses together may cause as many records as this many single ones."""
QUIET_S: Final = 60.0
"""How long after a counted refusal the arrivals from its address are not written before it is known who sends them."""
OTHERS: Final = "others"
MAX_CODE: Final = 128


class PacedRefusals:
    """When the refusals of each caller are answered. It counts in this process only, in bounded memory."""

    def __init__(self) -> None:
        self._buckets = LeakyBuckets(REFUSALS_PER_S, 1.0)
        self._delayed = 0

    async def wait(self, caller: str) -> None:
        """Return when a refusal of this caller may be answered: at once, unless it had many of late."""
        delay_s = min(self._buckets.add(caller, LONGEST_DELAY_S), LONGEST_DELAY_S)
        if delay_s <= 0 or self._delayed >= MAX_DELAYED:
            return
        self._delayed += 1
        try:
            await asyncio.sleep(delay_s)
        finally:
            self._delayed -= 1


class Tally(msgspec.Struct):
    """The refusals of one caller since the last report. `first` is the record of the first one, which will stand for all."""

    first: Record
    last_ms: int = 0
    count: int = 0

    def record(self) -> Record:
        """Return the record of all of them: how many, and the time from the first to the last."""
        duration_ms = self.last_ms - arrival_ms(self.first.id)
        return msgspec.structs.replace(self.first, events=self.count, duration_ms=duration_ms)


class CountedRefusals:
    """Decides which refusals are recorded, each account by itself and, without an account, each address; counts the others."""

    def __init__(self, of_address: int, of_account: int, clock: Clock) -> None:
        self._clock = clock
        self._addresses = LeakyBuckets(of_address, monotonic=clock.monotonic)
        self._all_addresses = LeakyBuckets(ALL_ADDRESSES * of_address, monotonic=clock.monotonic)
        self._accounts = LeakyBuckets(of_account, monotonic=clock.monotonic)
        self._loud_until: OrderedDict[str, float] = OrderedDict()
        self._all_loud_until = 0.0
        self._tallies: dict[str, Tally] = {}

    def defers(self, peer: str) -> bool:
        """Return whether an arrival from this address is written only once the request was admitted."""
        now = self._clock.monotonic()
        return now < self._all_loud_until or (
            bool(self._loud_until) and now < self._loud_until.get(network_of(peer), 0.0)
        )

    def exceeds(self, exchange: Exchange) -> bool:
        """Return whether this is a refusal that cost nothing, of a caller that has caused as many records as it may."""
        if (
            exchange.outcome not in (Outcome.REFUSED, Outcome.CALLER_GONE)
            or exchange.attempts
            or exchange.charge_micros
        ):
            return False
        account, address = _account_of(exchange), network_of(exchange.request.peer)
        full = 0.0
        if account:
            full = self._accounts.add(account)
        elif exchange.status < 500:  # a failure of the gateway or of the store is recorded for every caller
            full = self._addresses.add(address)
        if full:
            self._loud_until[address] = self._clock.monotonic() + QUIET_S
            self._loud_until.move_to_end(address)
            if len(self._loud_until) > MAX_KEYS:
                self._loud_until.popitem(last=False)
        elif not account and self._all_addresses.add(""):
            self._all_loud_until = self._clock.monotonic() + QUIET_S
            return True
        return full > 0

    def count(self, exchange: Exchange) -> None:
        """Count a refusal in place of a record."""
        account = _account_of(exchange)
        key = account or network_of(exchange.request.peer)
        if key not in self._tallies and len(self._tallies) >= MAX_KEYS:
            key, account = OTHERS, ""
        tally = self._tallies.get(key)
        if tally is None:
            tally = self._tallies[key] = Tally(_record(exchange, account))
        tally.count += 1
        tally.last_ms = max(tally.last_ms, arrival_ms(exchange.id))

    def take(self) -> dict[str, Tally]:
        """Return what was counted since the last call, by account or address."""
        tallies, self._tallies = self._tallies, {}
        return tallies


def _record(exchange: Exchange, account: str) -> Record:
    return Record(
        id=exchange.id,
        arrived_at=utc(arrival_ms(exchange.id)),
        operation=COUNTED,
        account=account,
        status=exchange.status,
        outcome=exchange.outcome,
        error_code=exchange.error.code[:MAX_CODE] if exchange.error else "",
        refused_by=exchange.refused_by,
        config=exchange.generation,
        cost_micros=0,
        margin_micros=0,
    )


def _account_of(exchange: Exchange) -> str:
    return (exchange.get(Caller) or exchange).account

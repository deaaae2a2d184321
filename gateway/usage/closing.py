"""The closing of requests that never ended, as `gateway_crashed`.

1. **A gateway closes its own requests alone**, and those of gateways that an operator has forgotten: a request that another one
   received may still run there, or its end may wait in that one's spool.
2. **Only when nothing waits that could be the end**, neither in the stream nor in the spool nor in a gap of the reading.
3. **The end is written to the stream**, so that every gateway reads it. An actual end that comes late replaces it.

Its account is known only where money was held: the arrival is written before the account is authenticated, and a second line
for each request would cost each of them a call.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from gateway.exchange import Outcome
from gateway.request_id import arrival_ms
from gateway.store.accounts import Accounts
from gateway.store.client.client import Client
from gateway.store.money.wallet import Wallet
from gateway.usage.database import UsageDatabase
from gateway.usage.gaps import Gap
from gateway.usage.gateways import gateways_of
from gateway.usage.installation import short
from gateway.usage.record import Record

AT_ONCE: Final = 2000
LOOKED_UP: Final = 200
"""Requests without an end whose account is looked up, among all accounts, in one round."""


class Closing:
    """Finds the requests that never ended, for the gateway that is called `own` in its records."""

    def __init__(self, client: Client, database: UsageDatabase, own: str) -> None:
        self._client = client
        self._wallet = Wallet(client)
        self._database = database
        self._own = own

    async def ends(self, before_ms: int, gaps: Iterable[Gap]) -> list[Record]:
        """Return ends for requests that arrived before `before_ms` and never ended, some at a time. Raises `StoreAway`."""
        # Requests of an earlier version have no gateway; they were received by the one whose files these are.
        gone = {
            "",
            self._own,
            *(short(each.installation) for each in await gateways_of(self._client) if each.about.forgotten_ms),
        }
        open_ = self._database.open_requests(before_ms, gone, AT_ONCE)
        lost = [record for record in open_ if not any(_may_have_end(gap, record) for gap in gaps)]
        ended = await self._ends_of_holds(lost[:LOOKED_UP])
        return [ended.get(record.id) or _closed(record) for record in lost]

    async def _ends_of_holds(self, lost: list[Record]) -> dict[str, Record]:
        """Return ends for those requests that held money: with the account, and what it was charged for them."""
        ended: dict[str, Record] = {}
        arrivals = {record.id: record for record in lost}
        if arrivals:
            async for account in Accounts(self._client).all():
                for id, charged in (await self._wallet.ends(account.id, list(arrivals))).items():  # noqa: A001
                    ended[id] = _closed(arrivals[id], account=account.id, charge_micros=charged)
        return ended


def _closed(arrival: Record, **changes: object) -> Record:
    return msgspec.structs.replace(arrival, outcome=Outcome.GATEWAY_CRASHED, **changes)


def _may_have_end(gap: Gap, record: Record) -> bool:
    at = arrival_ms(record.id)
    return gap.touches(at, at)

"""What can be read of an account's wallet without changing it."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.budgets import Budget, BudgetUse
from gateway.store.client.client import Client
from gateway.store.money.budgets import read_budgets
from gateway.store.money.ledger_page import LedgerPage, ledger_page
from gateway.store.money.scripts import keys_of


class Reader:
    """Reads wallets. Calls may raise `StoreAway`."""

    def __init__(self, client: Client, settling: Client) -> None:
        self._client = client
        self._settling = settling

    async def budgets(self, account: str, budgets: Sequence[Budget]) -> list[BudgetUse]:
        """Return what each of these budgets of one request counts now. Holds whose lease has expired count until they are swept."""
        return await read_budgets(self._client, account, budgets)

    async def ledger(self, account: str, limit: int, after: str = "") -> LedgerPage:
        """Return up to `limit` lines of the account's ledger, newest first; those older than the line `after`."""
        return await ledger_page(self._client, account, limit, after)

    async def ends(self, account: str, request_ids: Sequence[str]) -> dict[str, int]:
        """Return the charges of those of these requests that are resolved."""
        records = await self._settling.call("HMGET", keys_of(account).wallet, *request_ids)
        stored = {key: record.split() for key, record in zip(request_ids, records, strict=True) if record}
        return {key: int(words[2]) for key, words in stored.items() if words[1].isalpha()}

    async def dead_letters(self, account: str) -> dict[str, int]:
        """Return the requests, with their costs, whose settlement came too late to know whether they were charged."""
        letters = await self._settling.call("HGETALL", keys_of(account).stale)
        return {request_id.decode(): int(cost) for request_id, cost in letters.items()}

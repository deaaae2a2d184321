"""Many accounts and payments at once. A batch can be repeated: each row of it is done once.

A process or a store that ends in the middle leaves some rows done, and of one row perhaps its account without its credit. The same
rows, sent again, complete that and change nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Annotated, Any, Final

import msgspec

from gateway.admin.actions.action import Scope, action
from gateway.admin.actions.inputs import check_name
from gateway.admin.actions.local import LocalClient
from gateway.admin.actions.money import moved
from gateway.base import crash_points
from gateway.base.errors import GatewayError, Refused, StoreAway
from gateway.base.ids import EXTERNAL
from gateway.store.accounts import MAX_AMOUNT, AccountError
from gateway.store.money.scripts import Credit

MOST_ROWS: Final = 500
AT_ONCE: Final = 64
"""Rows that are worked on at once."""
COUNTED: Final = ("rows", "created", "credited", "credited_before", "credited_micros")

Amount = Annotated[int, msgspec.Meta(ge=0, le=MAX_AMOUNT)]


class AccountRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An account that is created if it is not there, and credited if there is an amount.

    `transaction` is `opening-ID` where it is empty. `line`: your number of the row, for the report.
    """

    line: int
    id: str
    external_id: str = ""
    group: str = "default"
    amount_micros: Amount = 0
    transaction: str = ""


class CreditRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A credit to an account that is there. `id` or `external_id` names it; both where they are to belong together.

    `line`: your number of the row, for the report.
    """

    line: int
    amount_micros: Annotated[int, msgspec.Meta(ge=1, le=MAX_AMOUNT)]
    transaction: str
    id: str = ""
    external_id: str = ""


class AccountRows(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Accounts to be created and credited."""

    rows: Annotated[tuple[AccountRow, ...], msgspec.Meta(max_length=MOST_ROWS)]


class CreditRows(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Credits to be booked."""

    rows: Annotated[tuple[CreditRow, ...], msgspec.Meta(max_length=MOST_ROWS)]


class RefusedRow(msgspec.Struct, frozen=True):
    """A row that was not done, and why."""

    line: int
    message: str


class Imported(msgspec.Struct):
    """What was done, and which rows were refused. The others are done, now or before."""

    rows: int = 0
    created: int = 0
    credited: int = 0
    credited_before: int = 0
    credited_micros: int = 0
    refused: list[RefusedRow] = []

    def add(self, other: Imported) -> None:
        """Add what was done of a batch of these rows."""
        for name in (*COUNTED[1:], "refused"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


@action("POST", "/accounts/import", Scope.ACCOUNTS)
async def accounts(client: LocalClient, body: AccountRows) -> Imported:
    """Create the accounts that are not there yet, and credit them: up to 500 rows. Repeating it changes nothing.

    An account that is there keeps its group, and gets the external id if it has none. Rows that are refused are listed in the
    answer; the others are done. Amounts need the scope `money`, too.
    """
    if any(row.amount_micros for row in body.rows) and Scope.MONEY not in client.actor.scopes:
        raise Refused(403, "scope_missing", "Rows with an amount need the scope `money`, too.")

    async def do(row: AccountRow, report: Imported) -> None:
        await _ensure(client, row, report)
        crash_points.point("import.row")
        if row.amount_micros:
            await _credit(client, row.id, row.transaction or f"opening-{row.id}", row.amount_micros, report)

    return await _all(client, [(row.line, partial(do, row)) for row in body.rows])


@action("POST", "/credits/import", Scope.MONEY)
async def credits_(client: LocalClient, body: CreditRows) -> Imported:
    """Book credits for accounts that are there: up to 500 rows. Repeating it changes nothing.

    Rows that are refused are listed in the answer; the others are done.
    """

    async def do(row: CreditRow, report: Imported) -> None:
        account = row.id or await client.store.external_ids.resolve(f"{EXTERNAL}{row.external_id}")
        if row.external_id and await client.store.external_ids.find(row.external_id) != account:
            raise AccountError(f"the account `{account}` does not have the external id {row.external_id!r}")
        await _credit(client, account, row.transaction, row.amount_micros, report)

    return await _all(client, [(row.line, partial(do, row)) for row in body.rows])


async def _all(client: LocalClient, rows: Sequence[tuple[int, Callable[[Imported], Awaitable[None]]]]) -> Imported:
    """Do all rows, several at once. Raises `StoreAway` where the store does not answer; the rows that are done are done."""
    report, waiting = Imported(len(rows)), iter(rows)

    async def worker() -> None:
        for line, do in waiting:
            try:
                await do(report)
            except StoreAway:
                raise
            except GatewayError as error:
                report.refused.append(RefusedRow(line, str(error)))

    await at_once(AT_ONCE, worker)
    report.refused.sort(key=lambda refused: refused.line)
    client.change.after = {
        "lines": [line for line, _ in (*rows[:1], *rows[-1:])],
        **{name: getattr(report, name) for name in COUNTED},
        "refused": len(report.refused),
    }
    return report


async def at_once(count: int, worker: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run so many workers, and end all of them with the first that fails."""
    workers = [asyncio.create_task(worker()) for _ in range(count)]
    try:
        await asyncio.gather(*workers)
    finally:
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def _ensure(client: LocalClient, row: AccountRow, report: Imported) -> None:
    """Create the account if it is not there, or else give it the external id if it has none."""
    store = client.store
    check_name(row.external_id, "external_id")
    account = await store.accounts.get(row.id)
    if account is not None:
        if row.external_id not in ("", account.external_id):
            if account.external_id:
                raise AccountError(f"the account `{row.id}` has another external id: {account.external_id!r}")
            async with store.external_ids.claimed(row.id, row.external_id):
                await store.accounts.change(row.id, external_id=row.external_id)
        return
    if row.group not in client.config.groups:
        raise AccountError(f"the configuration has no group `{row.group}`")
    async with store.external_ids.claimed(row.id, row.external_id):
        try:
            await store.accounts.create(row.id, row.group, external_id=row.external_id)
        except AccountError as error:
            created = await store.accounts.get(row.id)  # by another row, or by this one before
            if error.kind != "exists" or created is None or created.external_id != row.external_id:
                raise
        else:
            report.created += 1


async def _credit(client: LocalClient, account: str, transaction: str, amount: int, report: Imported) -> None:
    credited = await moved(account, transaction, partial(client.store.wallet.credit, account, transaction, amount))
    if credited.outcome is Credit.DONE:
        report.credited_before += 1
    else:
        report.credited += 1
        report.credited_micros += amount

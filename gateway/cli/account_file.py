"""Accounts and payments of a CSV file: `gateway account import` and `gateway account credit --from`. Both may be repeated."""

from __future__ import annotations

import csv
import re
import time
from collections.abc import Awaitable, Callable, Container, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from gateway.cli.common import ConfigOption, JsonOption, amount, configuration, micros, print_json, run_with_store
from gateway.cli.exits import shown
from gateway.cli.named import EXTERNAL, account_in
from gateway.errors import GatewayError, Misconfigured, StoreAway
from gateway.store.accounts import AccountError
from gateway.store.money.results import Credit

if TYPE_CHECKING:
    from gateway.services import Store

TRANSACTION: Final = re.compile(r"[A-Za-z0-9._:-]{1,64}")
COLUMNS: Final = {"id", "external_id", "group", "amount", "transaction"}
AT_ONCE: Final = 32
PROGRESS_S: Final = 1.0
TRIES: Final = 3
PAUSE_S: Final = 1.0
"""Between two tries of a line for which the store did not answer in time."""

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A CSV file whose first line names its columns.")]
FileOption = Annotated[
    Path | None,
    typer.Option(
        "--from", metavar="FILE", help="Credit what a CSV file says: `id` (or `external_id`), `amount`, `transaction`."
    ),
]


class Row(msgspec.Struct, frozen=True):
    """One line of a file. `value` is what to credit, in micros; 0 for nothing. Without `id`, `external_id` names the account."""

    line: int
    id: str
    external_id: str
    group: str
    value: int
    transaction: str


class Report(msgspec.Struct):
    """What was done, and which lines were refused."""

    rows: int = 0
    created: int = 0
    credited: int = 0
    credited_before: int = 0
    credited_micros: int = 0
    refused: list[dict[str, str | int]] = []

    def refuse(self, line: int, text: str) -> None:
        """Note a line that was not done."""
        self.refused.append({"line": line, "message": text})


def import_(file: FileArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Create the accounts of a CSV file that are not there yet, and credit them.

    Columns: `id`, and if you like `external_id`, `group`, `amount` and `transaction` (default: `opening-ID`). Repeating it changes
    nothing; an account that is there keeps its group, and gets the external id if it has none. Lines that are refused are listed,
    and the exit code is 1; the others are done.

    Example: `gateway account import customers.csv`
    """
    run_file(file, config, as_json, create=True)


def run_file(file: Path, config: Path | None, as_json: bool, *, create: bool) -> None:
    """Do what a file says, and print a report. With `create`, accounts that are missing are created."""
    groups = configuration(config).groups
    report = Report()
    rows = list(_rows(file, report, create=create))
    report.rows = len(rows) + len(report.refused)

    async def work(store: Store) -> None:
        async def do(row: Row) -> None:
            try:
                if create:
                    await _ensure(store, row, report, groups)
                if row.value:
                    await _credit(store, row, report)
            except StoreAway:
                raise
            except GatewayError as error:
                report.refuse(row.line, str(error))

        await _all(rows, partial(retried, do))

    try:
        run_with_store(config, work)
    except StoreAway:
        if not as_json:
            _print(report)
            typer.echo("The rest was not done; run it again: what is booked is not booked twice.", err=True)
        raise
    report.refused.sort(key=lambda refused: refused["line"])
    if as_json:
        print_json(report)
    else:
        _print(report)
    if report.refused:
        raise typer.Exit(1)


async def retried(do: Callable[[Row], Awaitable[None]], row: Row) -> None:
    """Do a row, again where the store did not answer in time: each part of it may be repeated."""
    import asyncio

    for _ in range(TRIES - 1):
        try:
            return await do(row)
        except StoreAway:
            await asyncio.sleep(PAUSE_S)
    return await do(row)


async def _all(rows: list[Row], do: Callable[[Row], Awaitable[None]]) -> None:
    """Do all rows, several at once, and say how far it is."""
    import asyncio

    waiting = iter(rows)
    done, said = 0, time.monotonic()

    async def worker() -> None:
        nonlocal done, said
        for row in waiting:
            await do(row)
            done += 1
            if time.monotonic() - said >= PROGRESS_S:
                said = time.monotonic()
                typer.echo(f"{done} of {len(rows)} lines", err=True)

    workers = [asyncio.create_task(worker()) for _ in range(AT_ONCE)]
    try:
        await asyncio.gather(*workers)
    finally:
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def _ensure(store: Store, row: Row, report: Report, groups: Container[str]) -> None:
    """Create the account if it is not there, or else give it the external id if it has none."""
    account = await store.accounts.get(row.id)
    if account is not None:
        if row.external_id not in ("", account.external_id):
            if account.external_id:
                raise AccountError(f"the account `{row.id}` has another external id: {account.external_id!r}")
            async with store.external_ids.claimed(row.id, row.external_id):
                await store.accounts.change(row.id, external_id=row.external_id)
        return
    if row.group not in groups:
        raise AccountError(f"the configuration has no group `{row.group}`")
    async with store.external_ids.claimed(row.id, row.external_id):
        try:
            await store.accounts.create(row.id, row.group, external_id=row.external_id)
        except AccountError as error:
            created = await store.accounts.get(row.id)  # by another line of the file, or by this one before
            if error.kind != "exists" or created is None or created.external_id != row.external_id:
                raise
        else:
            report.created += 1


async def _credit(store: Store, row: Row, report: Report) -> None:
    account_id = await account_in(store, row.id or EXTERNAL + row.external_id)
    if row.external_id and await store.external_ids.find(row.external_id) != account_id:
        raise AccountError(f"the account `{account_id}` does not have the external id {row.external_id!r}")
    outcome = (await store.wallet.credit(account_id, row.transaction, row.value)).outcome
    if outcome is Credit.NO_ACCOUNT:
        raise AccountError(f"there is no account `{account_id}`")
    if outcome is Credit.CONFLICT:
        raise AccountError(f"the transaction `{row.transaction}` was booked before with another amount")
    if outcome is Credit.DONE:
        report.credited_before += 1
    else:
        report.credited += 1
        report.credited_micros += row.value


def _rows(file: Path, report: Report, *, create: bool) -> Iterator[Row]:
    """Yield the lines that can be done, and note the others."""
    needed = {"id"} if create else {"amount", "transaction"}
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            reader = csv.DictReader(opened, restkey="", restval="")
            names = set(reader.fieldnames or ())
            if len(names) != len(reader.fieldnames or ()):
                raise Misconfigured(f"{file}: its first line names a column twice")
            if not (needed <= names <= COLUMNS and names & {"id", "external_id"}):
                wanted = "id" if create else "amount, transaction, and id or external_id"
                raise Misconfigured(
                    f"{file}: its first line must name the columns {wanted}, and no others than {', '.join(sorted(COLUMNS))}"
                )
            for fields in reader:
                try:
                    yield _row(reader.line_num, fields, create=create)
                except (typer.BadParameter, AccountError) as error:
                    report.refuse(reader.line_num, str(error))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise Misconfigured(f"{file} cannot be read as CSV: {error}") from None


def _row(line: int, fields: Mapping[str, str], *, create: bool) -> Row:
    if "" in fields:
        raise AccountError("it has more fields than columns")
    account_id, text = fields.get("id", "").strip(), fields.get("amount", "").strip()
    external_id = fields.get("external_id", "").strip()
    if not account_id and (create or not external_id):
        raise AccountError("it names no account")
    value = micros(text) if text or not create else 0
    if value < 0 or (value == 0 and (text or not create)):
        raise AccountError("give an amount of more than 0")
    transaction = fields.get("transaction", "").strip() or (f"opening-{account_id}" if create else "")
    if value and not TRANSACTION.fullmatch(transaction):
        raise AccountError("a transaction id is 1 to 64 letters, digits and . _ : -")
    return Row(line, account_id, external_id, fields.get("group", "").strip() or "default", value, transaction)


def _print(report: Report) -> None:
    for refused in report.refused:
        typer.echo(shown(f"line {refused['line']}: {refused['message']}"), err=True)
    typer.echo(
        f"{report.rows} lines: {report.created} accounts created, {report.credited} credited with "
        f"{amount(report.credited_micros)} in all, {report.credited_before} credited before, {len(report.refused)} refused"
    )

"""Accounts and payments of a CSV file: `gateway account import` and `gateway account credit --from`. Both may be repeated."""

from __future__ import annotations

import csv
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from gateway.cli.common import ConfigOption, JsonOption, amount, configuration, micros, print_json, run_with_store
from gateway.errors import GatewayError, Misconfigured, StoreAway
from gateway.store.accounts import AccountError
from gateway.store.money.results import Credit

if TYPE_CHECKING:
    from gateway.services import Store

TRANSACTION: Final = re.compile(r"[A-Za-z0-9._:-]{1,64}")
COLUMNS: Final = {"id", "group", "amount", "transaction"}
AT_ONCE: Final = 32
PROGRESS_S: Final = 1.0

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A CSV file whose first line names its columns.")]
FileOption = Annotated[
    Path | None,
    typer.Option(
        "--from", metavar="FILE", help="Credit what a CSV file says, with the columns `id`, `amount`, `transaction`."
    ),
]


class Row(msgspec.Struct, frozen=True):
    """One line of a file. `value` is what to credit, in micros; 0 for nothing."""

    line: int
    id: str
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

    Columns: `id`, and if you like `group`, `amount` and `transaction` (default: `opening-ID`). Repeating it changes nothing; an
    account that is there keeps its group. Lines that are refused are listed, and the exit code is 1; the others are done.

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
                if create and await store.accounts.get(row.id) is None:
                    if row.group not in groups:
                        raise AccountError(f"the configuration has no group `{row.group}`")
                    await _create(store, row, report)
                if row.value:
                    await _credit(store, row, report)
            except StoreAway:
                raise
            except GatewayError as error:
                report.refuse(row.line, str(error))

        await _all(rows, do)

    run_with_store(config, work)
    report.refused.sort(key=lambda refused: refused["line"])
    if as_json:
        print_json(report)
    else:
        _print(report)
    if report.refused:
        raise typer.Exit(1)


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

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(worker())


async def _create(store: Store, row: Row, report: Report) -> None:
    try:
        await store.accounts.create(row.id, row.group)
        report.created += 1
    except AccountError as error:
        if error.kind != "exists":  # another line of the file has created it
            raise


async def _credit(store: Store, row: Row, report: Report) -> None:
    outcome = (await store.wallet.credit(row.id, row.transaction, row.value)).outcome
    if outcome is Credit.NO_ACCOUNT:
        raise AccountError(f"there is no account `{row.id}`")
    if outcome is Credit.CONFLICT:
        raise AccountError(f"the transaction `{row.transaction}` was booked before with another amount")
    if outcome is Credit.DONE:
        report.credited_before += 1
    else:
        report.credited += 1
        report.credited_micros += row.value


def _rows(file: Path, report: Report, *, create: bool) -> Iterator[Row]:
    """Yield the lines that can be done, and note the others."""
    needed = {"id"} if create else {"id", "amount", "transaction"}
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            reader = csv.DictReader(opened, restkey="", restval="")
            names = set(reader.fieldnames or ())
            if not needed <= names <= COLUMNS:
                wanted, known = ", ".join(sorted(needed)), ", ".join(sorted(COLUMNS))
                raise Misconfigured(
                    f"{file}: its first line must name the columns {wanted}, and no others than {known}"
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
    account_id, text = fields["id"].strip(), fields.get("amount", "").strip()
    value = micros(text) if text or not create else 0
    if value < 0 or (value == 0 and (text or not create)):
        raise AccountError("give an amount of more than 0")
    transaction = fields.get("transaction", "").strip() or (f"opening-{account_id}" if create else "")
    if value and not TRANSACTION.fullmatch(transaction):
        raise AccountError("a transaction id is 1 to 64 letters, digits and . _ : -")
    return Row(line, account_id, fields.get("group", "").strip() or "default", value, transaction)


def _print(report: Report) -> None:
    for refused in report.refused:
        typer.echo(f"line {refused['line']}: {refused['message']}", err=True)
    typer.echo(
        f"{report.rows} lines: {report.created} accounts created, {report.credited} credited with "
        f"{amount(report.credited_micros)} in all, {report.credited_before} credited before, {len(report.refused)} refused"
    )

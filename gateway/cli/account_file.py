"""Accounts and payments of a CSV file: `gateway account import` and `gateway account credit --from`. Both may be repeated."""

from __future__ import annotations

import csv
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gateway.base.errors import Misconfigured, StoreAway
from gateway.base.ids import EXTERNAL
from gateway.base.text import counted, shown
from gateway.cli.client import At
from gateway.cli.common import amount, micros, print_json

if TYPE_CHECKING:
    from gateway.admin.actions.imports import AccountRow, CreditRow, Imported

    Row = AccountRow | CreditRow

TRANSACTION: Final = re.compile(r"[A-Za-z0-9._:-]{1,64}")
COLUMNS: Final = {"id", "external_id", "group", "amount", "transaction"}
BATCHES_AT_ONCE: Final = 2
PROGRESS_S: Final = 1.0

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A CSV file whose first line names its columns.")]
FileOption = Annotated[
    Path | None,
    typer.Option(
        "--from", metavar="FILE", help="Credit what a CSV file says: `id` (or `external_id`), `amount`, `transaction`."
    ),
]


class WrongRow(Exception):
    """A line that cannot be done."""


async def import_(at: At, file: FileArgument) -> None:
    """Create the accounts of a CSV file that are not there yet, and credit them.

    Columns: `id`, and if you like `external_id`, `group`, `amount` and `transaction` (default: `opening-ID`). Repeating it changes
    nothing; an account that is there keeps its group, and gets the external id if it has none. Lines that are refused are listed,
    and the exit code is 1; the others are done.

    Example: `gateway account import customers.csv`
    """
    await run_file(at, file, create=True)


async def run_file(at: At, file: Path, *, create: bool) -> None:
    """Do what a file says, and print a report. With `create`, accounts that are missing are created."""
    from gateway.admin.actions.imports import Imported

    report = Imported()
    rows = list(_rows(file, report, create=create))
    report.rows = len(rows) + len(report.refused)
    try:
        await _do(at, rows, report)
    except StoreAway:
        if not at.as_json:
            _print(report)
            typer.echo("Of the rest, some may be done; run it again: what is booked is not booked twice.", err=True)
        raise
    report.refused.sort(key=lambda refused: refused.line)
    if at.as_json:
        print_json(report)
    else:
        _print(report)
    if report.refused:
        raise typer.Exit(1)


async def _do(at: At, rows: Sequence[Row], report: Imported) -> None:
    """Do all rows in batches, and say how far it is."""
    from gateway.admin.actions.imports import MOST_ROWS, AccountRow, at_once

    batches = iter([rows[first : first + MOST_ROWS] for first in range(0, len(rows), MOST_ROWS)])
    action = "imports.accounts" if rows and isinstance(rows[0], AccountRow) else "imports.credits_"
    done, said = 0, time.monotonic()

    async def work() -> None:
        nonlocal done, said
        for batch in batches:
            report.add(await at.do(action, rows=tuple(batch)))
            done += len(batch)
            if time.monotonic() - said >= PROGRESS_S:
                said = time.monotonic()
                typer.echo(f"{done} of {len(rows)} lines", err=True)

    await at_once(BATCHES_AT_ONCE, work)


def _rows(file: Path, report: Imported, *, create: bool) -> Iterator[Row]:
    """Yield the lines that can be done, and note the others."""
    from gateway.admin.actions.imports import RefusedRow

    needed = {"id"} if create else {"amount", "transaction"}
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            reader = csv.DictReader(opened, restkey="", restval="")
            names = set(reader.fieldnames or ())
            if len(names) != len(reader.fieldnames or ()):
                raise Misconfigured(f"{file}: its first line names a column twice")
            if len(names) == 1 and ";" in next(iter(names)):
                raise Misconfigured(f"{file}: its columns are separated by semicolons; save it with commas")
            if not (needed <= names <= COLUMNS and names & {"id", "external_id"}):
                wanted = "id" if create else "amount, transaction, and id or external_id"
                raise Misconfigured(
                    f"{file}: its first line must name the columns {wanted}, and no others than {', '.join(sorted(COLUMNS))}"
                )
            for fields in reader:
                try:
                    yield _row(reader.line_num, fields, create=create)
                except (typer.BadParameter, WrongRow) as error:
                    report.refused.append(RefusedRow(reader.line_num, str(error)))
    except OSError as error:
        raise Misconfigured(f"{file} cannot be read: {(error.strerror or str(error)).lower()}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise Misconfigured(f"{file} cannot be read as CSV: {error}") from None


def _row(line: int, fields: Mapping[str, str], *, create: bool) -> Row:
    from gateway.admin.actions.imports import AccountRow, CreditRow

    if "" in fields:
        raise WrongRow("it has more fields than columns")
    account_id, text = fields.get("id", "").strip(), fields.get("amount", "").strip()
    external_id = fields.get("external_id", "").strip()
    if not account_id and (create or not external_id):
        raise WrongRow("it names no account")
    value = micros(text) if text or not create else 0
    if value < 0 or (value == 0 and (text or not create)):
        raise WrongRow("give an amount of more than 0")
    transaction = fields.get("transaction", "").strip() or (f"opening-{account_id}" if create else "")
    if value and not TRANSACTION.fullmatch(transaction):
        raise WrongRow("a transaction id is 1 to 64 letters, digits and . _ : -")
    if create:
        return AccountRow(
            line, account_id, external_id, fields.get("group", "").strip() or "default", value, transaction
        )
    if account_id.startswith(EXTERNAL):
        account_id, external_id = "", account_id.removeprefix(EXTERNAL)
    return CreditRow(line, value, transaction, account_id, external_id)


def _print(report: Imported) -> None:
    for refused in report.refused:
        typer.echo(shown(f"line {refused.line}: {refused.message}"), err=True)
    typer.echo(
        f"{counted(report.rows, 'line')}: {counted(report.created, 'account')} created, {report.credited} credited with "
        f"{amount(report.credited_micros)} in all, {report.credited_before} credited before, {len(report.refused)} refused"
    )

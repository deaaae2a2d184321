"""`gateway verify`: prove that every balance is right, from the store and the usage log."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from gateway.cli.common import ConfigOption, JsonOption, configuration, print_json, store_of
from gateway.config.schema import Config
from gateway.services import Store
from gateway.store.accounts import unknown
from gateway.store.money.archive import Archive
from gateway.tools.reconcile import Coverage, compare, logged


class Problem(msgspec.Struct, frozen=True):
    """Something about one account, in words that name the request."""

    account: str
    what: str


class Report(msgspec.Struct):
    """What was looked at, and what was found. `notes` tell what could not be compared, and why.

    `unread`: archived lines of which only the sums were looked at.
    """

    accounts: int = 0
    lines: int = 0
    unread: int = 0
    agreed: int = 0
    unknown: int = 0
    expired: list[Problem] = []
    stale: list[Problem] = []
    wrong: list[Problem] = []
    notes: list[str] = []


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(verify)


def verify(
    account: Annotated[str | None, typer.Argument(help="Only this account; else all.")] = None,
    archive: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Read the archived lines too: where `account archive` put them.")
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check every balance against its ledger, its holds and the usage log. Exit code 1 when something does not agree.

    It may run beside a gateway in use. Holds whose lease is over are ended on the way, as the gateway itself would.
    Nothing is repaired: corrections are new lines, by `gateway account adjust`.

    Example: `gateway verify --json`
    """
    report = asyncio.run(_verified(configuration(config), account, archive))
    if as_json:
        print_json(report)
    else:
        _print(report)
    if report.wrong:
        raise typer.Exit(1)


async def _verified(settings: Config, only: str | None, folder: Path | None) -> Report:
    async with store_of(settings) as store:
        if only is not None and await store.accounts.get(only) is None:
            raise unknown(only)
        coverage = await Coverage.of(store)
        archive = Archive(folder) if folder is not None else None
        report = Report(notes=_notes(coverage))
        with _progress() as tell:
            async for account in store.accounts.all():
                if only in (None, account.id):
                    await _verify(store, account.id, archive, coverage, report)
                    tell(report)
    return report


async def _verify(store: Store, account: str, archive: Archive | None, coverage: Coverage, report: Report) -> None:
    records = await asyncio.to_thread(logged, coverage.folder, account)
    on_the_way = frozenset(settlement.request_id for settlement in store.journal.waiting())
    audit = await store.wallet.audit(account, archive)
    compared = await asyncio.to_thread(compare, records, audit, on_the_way, coverage)
    report.accounts += 1
    report.lines += audit.lines
    report.unread += audit.unread.lines
    report.agreed += compared.agreed
    report.unknown += compared.unknown
    report.wrong += [Problem(account, text) for text in audit.wrong + compared.wrong]
    report.expired += [
        Problem(account, f"request {request_id} was charged {charged} micros") for request_id, charged in audit.expired
    ]
    report.stale += [
        Problem(account, f"request {request_id} cost {cost} micros") for request_id, cost in audit.stale.items()
    ]


def _notes(coverage: Coverage) -> list[str]:
    notes = []
    if coverage.waiting:
        notes.append(
            f"{coverage.waiting} entries of the usage log are not in its files yet; "
            "what is missing there was not called wrong: run it again while the gateway runs"
        )
    if not coverage.alone:
        notes.append("other machines keep usage logs of their own: run it on each; balances are checked whole on any")
    return notes


@contextmanager
def _progress() -> Iterator[Callable[[Report], None]]:
    """Counts on standard error while a person looks on."""
    columns = (TextColumn("{task.completed} accounts, {task.fields[lines]} ledger lines"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("", total=None, lines=0)
        yield lambda report: progress.update(task, completed=report.accounts, lines=report.lines)


def _print(report: Report) -> None:
    for note in report.notes:
        typer.echo(f"note: {note}")
    if report.unread:
        typer.echo(f"note: {report.unread} archived ledger lines were taken as their sums; `--archive DIR` reads them")
    for finding in report.expired:
        typer.echo(f"ended by its lease: account {finding.account}: {finding.what}")
    for finding in report.stale:
        typer.echo(f"too late to be charged: account {finding.account}: {finding.what}; see `gateway account adjust`")
    for finding in report.wrong:
        typer.echo(f"WRONG: account {finding.account}: {finding.what}")
    verdict = f"{len(report.wrong)} things are wrong" if report.wrong else "all is right"
    typer.echo(
        f"{verdict}: {report.accounts} accounts, {report.lines} ledger lines, {report.agreed} requests agree with the "
        f"usage log, {report.unknown} could not be compared"
    )

"""`gateway verify`: checks every balance against the ledger, the holds and the usage log."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from gateway.base.text import counted
from gateway.cli.common import ConfigOption, JsonOption, amount, configuration, print_json, store_of
from gateway.cli.named import account_of
from gateway.cli.progress import progress
from gateway.store.accounts import unknown
from gateway.store.money.archive import Archive
from gateway.tools.verify import Coverage, charged_in_log, compare, damage, logged

if TYPE_CHECKING:
    from gateway.chain.services import Store
    from gateway.config.schema import Config


class Problem(msgspec.Struct, frozen=True):
    """Something about one account, in a sentence that names the request."""

    account: str
    what: str


class VerifyReport(msgspec.Struct):
    """The result of the check.

    `accounts` and `lines` (of ledgers) were checked; `unread` archived lines were taken as their sums. `agreed` requests agree
    with the usage log, `unknown` ones could not be compared, and `notes` say why. `expired`: holds that were ended because
    their lease is over. `stale`: costs that came too late to be charged. `wrong`: what does not agree. `damaged`: files and lines
    that cannot be read.
    """

    accounts: int = 0
    lines: int = 0
    unread: int = 0
    agreed: int = 0
    unknown: int = 0
    expired: list[Problem] = []
    stale: list[Problem] = []
    wrong: list[Problem] = []
    damaged: list[str] | msgspec.UnsetType = msgspec.UNSET
    notes: list[str] = []


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(verify)


def verify(
    account: Annotated[str | None, typer.Argument(metavar="ID", help="Check only this account. Default: all.")] = None,
    archive: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also check the archived ledger lines in this folder.")
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check every balance against its ledger, its holds and the usage log.

    The exit code is 1 if something does not agree or cannot be read. The gateway may be running. Holds whose lease is over
    are ended, as the gateway itself would do, and external ids whose setting was interrupted are free again. Nothing else is
    repaired: to correct a balance, use `gateway account adjust`.

    Example: `gateway verify --json`
    """
    report = asyncio.run(_verify_all(configuration(config), account and account_of(config, account), archive))
    if as_json:
        print_json(report)
    else:
        _print(report)
    if report.wrong or report.damaged:
        raise typer.Exit(1)


async def _verify_all(settings: Config, only: str | None, folder: Path | None) -> VerifyReport:
    async with store_of(settings) as store:
        if only is not None and await store.accounts.get(only) is None:
            raise unknown(only)
        coverage = await Coverage.of(store)
        archive = Archive(folder) if folder is not None else None
        report = VerifyReport(notes=_notes(coverage), damaged=await asyncio.to_thread(damage, store) or msgspec.UNSET)
        with progress() as show:
            async for account in store.accounts.all():
                if only in (None, account.id):
                    await _verify(store, account.id, archive, coverage, report)
                    if text := await store.external_ids.check(account):
                        report.wrong.append(Problem(account.id, text))
                    show(f"{counted(report.accounts, 'account')}, {counted(report.lines, 'ledger line')}")
        if only is None:
            report.wrong += await _without_account(store)
            if swept := await store.external_ids.sweep():
                report.notes.append(
                    f"{swept} external ids were free again: they were claimed by commands that were interrupted"
                )
    return report


async def _verify(
    store: Store, account: str, archive: Archive | None, coverage: Coverage, report: VerifyReport
) -> None:
    records = await asyncio.to_thread(logged, coverage.folder, account)
    in_journal = frozenset(settlement.request_id for settlement in store.journal.waiting())
    audit = await store.wallet.audit(account, archive)
    compared = await asyncio.to_thread(compare, records, audit, in_journal, coverage)
    report.accounts += 1
    report.lines += audit.lines
    report.unread += audit.unread.lines
    report.agreed += compared.agreed
    report.unknown += compared.unknown
    report.wrong += [Problem(account, text) for text in audit.wrong + compared.wrong]
    report.expired += [
        Problem(account, f"request {request_id} was charged {amount(charged)}") for request_id, charged in audit.expired
    ]
    report.stale += [
        Problem(account, f"request {request_id} cost {amount(cost)}") for request_id, cost in audit.stale.items()
    ]


async def _without_account(store: Store) -> list[Problem]:
    """Return the accounts that the usage log has charges of and the store does not have."""
    charged = await asyncio.to_thread(charged_in_log, store.usage.folder)
    return [
        Problem(
            account,
            f"{requests} requests were charged {micros} micros in the usage log, and the store has no such account",
        )
        for account, (requests, micros) in charged.items()
        if await store.accounts.get(account) is None
    ]


def _notes(coverage: Coverage) -> list[str]:
    notes = []
    if coverage.waiting:
        notes.append(
            f"{coverage.waiting} entries of the usage log are not in its files yet; "
            "missing records were not reported as wrong: run this again while the gateway is running"
        )
    return [*notes, *coverage.known.notes()]


def _print(report: VerifyReport) -> None:
    for note in report.notes:
        typer.echo(f"note: {note}")
    if report.unread:
        typer.echo(
            f"note: {report.unread} archived ledger lines were taken as their sums; to check them, give `--archive DIR`"
        )
    for problem in report.expired:
        typer.echo(f"hold ended, its lease was over: account {problem.account}: {problem.what}")
    for problem in report.stale:
        typer.echo(f"too late to be charged: account {problem.account}: {problem.what}; see `gateway account adjust`")
    for problem in report.wrong:
        typer.echo(f"WRONG: account {problem.account}: {problem.what}")
    damaged = report.damaged or []
    for text in damaged:
        typer.echo(f"DAMAGED: {text}")
    problems = len(report.wrong) + len(damaged)
    verdict = f"{problems} thing{' is' if problems == 1 else 's are'} wrong" if problems else "all is right"
    agree = f"{counted(report.agreed, 'request')} agree{'s' if report.agreed == 1 else ''} with the usage log"
    typer.echo(
        f"{verdict}: {counted(report.accounts, 'account')}, {counted(report.lines, 'ledger line')}, {agree}, "
        f"{report.unknown} could not be compared"
    )

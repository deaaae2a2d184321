"""`gateway account archive`: moves old lines of ledgers into files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from gateway.base.ids import utc
from gateway.base.text import counted
from gateway.cli.client import noted
from gateway.cli.common import ConfigOption, JsonOption, point_in_time, print_json, refuse, run_with_store
from gateway.cli.named import account_of
from gateway.store.accounts import unknown
from gateway.store.money.archive import YOUNGEST_S, Archive, ArchiveError, Archiver

if TYPE_CHECKING:
    from gateway.chain.services import Store


class Moved(msgspec.Struct, frozen=True):
    """What was moved for one account. `error`: why the rest was not."""

    account: str
    file: str
    lines: int = 0
    error: str = ""


def _before_ms(text: str) -> int:
    before_ms = point_in_time(text)
    if before_ms > (time.time() - YOUNGEST_S) * 1000:
        raise typer.BadParameter(
            f"give a time at least {YOUNGEST_S / 60:.0f} minutes ago: until then, a charge may be repeated"
        )
    return before_ms


def archive(
    before: Annotated[
        int,
        typer.Option(
            parser=_before_ms,
            metavar="TIME",
            help="Move lines from before this time: 90d, or a day as in 2026-11-21 (UTC).",
        ),
    ],
    to: Annotated[
        Path,
        typer.Option(metavar="DIR", help="The archive folder. Always use the same one, on a disk that is backed up."),
    ],
    account_id: Annotated[str | None, typer.Argument(metavar="ID", help="The account's id, or give `--all`.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Archive all accounts.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move old ledger lines into `DIR/ID.jsonl` to free memory of the store. Balances do not change.

    Lines are written to the disk before the store deletes them. If the command is interrupted, run it again. To check the files,
    run `gateway verify --archive DIR`.

    Example: `gateway account archive --all --before 90d --to /var/lib/sluicegate/archive`
    """
    if every == (account_id is not None):
        raise typer.BadParameter("give the id of one account, or --all")
    account_id = account_id and account_of(config, account_id)

    async def work(store: Store) -> int:
        if account_id is not None and await store.accounts.get(account_id) is None:
            raise unknown(account_id)
        archiver, failed = Archiver(store.settling, Archive(to)), 0
        names = [account_id] if account_id else sorted([each.id async for each in store.accounts.all()])
        async with noted(store, "accounts.archive", account=account_id or "(all)", before=utc(before), to=str(to)):
            for name in names:
                moved = await _moved(archiver, name, before)
                failed += bool(moved.error)
                _print(moved, as_json)
        return failed

    failed = run_with_store(config, work)
    if failed:
        raise refuse(f"{failed} ledgers were not archived completely")


async def _moved(archiver: Archiver, account: str, before_ms: int) -> Moved:
    """Archive one account. An error in its file does not stop the others."""
    file = str(archiver.archive.file(account))
    try:
        return Moved(account, file, await archiver.move(account, before_ms))
    except ArchiveError as error:
        return Moved(account, file, error=str(error))


def _print(moved: Moved, as_json: bool) -> None:
    if as_json:
        print_json(moved)
    elif moved.error:
        typer.echo(f"gateway: {moved.error}", err=True)
    elif moved.lines:
        typer.echo(f"{moved.account}: {counted(moved.lines, 'line')} moved to {moved.file}")

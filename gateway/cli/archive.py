"""`gateway account archive`: old lines of ledgers move into files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from gateway.cli.common import ConfigOption, JsonOption, point_in_time, print_json, refuse, run_with_store
from gateway.services import Store
from gateway.store.accounts import unknown
from gateway.store.money.archive import Archive, ArchiveError
from gateway.store.money.archiver import YOUNGEST_S, Archiver


class Moved(msgspec.Struct, frozen=True):
    """What was done for one account; `error` says why no more."""

    account: str
    file: str
    lines: int = 0
    error: str = ""


def _old(text: str) -> int:
    before_ms = point_in_time(text)
    if before_ms > (time.time() - YOUNGEST_S) * 1000:
        raise typer.BadParameter(
            f"lines move once they are {YOUNGEST_S / 60:.0f} minutes old: a charge may be repeated until then"
        )
    return before_ms


def archive(
    before: Annotated[
        int, typer.Option(parser=_old, metavar="TIME", help="Lines from before then: 90d, or a day (UTC).")
    ],
    to: Annotated[
        Path, typer.Option(metavar="DIR", help="The archive: always the same folder, on a disk that is backed up.")
    ],
    account_id: Annotated[str | None, typer.Argument(metavar="ID", help="The account's id; else give `--all`.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All accounts.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move the ledger's old lines into `DIR/ID.jsonl`, which frees the store's memory. Balances stay as they are.

    Lines are on the disk before the store forgets them; a run that was killed is simply repeated. `gateway verify --archive DIR`
    proves the files.

    Example: `gateway account archive --all --before 90d --to /var/lib/sluicegate/archive`
    """
    if every == (account_id is not None):
        raise typer.BadParameter("give the id of one account, or --all")

    async def work(store: Store) -> int:
        if account_id is not None and await store.accounts.get(account_id) is None:
            raise unknown(account_id)
        archiver, failed = Archiver(store.settling, Archive(to)), 0
        names = [account_id] if account_id else sorted([each.id async for each in store.accounts.all()])
        for name in names:
            moved = await _moved(archiver, name, before)
            failed += bool(moved.error)
            _print(moved, as_json)
        return failed

    failed = run_with_store(config, work)
    if failed:
        raise refuse(f"{failed} ledgers were not archived whole")


async def _moved(archiver: Archiver, account: str, before_ms: int) -> Moved:
    """One account's turn; what is wrong with its file does not hold up the rest."""
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
        typer.echo(f"{moved.account}: {moved.lines} lines moved to {moved.file}")

"""Names in arguments of commands: finds accounts by their external ids, splits lists, and prints notes on probable mistakes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from gateway.base.text import shown
from gateway.cli.common import run_with_store

if TYPE_CHECKING:
    from gateway.admin.actions.action import ActionClient
    from gateway.chain.services import Store

EXTERNAL: Final = "ext:"
"""What stands before an external id where a command takes an account's id."""


async def account_in(store: Store, name: str) -> str:
    """Return the id of an account that is named by its id, or by `ext:` and its external id."""
    if not name.startswith(EXTERNAL):
        return name
    external_id = name.removeprefix(EXTERNAL)
    account_id = await store.external_ids.find(external_id)
    if account_id is None:
        from gateway.store.external_ids import no_owner

        raise no_owner(external_id)
    return account_id


async def account_at(client: ActionClient, name: str) -> str:
    """Do as `account_in`, with a client."""
    if not name.startswith(EXTERNAL):
        return name
    from gateway.admin.actions import accounts

    external_id = name.removeprefix(EXTERNAL)
    query = accounts.AccountQuery(limit=1, external_id=external_id)
    found = await accounts.list_(client, query=query) if external_id else None
    if found is None or not found.data:
        from gateway.store.external_ids import no_owner

        raise no_owner(external_id)
    return found.data[0].id


def account_of(config: Path | None, name: str) -> str:
    """Do as `account_in`. The store is used only for an external id."""
    if not name.startswith(EXTERNAL):
        return name
    return run_with_store(config, lambda store: account_in(store, name))


def names_in(text: str) -> list[str]:
    """Return the names in a list with commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def print_notes(notes: Iterable[str]) -> None:
    """Print on standard error what is probably a mistake."""
    for note in notes:
        typer.echo(shown(f"note: {note}"), err=True)

"""What a command names: accounts by their external ids, groups and models of the configuration, with what is probably a mistake."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from gateway.cli.common import configuration, refuse, run_with_store
from gateway.cli.exits import shown

if TYPE_CHECKING:
    from gateway.config.schema import Config
    from gateway.services import Store

EXTERNAL: Final = "ext:"
"""What stands before an external id where a command takes an account's id."""


async def account_in(store: Store, name: str) -> str:
    """Return the id of an account that is named by its id, or by `ext:` and its external id."""
    if not name.startswith(EXTERNAL):
        return name
    from gateway.store.accounts import AccountError

    external_id = name.removeprefix(EXTERNAL)
    account_id = await store.external_ids.find(external_id)
    if account_id is None:
        raise AccountError(f"no account has the external id {external_id!r}: `gateway account list` shows all").of_kind(
            "not_found"
        )
    return account_id


def account_of(config: Path | None, name: str) -> str:
    """Do as `account_in`. The store is used only for an external id."""
    if not name.startswith(EXTERNAL):
        return name
    return run_with_store(config, lambda store: account_in(store, name))


def known_group(config: Path | None, group: str) -> str:
    """Return a group that the configuration has. Ends the command for another one."""
    groups = configuration(config).groups
    if group not in groups:
        raise refuse(
            f"the configuration has no group `{group}`; it has: {', '.join(groups) or 'none yet'}", "not_found"
        )
    return group


def names_in(text: str) -> list[str]:
    """Return the names in a list with commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def note_models(config: Config, given: Sequence[str], *others: Sequence[str], whose: str) -> None:
    """Warn on standard error of names that are no model's, and where `given` and the other lists leave none. No names allow all."""
    from gateway.catalogue import matches
    from gateway.tools.mistakes import about_unknown_model, unknown_models

    for name in unknown_models(config, given):
        typer.echo(shown(f"note: {about_unknown_model(config, name)}"), err=True)
    lists = [names for names in (given, *others) if names]
    if config.models and not any(all(matches(names, model) for names in lists) for model in config.models):
        typer.echo(
            f"note: {whose} may use no model now: its group, its account and the token allow none in common", err=True
        )

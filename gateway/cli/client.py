"""Client of a command: it does actions at the configuration's store, or with `--api` at the API of a gateway on another machine."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, cast

import typer

from gateway.base.errors import Misconfigured
from gateway.base.text import shown
from gateway.cli.common import found, run_with_store, store_of

if TYPE_CHECKING:
    from gateway.admin.actions.action import ActionClient
    from gateway.chain.services import Store


Result = TypeVar("Result")

ApiOption = Annotated[
    str | None,
    typer.Option(
        "--api",
        envvar="GATEWAY_API",
        show_envvar=True,
        metavar="URL",
        help="Ask the operator's port at this address, as in http://10.0.0.5:9090, with the token in `$GATEWAY_API_TOKEN`, "
        "in place of the store.",
    ),
]


def run_with_client(
    config: Path | None, api: str | None, work: Callable[[ActionClient], Awaitable[Result]], *, with_keys: bool = False
) -> Result:
    """Run `work` with a client of the configuration at `config`, or of the API at `api`, and return its result.

    `with_keys`: the channels' credentials must be here.

    Raises `Misconfigured` for an address or a token that cannot be used, as an empty one: nothing is done at the store instead.
    """
    import asyncio

    return asyncio.run(_with_client(config, api, work, with_keys=with_keys))


def run_at_files(config: Path | None, api: str | None, work: Callable[[ActionClient], Awaitable[Result]]) -> Result:
    """Do as `run_with_client` for actions that find most in the files of the usage log: the store is used where `work` needs it.

    Then `work` is run again from its begin. Raises `NoStore` where there are no files.
    """
    return _without_store(config, api, work, files=True)


def run_without_store(
    config: Path | None, api: str | None, work: Callable[[ActionClient], Awaitable[Result]]
) -> Result:
    """Do as `run_with_client` for actions that need no store, with the channels' credentials."""
    return _without_store(config, api, work, files=False)


def _without_store(
    config: Path | None, api: str | None, work: Callable[[ActionClient], Awaitable[Result]], *, files: bool
) -> Result:
    import asyncio

    if api is not None:
        return asyncio.run(_with_client(config, api, work))
    from gateway.admin.actions.local import Actor, LocalClient
    from gateway.config.schema import load
    from gateway.config.without_keys import load_without_keys
    from gateway.runtime.data_folder import usage_home

    loaded = (load_without_keys if files else load)(found(config))
    if files:
        usage_home(loaded.config)
    client = LocalClient(loaded, cast("Store", _Unopened()), Actor(who()))
    try:
        return asyncio.run(_awaited(work(client)))
    except _NeedsStore:
        return asyncio.run(_with_client(config, None, work, with_keys=not files))


class _NeedsStore(Exception):
    """What was asked for is not in the files alone."""


class _Unopened:
    """Stands for a store that is not open."""

    def __getattr__(self, name: str) -> Any:
        raise _NeedsStore(name)


async def _awaited(work: Awaitable[Result]) -> Result:
    return await work


async def _with_client(
    config: Path | None, api: str | None, work: Callable[[ActionClient], Awaitable[Result]], *, with_keys: bool = False
) -> Result:
    if api is not None:
        from gateway.admin.actions.remote import TOKEN, HttpClient

        if config is not None:
            raise Misconfigured("--config names a store and --api (or $GATEWAY_API) a gateway: give one of them")
        async with HttpClient.open(api, os.environ.get(TOKEN, "")) as client:
            return await work(client)
    from gateway.admin.actions.local import Actor, LocalClient
    from gateway.config.schema import load
    from gateway.config.without_keys import load_without_keys

    loaded = (load if with_keys else load_without_keys)(found(config))
    async with store_of(loaded.config) as store:
        return await work(LocalClient(loaded, store, Actor(who())))


@asynccontextmanager
async def noted(store: Store, operation: str, **about: str) -> AsyncIterator[None]:
    """Leave lines in the audit log for what a command changes that is no action of the API. `about`: what it is done to."""
    from gateway.admin.actions.action import Arguments
    from gateway.admin.actions.local import audited

    async with audited(store.client, who(), operation, Arguments(about)):
        yield


def who() -> str:
    """Return who runs this command, for the audit log: as in `command of alice@host`."""
    try:
        user = os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):  # a container may have no name for its user
        user = str(os.getuid())
    return f"command of {user}@{socket.gethostname()}"


async def zone_at(client: ActionClient) -> tzinfo:
    """Return the time zone in which a client's configuration counts days."""
    from gateway.admin.actions.local import LocalClient
    from gateway.config.schema import time_zone

    if isinstance(client, LocalClient):
        return time_zone(client.config.time_zone)
    from gateway.admin.actions import served

    return time_zone((await served.read_config(client)).time_zone)


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

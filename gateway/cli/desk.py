"""Where a command does its work: at the configuration's store, or with `--api` at the API of a gateway on another machine."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from gateway.cli.common import found, store_of
from gateway.errors import Misconfigured

if TYPE_CHECKING:
    from gateway.management.operation import Desk
    from gateway.services import Store

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


def run_at_desk(config: Path | None, api: str | None, work: Callable[[Desk], Awaitable[Result]]) -> Result:
    """Run `work` with the desk of the configuration at `config`, or of the API at `api`, and return its result.

    Raises `Misconfigured` for an address or a token that cannot be used, as an empty one: nothing is done at the store instead.
    """
    import asyncio

    async def inner() -> Result:
        if api is not None:
            from gateway.management.remote import TOKEN, RemoteDesk

            if config is not None:
                raise Misconfigured("--config names a store and --api (or $GATEWAY_API) a gateway: give one of them")
            async with RemoteDesk.open(api, os.environ.get(TOKEN, "")) as desk:
                return await work(desk)
        from gateway.config.without_keys import load_without_keys
        from gateway.management.desk import Actor, LocalDesk

        loaded = load_without_keys(found(config))
        async with store_of(loaded.config) as store:
            return await work(LocalDesk(loaded, store, Actor(who())))

    return asyncio.run(inner())


@asynccontextmanager
async def noted(store: Store, operation: str, **about: str) -> AsyncIterator[None]:
    """Leave lines in the audit log for what a command changes that is no operation of the API. `about`: what it is done to."""
    from gateway.management.audit_lines import audited
    from gateway.management.operation import Arguments

    async with audited(store.client, who(), operation, Arguments(about)):
        yield


def who() -> str:
    """Return who runs this command, for the audit log: as in `command of alice@host`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"command of {user}@{socket.gethostname()}"


async def zone_at(desk: Desk) -> tzinfo:
    """Return the time zone in which a desk's configuration counts days."""
    from gateway.config.time_zone import time_zone
    from gateway.management.desk import LocalDesk

    if isinstance(desk, LocalDesk):
        return time_zone(desk.config.time_zone)
    from gateway.management import config

    return time_zone((await config.read(desk)).time_zone)

"""Commands made of the table of actions: each is done at the configuration's store, or with `--api` at another machine's gateway.

A command is an async function of `At`, with its own arguments and options. `command` adds the options that all of them have.
"""

from __future__ import annotations

import asyncio
import getpass
import inspect
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, tzinfo
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, cast, get_type_hints

import typer
from msgspec import UNSET

from gateway.base.errors import GatewayError, Misconfigured
from gateway.base.ids import EXTERNAL
from gateway.base.text import shown
from gateway.cli.common import (
    ConfigOption,
    CsvOption,
    JsonOption,
    YesOption,
    confirm,
    found,
    print_json,
    print_table,
    store_of,
)

if TYPE_CHECKING:
    from gateway.admin.actions.action import Action, ActionClient
    from gateway.admin.actions.local import LocalClient
    from gateway.chain.services import Store
    from gateway.config.schema import Config


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
OPTIONS: Final[dict[str, tuple[Any, Any]]] = {
    "yes": (YesOption, False),
    "config": (ConfigOption, None),
    "api": (ApiOption, None),
    "as_json": (JsonOption, False),
    "as_csv": (CsvOption, False),
}
"""Options that commands share, with their defaults."""
USUAL: Final = ("config", "api", "as_json")


class At:
    """Where a command does its actions, and how it prints what they return."""

    def __init__(
        self, client: ActionClient, api: str | None = None, as_json: bool = False, as_csv: bool = False
    ) -> None:
        self.client = client
        self.api = api
        self.as_json = as_json
        self.as_csv = as_csv

    async def do(self, name: str, /, *path: str, **fields: Any) -> Any:
        """Do an action of the table, such as `tokens.rotate`. `fields`: of its query or its body, but those that are UNSET."""
        module, _, function = name.partition(".")
        action: Action[Any, Any] = getattr(import_module(f"gateway.admin.actions.{module}"), function)
        given = {field: value for field, value in fields.items() if value is not UNSET}
        for part, kind in (("query", action.query), ("body", action.body)):
            if kind is not None:
                return await action(self.client, *path, **{part: kind(**given)})
        return await action(self.client, *path)

    async def change(self, name: str, path: str, example: str, /, **fields: Any) -> Any:
        """Do an action that changes `fields`. Raises `Misconfigured` with the example where all of them are UNSET."""
        if all(value is UNSET for value in fields.values()):
            raise Misconfigured(f"say what to change, as in `{example}`")
        changed = await self.do(name, path, **fields)
        print_notes(changed.notes)
        return changed

    async def pages(
        self, name: str, /, *path: str, size: int, most: int | None = None, **fields: Any
    ) -> AsyncIterator[Any]:
        """Yield the pages of an action that lists, of `size` lines each, until there are `most` lines, or all."""
        after: str | None = ""
        while after is not None and most != 0:
            page = await self.do(name, *path, limit=min(size, most or size), after=after, **fields)
            yield page
            after, most = page.next or None, most and most - len(page.data)

    async def lines(self, name: str, /, *path: str, size: int, most: int | None = None, **fields: Any) -> list[Any]:
        """Return the lines of these pages."""
        return [line async for page in self.pages(name, *path, size=size, most=most, **fields) for line in page.data]

    async def account(self, name: str) -> str:
        """Return the id of an account that is named by its id, or by `ext:` and its external id."""
        return str((await self.do("accounts.read", name)).id) if name.startswith(EXTERNAL) else name

    async def zone(self) -> tzinfo:
        """Return the time zone in which the configuration counts days; UTC where the API does not let this token read it."""
        from gateway.config.schema import time_zone

        try:
            return time_zone((self.config if self.api is None else await self.do("served.read_config")).time_zone)
        except GatewayError as error:
            if error.kind != "refused":
                raise
            return UTC

    @property
    def local(self) -> LocalClient:
        """The client, where no API is asked."""
        return cast("LocalClient", self.client)

    @property
    def config(self) -> Config:
        """The configuration, where no API is asked."""
        return self.local.config

    async def print(
        self, lines: Iterable[Any], columns: Sequence[str], cells: Callable[[Any, tzinfo], Any], **table: Any
    ) -> None:
        """Print lines for scripts, one JSON object each, or for people as a table of `cells`. `table`: see `print_table`."""
        if self.as_json:
            for line in lines:
                print_json(line)
        else:
            zone = await self.zone()
            print_table(columns, (cells(line, zone) for line in lines), **table)


Work = Callable[..., Awaitable[None]]
"""Gets `At`, and the arguments and options of its own."""


def command(
    app: typer.Typer | None = None,
    name: str | None = None,
    *,
    options: tuple[str, ...] = USUAL,
    sure: Callable[..., Awaitable[str]] | None = None,
    keys: bool = False,
    needs: str = "store",
    **settings: Any,
) -> Callable[[Work], Any]:
    """Add a command to `app` whose function gets `At`, and its own arguments and options without those of `options`.

    Without an `app`, the command takes the place of the function. `sure` returns the question that must be confirmed first, unless
    `--yes` is given; empty for none. `keys`, `needs`: see `run`.
    """
    if sure is not None:
        options = ("yes", *options)

    def made(work: Work) -> Any:
        hints = get_type_hints(work, include_extras=True)
        _, *own = inspect.signature(work).parameters.values()
        shared = [inspect.Parameter(each, inspect.Parameter.KEYWORD_ONLY, default=OPTIONS[each][1]) for each in options]
        hints |= {each: OPTIONS[each][0] for each in options}

        def perform(**given: Any) -> None:
            yes, config, *others = (given.pop(each, default) for each, (_, default) in OPTIONS.items())

            def at(function: Callable[..., Awaitable[Result]]) -> Result:
                return run(
                    config, others[0], lambda client: function(At(client, *others), **given), keys=keys, needs=needs
                )

            if sure is not None and not yes and (question := at(sure)):
                confirm(question)
            at(work)

        perform.__doc__, perform.__annotations__ = work.__doc__, hints
        perform.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [each.replace(annotation=hints[each.name], kind=each.KEYWORD_ONLY) for each in (*own, *shared)]
        )
        if app is None:
            return perform
        app.command(name or work.__name__, **settings)(perform)
        return work

    return made


def run(
    config: Path | None,
    api: str | None,
    work: Callable[[ActionClient], Awaitable[Result]],
    *,
    keys: bool = False,
    needs: str = "store",
) -> Result:
    """Run `work` with a client of the configuration at `config`, or of the API at `api`, and return its result.

    `keys`: the channels' credentials must be here. `needs`: `store`; or `files` of the usage log, or `nothing`: then the store is
    opened only where `work` uses it, which is begun again for that. Raises `NoStore` where there are no files.

    Raises `Misconfigured` for an address or a token that cannot be used, as an empty one: nothing is done at the store instead.
    """
    if api is not None:
        return asyncio.run(_at_gateway(config, api, work))
    from gateway.admin.actions.action import Actor
    from gateway.admin.actions.local import LocalClient
    from gateway.config.schema import load
    from gateway.runtime.data_folder import usage_home

    loaded = load(found(config), keys=keys)
    if needs == "files":
        usage_home(loaded.config)

    async def at(store: Store) -> Result:
        return await work(LocalClient(loaded, store, Actor(who())))

    async def at_store() -> Result:
        async with store_of(loaded.config) as store:
            return await at(store)

    if needs != "store":
        with suppress(_NeedsStore):
            return asyncio.run(at(cast("Store", _Unopened())))
    return asyncio.run(at_store())


async def _at_gateway(config: Path | None, api: str, work: Callable[[ActionClient], Awaitable[Result]]) -> Result:
    from gateway.admin.actions.remote import TOKEN, HttpClient

    if config is not None:
        raise Misconfigured("--config names a store and --api (or $GATEWAY_API) a gateway: give one of them")
    async with HttpClient.open(api, os.environ.get(TOKEN, "")) as client:
        return await work(client)


class _NeedsStore(Exception):
    """What was asked for is not in the files alone."""


class _Unopened:
    """Stands for a store that is not open."""

    def __getattr__(self, name: str) -> Any:
        raise _NeedsStore(name)


@asynccontextmanager
async def noted(store: Store, operation: str, **about: str) -> AsyncIterator[None]:
    """Leave lines in the audit log for what a command changes that is no action of the API. `about`: what it is done to."""
    from gateway.admin.actions.action import Arguments
    from gateway.admin.actions.audit_log import audited

    async with audited(store.client, who(), operation, Arguments(about)):
        yield


def who() -> str:
    """Return who runs this command, for the audit log: as in `command of alice@host`."""
    try:
        user = os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):  # a container may have no name for its user
        user = str(os.getuid())
    return f"command of {user}@{socket.gethostname()}"


def print_notes(notes: Iterable[str]) -> None:
    """Print on standard error what is probably a mistake."""
    for note in notes:
        typer.echo(shown(f"note: {note}"), err=True)

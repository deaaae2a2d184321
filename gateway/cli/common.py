"""Shared parts of the commands: common options, the store, amounts and times, tables for people and JSON for scripts.

What a command may not need is imported where it is used: all of it takes longer to import than most commands to run.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from gateway.admin.actions.times import period
from gateway.base.amounts import amount, parsed
from gateway.base.errors import Misconfigured, StoreAway
from gateway.base.ids import is_request_id
from gateway.cli.exits import DEMO_NAMED, refuse
from gateway.cli.tables import print_fields, print_table
from gateway.config.document import find, shipped

if TYPE_CHECKING:
    from gateway.chain.services import Store
    from gateway.config.schema import Config


__all__ = ["amount", "print_fields", "print_table", "refuse"]


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        help="Read the configuration from this file. Default: `$GATEWAY_CONFIG`, else `./gateway.yaml`, else the demo's file.",
        show_default=False,
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON for scripts: one object, or one on each line. Times are in UTC.")
]
TokenOption = Annotated[
    str,
    typer.Option(
        envvar="GATEWAY_TOKEN",
        show_envvar=True,
        callback=lambda given: sys.stdin.readline().strip() if given == "-" else given,
        help="The caller's token, or `-` to read it from standard input. Other users of the machine can see command lines.",
    ),
]
CsvOption = Annotated[bool, typer.Option("--csv", help="Print CSV; amounts in millionths of a currency unit.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def confirm(question: str) -> None:
    """Ask a person, and end the command where the answer is no. Raises `Misconfigured` where nobody is there to answer."""
    try:
        sure = typer.confirm(question, err=True)
    except typer.Abort:
        if sys.stdin.isatty():
            raise
        typer.echo(err=True)
        raise Misconfigured("nobody answers here: give --yes where there is no terminal") from None
    if not sure:
        raise typer.Abort


def found(path: Path | None) -> Path:
    """Return the file of `--config` or its fallbacks, and say so where it is that of the demo."""
    file = find(path)
    by_default = path is None and not os.environ.get("GATEWAY_CONFIG") and file == shipped("demo.yaml")
    if by_default and not DEMO_NAMED.get():
        DEMO_NAMED.set(True)
        typer.echo(
            f"note: without --config, $GATEWAY_CONFIG and ./gateway.yaml the demo's file is used: {file}", err=True
        )
    return file


def configuration(path: Path | None) -> Config:
    """Return the checked configuration of `--config` or its fallbacks. Raises `Misconfigured`.

    The credentials of the channels are in it only if they are here: most commands need none.
    """
    from gateway.config.schema import load

    return load(found(path), keys=False).config


@contextmanager
def store_url(config: Config) -> Iterator[str]:
    """Yield the URL of the configuration's store. An embedded one that does not run is started, and stopped at the end.

    Raises `NoStore` where it has never been started.
    """
    from gateway.runtime.data_folder import check_access, existing_folder
    from gateway.store.embedded import EmbeddedStore

    if config.redis != "embedded":
        yield config.redis
        return
    folder = existing_folder(config)
    check_access(folder)
    embedded = EmbeddedStore.start(folder)
    try:
        yield embedded.url
    finally:
        embedded.stop()


@contextmanager
def _with_folder(config: Config) -> Iterator[Config]:
    """Yield the configuration, for a store elsewhere with a data folder for the moment where there is none: commands make none."""
    from gateway.runtime.data_folder import has_store

    if has_store(config):
        yield config
        return
    with TemporaryDirectory(prefix="gateway-") as folder:
        yield msgspec.structs.replace(config, data=folder)


def note_api() -> None:
    """Say that a command does not ask the gateway that the environment names."""
    if os.environ.get("GATEWAY_API"):
        typer.echo("note: this command does not ask $GATEWAY_API; it uses the store of the configuration", err=True)


@asynccontextmanager
async def store_of(config: Config) -> AsyncIterator[Store]:
    """Open the configuration's store, see `store_url`. Raises `Misconfigured` where its data is in another layout."""
    from gateway.chain.services import Store
    from gateway.store import layout
    from gateway.store.client.topology import naming_the_store
    from gateway.store.pepper import PepperSource
    from gateway.store.tokens import Tokens

    note_api()
    with store_url(config) as url, _with_folder(config) as local, naming_the_store(url):
        async with Store.open(local, url) as store:
            store.tokens = Tokens(store.client, PepperSource(config.data_path))
            with suppress(StoreAway):  # the command says it, if it needs the store
                await layout.check(store.client)
            yield store


def micros(text: str) -> int:
    """Convert an amount such as `5.00` to micros. Raises `typer.BadParameter`."""
    try:
        return parsed(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def point_in_time(text: str) -> int:
    """Convert a time, or when a day or a month begins, to milliseconds since 1970. Raises `typer.BadParameter`."""
    return _period(text)[0]


def end_of_time(text: str) -> int:
    """Convert a time, or when a day or a month ends, to milliseconds since 1970. Raises `typer.BadParameter`."""
    return _period(text)[1]


def day(text: str) -> str:
    """Return a day in the form 2026-11-21. Raises `typer.BadParameter`."""
    with suppress(ValueError):
        return date.fromisoformat(text).isoformat()
    raise typer.BadParameter(f"`{text}` is not a time; write a day as in 2026-11-21 (UTC)")


def _period(text: str) -> tuple[int, int]:
    """Return when an age such as `12h`, a day, a month or a minute begins and ends; an age is one moment."""
    try:
        return period(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def print_json(value: object) -> None:
    """Print an object as one line of JSON."""
    print(msgspec.json.encode(value, enc_hook=str).decode())


def print_csv(rows: Iterable[Mapping[str, object]]) -> None:
    """Print rows as CSV under their names; nothing where there are none: see `csv_lines`."""
    from gateway.base.text import csv_lines

    sys.stdout.writelines(csv_lines(rows))


PAUSE_S: Final = 0.1
"""Between two changes of the line."""
_ERASE: Final = "\r\x1b[K"


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Yield what shows a text in the line, in place of the one before, with the time since the start."""
    shown_on = sys.stderr
    began = time.monotonic()
    last = -PAUSE_S

    def show(text: str) -> None:
        nonlocal last
        passed = time.monotonic() - began
        if passed - last >= PAUSE_S:
            last = passed
            shown_on.write(f"{_ERASE}{text}, {passed:.0f} s")
            shown_on.flush()

    if shown_on is None or not shown_on.isatty():
        yield lambda text: None
        return
    try:
        yield show
    finally:
        shown_on.write(_ERASE)
        shown_on.flush()


def request_id(text: str) -> str:
    """Return an id as the usage log has it, however it is copied. Raises `typer.BadParameter`, which does not repeat it."""
    found = text.strip(" \t\r\n\"'`,;").lower()
    if is_request_id(found):
        return found
    raise typer.BadParameter(
        "this is not a request's id: copy the `x-request-id` of the response, as in 01a1fccb-1807-7197-9f1b-61a58aba6c92"
    )


RequestArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The request's id: the `x-request-id` of its response.", parser=request_id)
]

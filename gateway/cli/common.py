"""What the commands share: common options, the store, amounts and times, tables for people and JSON for scripts."""

from __future__ import annotations

import asyncio
import csv
import re
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from gateway.cli.exits import failed
from gateway.config.schema import Config, find
from gateway.config.without_keys import load_without_keys
from gateway.errors import StoreAway
from gateway.prices import MICROS
from gateway.runtime.data_folder import data_folder
from gateway.services import Store
from gateway.store import layout

Result = TypeVar("Result")

CONSOLE_WIDTH: Final = 10_000
"""Characters of a line. No table comes near it."""
LARGEST_AMOUNT: Final = 2**53 // MICROS
"""Currency units. Up to here, micros are exact in a script, whose numbers are doubles."""
UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        help="Read the configuration from this file. Default: `$GATEWAY_CONFIG`, else `./gateway.yaml`, else the demo's file.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts: one object, or one on each line.")]
TokenOption = Annotated[
    str,
    typer.Option(
        envvar="GATEWAY_TOKEN",
        show_envvar=True,
        callback=lambda given: sys.stdin.readline().strip() if given == "-" else given,
        help="The caller's token, or `-` to read it from standard input. Other users of the machine can see command lines.",
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def configuration(path: Path | None) -> Config:
    """Return the checked configuration of `--config` or its fallbacks. Raises `Misconfigured`.

    No command that uses it needs the channels' credentials.
    """
    return load_without_keys(find(path)).config


@contextmanager
def store_url(config: Config) -> Iterator[str]:
    """Yield the URL of the configuration's store. An embedded one that does not run is started, and stopped at the end."""
    with _running(config) as (url, _):
        yield url


@contextmanager
def _running(config: Config) -> Iterator[tuple[str, bool]]:
    """Do as `store_url`, and yield also whether the store was started here, so that no gateway uses it."""
    from gateway.store.client.embedded import EmbeddedStore

    if config.redis != "embedded":
        yield config.redis, False
        return
    embedded = EmbeddedStore.start(data_folder(config))
    try:
        yield embedded.url, embedded.owned
    finally:
        embedded.stop()


@asynccontextmanager
async def store_of(config: Config) -> AsyncIterator[Store]:
    """Open the configuration's store, see `store_url`, and check the layout of its data.

    A store that was started here is converted if it is of an earlier layout. Raises `Misconfigured` for another one.
    """
    with _running(config) as (url, owned):
        async with Store.open(config, url) as store:
            if owned:
                await layout.prepare(store.client, lambda progress: typer.echo(progress, err=True))
            else:
                with suppress(StoreAway):  # the command says it, if it needs the store
                    await layout.check(store.client)
            yield store


def run_with_store(path: Path | None, work: Callable[[Store], Coroutine[Any, Any, Result]]) -> Result:
    """Run `work` with the store of the configuration at `path`, and return its result."""

    async def inner() -> Result:
        async with store_of(configuration(path)) as store:
            return await work(store)

    return asyncio.run(inner())


def micros(text: str) -> int:
    """Convert an amount such as `5.00` to micros. Raises `typer.BadParameter`."""
    try:
        amount = Decimal(text)
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite():
        raise typer.BadParameter(f"`{text}` is not an amount; write it as in 5.00")
    if not -LARGEST_AMOUNT < amount < LARGEST_AMOUNT:
        raise typer.BadParameter(f"`{text}` is too large: give less than {LARGEST_AMOUNT}")
    if amount != round(amount, 6):
        raise typer.BadParameter(f"`{text}` cannot be stored exactly; use at most six decimals")
    return int(amount * MICROS)


def point_in_time(text: str) -> int:
    """Convert a day, or an age such as `12h`, to milliseconds since 1970. Raises `typer.BadParameter`."""
    match = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    if match:
        return max(0, round((time.time() - int(match[1]) * UNITS_S[match[2]]) * 1000))
    return round(datetime.combine(date.fromisoformat(day(text)), datetime.min.time(), UTC).timestamp() * 1000)


def day(text: str) -> str:
    """Return a day in the form 2026-11-21. Raises `typer.BadParameter`."""
    with suppress(ValueError):
        return date.fromisoformat(text).isoformat()
    raise typer.BadParameter(f"`{text}` is not a time; write 30m, 12h, 7d, or a day as in 2026-11-21 (UTC)")


def amount(value: int) -> str:
    """Format micros as an amount: `5.00`, `0.000123`."""
    text = f"{Decimal(value) / MICROS:.6f}"
    whole, _, decimals = text.partition(".")
    return f"{whole}.{decimals.rstrip('0').ljust(2, '0')}"


def print_json(value: object) -> None:
    """Print an object as one line of JSON."""
    print(msgspec.json.encode(value).decode())


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print a table, or the sentence `empty` if there are no rows."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    if table.row_count:
        _print_unpadded(table)
    else:
        console().print(empty)


def print_csv(rows: Iterable[Mapping[str, object]]) -> None:
    """Print rows as CSV under their names; nothing where there are none. What is neither text nor a number is JSON."""
    output = csv.writer(sys.stdout, lineterminator="\n")
    for number, row in enumerate(rows):
        if number == 0:
            output.writerow(row)
        output.writerow(
            "" if value is None else value if isinstance(value, str) else msgspec.json.encode(value).decode()
            for value in row.values()
        )


def print_fields(fields: Mapping[str, object]) -> None:
    """Print names and values, one pair on each line."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in fields.items():
        table.add_row(name, str(value))
    _print_unpadded(table)


def _print_unpadded(table: Table) -> None:
    """Print a table without the blanks with which the longest line of the last column pads all the others."""
    output = console()
    with output.capture() as captured:
        output.print(table)
    print("\n".join(line.rstrip() for line in captured.get().split("\n")), end="")


def console() -> Console:
    """Return standard output as a console that neither interprets markup in values nor cuts or wraps them."""
    return Console(markup=False, highlight=False, soft_wrap=True, width=CONSOLE_WIDTH)


def refuse(text: str, kind: str = "refused") -> typer.Exit:
    """Print an error on standard error, and return the exit with the code of its kind, to be raised."""
    return failed(text, kind)

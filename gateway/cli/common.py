"""What every command shares: the configuration option, the store, tables for people and JSON for scripts."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from gateway.catalogue import MICROS
from gateway.config.schema import Config, find, load
from gateway.runtime.data_folder import data_folder
from gateway.services import Store

Result = TypeVar("Result")

LONGEST_LINE: Final = 10_000
SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        help="The YAML file; else $GATEWAY_CONFIG, else ./gateway.yaml, else the demo's.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON for scripts, one object or one a line.")]
TokenOption = Annotated[
    str,
    typer.Option(
        envvar="GATEWAY_TOKEN",
        show_envvar=True,
        callback=lambda given: sys.stdin.readline().strip() if given == "-" else given,
        help="The caller's token; `-` reads it from standard input. On a command line, others can see it.",
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def configuration(path: Path | None) -> Config:
    """The checked configuration that `--config` and its fallbacks lead to. Raises `Misconfigured`."""
    return load(find(path)).config


@asynccontextmanager
async def store_of(config: Config) -> AsyncIterator[Store]:
    """The configuration's store. An embedded one that is not running is started for the moment."""
    from gateway.store.client.embedded import EmbeddedStore

    embedded = None
    url = config.redis
    if url == "embedded":
        embedded = EmbeddedStore.start(data_folder(config))
        url = embedded.url
    try:
        async with Store.open(config, url) as store:
            yield store
    finally:
        if embedded is not None:
            embedded.stop()


def run_with_store(path: Path | None, work: Callable[[Store], Coroutine[Any, Any, Result]]) -> Result:
    """Run `work` against the configuration's store."""

    async def inner() -> Result:
        async with store_of(configuration(path)) as store:
            return await work(store)

    return asyncio.run(inner())


def micros(text: str) -> int:
    """An amount such as `5.00` in micros. Raises `typer.BadParameter`."""
    try:
        amount = Decimal(text)
    except InvalidOperation:
        raise typer.BadParameter(f"`{text}` is not an amount; write it like 5.00") from None
    value = amount * MICROS
    if not amount.is_finite() or value != value.to_integral_value() or abs(value) >= 2**53:
        raise typer.BadParameter(f"`{text}` cannot be kept exactly; use at most six decimals")
    return int(value)


def point_in_time(text: str) -> int:
    """Milliseconds since 1970, from a day or from how long ago it was. Raises `typer.BadParameter`."""
    match = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    if match:
        return max(0, round((time.time() - int(match[1]) * SECONDS[match[2]]) * 1000))
    return round(datetime.combine(date.fromisoformat(day(text)), datetime.min.time(), UTC).timestamp() * 1000)


def day(text: str) -> str:
    """A day of the calendar. Raises `typer.BadParameter`."""
    with suppress(ValueError):
        return date.fromisoformat(text).isoformat()
    raise typer.BadParameter(f"`{text}` is no time; write 30m, 12h, 7d, or a day like 2026-11-21 (UTC)")


def amount(value: int) -> str:
    """Micros as people write them: `5.00`, `0.000123`."""
    text = f"{Decimal(value) / MICROS:.6f}"
    whole, _, decimals = text.partition(".")
    return f"{whole}.{decimals.rstrip('0').ljust(2, '0')}"


def print_json(value: object) -> None:
    """One object on one line of stdout."""
    print(msgspec.json.encode(value).decode())


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """A table for people; `empty` says what to do where there is no row."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    console().print(table if table.row_count else empty)


def print_fields(fields: Mapping[str, object]) -> None:
    """Names and values, one a line."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in fields.items():
        table.add_row(name, str(value))
    console().print(table)


def console() -> Console:
    """Standard output; markup in values is never interpreted, and no value is cut: ids are there to be copied."""
    return Console(markup=False, highlight=False, soft_wrap=True, width=LONGEST_LINE)


def refuse(text: str) -> typer.Exit:
    """Say on stderr why a command does not do what was asked; raise the result (exit 1)."""
    typer.echo(f"gateway: {text}", err=True)
    return typer.Exit(1)

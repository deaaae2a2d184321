"""`gateway usage`: the usage log, for people and for scripts."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from gateway.cli.common import (
    ConfigOption,
    JsonOption,
    amount,
    configuration,
    day,
    point_in_time,
    print_csv,
    print_fields,
    print_json,
    print_table,
    refuse,
    store_of,
)
from gateway.config.schema import Config
from gateway.exchange import Outcome
from gateway.usage import queries
from gateway.usage.damage import UnusableFile
from gateway.usage.record import Record
from gateway.usage.tables import GROUPS, SUMS

usage = typer.Typer(
    no_args_is_help=True, help="Read the usage log: whether a request arrived, how it ended, what it cost."
)


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.add_typer(usage, name="usage")


def _groups(text: str) -> list[str]:
    names = ["token_id" if name == "token" else name for name in text.split(",")]
    if unknown := [name for name in names if name not in GROUPS]:
        raise typer.BadParameter(f"`{unknown[0]}` is not one of account, token, model, channel, day")
    return list(dict.fromkeys(names))


AccountOption = Annotated[str | None, typer.Option(metavar="ID", help="Only this account's requests.")]
OutcomeOption = Annotated[Outcome | None, typer.Option(help="Only requests with this outcome.")]
CsvOption = Annotated[bool, typer.Option("--csv", help="Print CSV; amounts in millionths of a currency unit.")]
SinceOption = Annotated[
    int | None,
    typer.Option(
        parser=point_in_time,
        metavar="TIME",
        help="Only requests since this time: 30m, 12h, 7d, or a day as in 2026-11-21 (UTC).",
    ),
]


@usage.command("list")
def list_(
    account: AccountOption = None,
    since: SinceOption = None,
    outcome: OutcomeOption = None,
    limit: Annotated[int, typer.Option(min=1, help="How many requests to list at most.")] = 50,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List requests, newest first.

    Example: `gateway usage list --account alice --since 1h --outcome caller_gone`
    """
    unusable: list[UnusableFile] = []
    records = queries.select(
        _folder(config), account=account, outcome=outcome, since_ms=since, newest_first=True, unusable=unusable
    )
    _print(islice(records, limit), as_json, empty="There are no such requests. Does `--since` reach far enough back?")
    _fail(unusable)


@usage.command()
def show(
    request_id: Annotated[
        str, typer.Argument(metavar="ID", help="The request's id: the `x-request-id` of its response.")
    ],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the record of one request with all its fields.

    Example: `gateway usage show 01a1fccb-1807-7197-9f1b-61a58aba6c92 --json`
    """
    record = find(config, request_id)
    if record is None:
        raise refuse(f"the usage log has no request {request_id}", "not_found")
    if as_json:
        print_json(record)
        return
    print_fields({name: _plain(value) for name, value in msgspec.to_builtins(record).items()})


@usage.command()
def tail(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Print each request when it ends, until Ctrl-C.

    Example: `gateway usage tail --json | jq 'select(.outcome != "completed")'`
    """
    with suppress(KeyboardInterrupt):
        asyncio.run(_follow(configuration(config), as_json))


@usage.command()
def summary(
    by: Annotated[
        str, typer.Option(metavar="NAMES", help="Group by these: some of account,token,model,channel,day.")
    ] = "day",
    first: Annotated[
        str | None, typer.Option("--from", parser=day, metavar="DAY", help="The first day, such as 2026-11-01 (UTC).")
    ] = None,
    last: Annotated[
        str | None,
        typer.Option("--to", parser=day, metavar="DAY", help="The last day, included, such as 2026-11-30 (UTC)."),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Show totals of requests, tokens, charges, costs and margins.

    Costs are those of `cost` in the file. `unknown_costs` counts the requests without one: they are missing in `cost` and `margin`.

    Example: `gateway usage summary --by account,model,day --from 2026-11-01 --to 2026-11-30`
    """
    groups = _groups(by)
    unusable: list[UnusableFile] = []
    totals = queries.summary(_folder(config), groups, since=first, until=last, unusable=unusable)
    if as_csv:
        print_csv(totals)
    elif as_json:
        for total in totals:
            print_json(total)
    else:
        columns = [*groups, *(name.removesuffix("_micros") for name in SUMS)]
        print_table(columns, map(_total_cells, totals), empty="No requests ended in that time.")
    _fail(unusable)


@usage.command()
def export(
    account: AccountOption = None,
    outcome: OutcomeOption = None,
    since: SinceOption = None,
    config: ConfigOption = None,
    as_csv: CsvOption = False,
) -> None:
    """Print records as JSON, one on each line, oldest first; or as CSV.

    Example: `gateway usage export --since 30d > usage.jsonl`
    """
    unusable: list[UnusableFile] = []
    records = queries.select(_folder(config), account=account, outcome=outcome, since_ms=since, unusable=unusable)
    if as_csv:
        print_csv(map(msgspec.to_builtins, records))
    else:
        for record in records:
            print_json(record)
    _fail(unusable)


def _total_cells(total: Mapping[str, Any]) -> list[object]:
    """Return the cells of a row of sums. Where no cost is known there is neither a cost nor a margin."""
    unknown = ("cost_micros", "margin_micros") if total["unknown_costs"] == total["requests"] else ()
    return [
        "-" if value == "" or name in unknown else amount(value) if name.endswith("_micros") else value
        for name, value in total.items()
    ]


def _fail(unusable: list[UnusableFile]) -> None:
    """End with exit code 1 where files could not be read, and name them."""
    for error in unusable:
        left_out = refuse(str(error))
    if unusable:
        raise left_out


async def _follow(settings: Config, as_json: bool) -> None:
    from gateway.cli.follow import ended  # it imports aiohttp, which takes a third of a second

    async for record in ended(settings):
        if as_json:
            print_json(record)
        else:
            print("  ".join(_cells(record)))
        sys.stdout.flush()


def find(config: Path | None, request_id: str) -> Record | None:
    """Return the record of a request from the files, or else from the store if it is not in them yet."""
    settings = configuration(config)
    record = None
    with suppress(UnusableFile):  # the store may have it, or says what is wrong
        record = queries.find(settings.data_path / "usage", request_id)
    return record if record is not None and record.outcome else asyncio.run(_find_anywhere(settings, request_id))


async def _find_anywhere(settings: Config, request_id: str) -> Record | None:
    async with store_of(settings) as store:
        return await store.usage.find(request_id)


def _folder(config: Path | None) -> Path:
    return configuration(config).data_path / "usage"


COLUMNS: Final = ("arrived", "id", "account", "model", "channel", "outcome", "status", "tokens", "charge", "ms")


def _cells(record: Record) -> list[str]:
    tokens = f"{record.prompt_tokens}+{record.completion_tokens}" if record.usage_source != "none" else ""
    cells = (
        record.arrived_at,
        record.id,
        record.account,
        record.model,
        record.channel,
        record.outcome or "under way",
        record.status or "",
        tokens,
        amount(record.charge_micros),
        record.duration_ms,
    )
    return [str(cell) or "-" for cell in cells]


def _print(records: Iterable[Record], as_json: bool, *, empty: str) -> None:
    if as_json:
        for record in records:
            print_json(record)
        return
    print_table(COLUMNS, map(_cells, records), empty=empty)


def _plain(value: object) -> str:
    if value is None or value == "":
        return "-"
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)

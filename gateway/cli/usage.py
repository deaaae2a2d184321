"""`gateway usage`: the usage log, for people and for scripts."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from gateway.cli.common import (
    ConfigOption,
    JsonOption,
    configuration,
    end_of_time,
    point_in_time,
    print_csv,
    print_fields,
    print_json,
    printable,
    refuse,
    store_of,
)
from gateway.cli.named import account_of
from gateway.cli.request_ids import RequestArgument
from gateway.cli.tables import GAP
from gateway.cli.usage_tables import cells_of, print_requests, print_sums
from gateway.exchange import Outcome
from gateway.request_id import arrival_ms
from gateway.runtime.data_folder import usage_folder
from gateway.usage import queries
from gateway.usage.damage import UnusableFile
from gateway.usage.gaps import notes
from gateway.usage.search import Found
from gateway.usage.sums import NAMES, Selected, grouped

if TYPE_CHECKING:
    from gateway.config.schema import Config
    from gateway.usage.record import Record

usage = typer.Typer(
    no_args_is_help=True, help="Read the usage log: whether a request arrived, how it ended, what it cost."
)


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.add_typer(usage, name="usage")


_SHORT: Final = {"token": "token_id", "error": "error_code"}
_LONG: Final = {name: short for short, name in _SHORT.items()}
_GIVEN: Final = ", ".join(_LONG.get(name, name) for name in NAMES)


def _groups(text: str) -> list[str]:
    names = [_SHORT.get(name, name) for name in text.split(",")]
    if unknown := [name for name in names if name not in NAMES]:
        raise typer.BadParameter(f"`{unknown[0]}` is not one of {_GIVEN}")
    return list(dict.fromkeys(names))


AccountOption = Annotated[
    str | None, typer.Option(metavar="ID", help="Only this account's requests; ext:user-17 for an external id.")
]
ModelOption = Annotated[str | None, typer.Option(metavar="NAME", help="Only requests for this model.")]
OutcomeOption = Annotated[
    Outcome | None,
    typer.Option(metavar="OUTCOME", help=f"Only requests with this outcome: {', '.join(Outcome)}."),
]
CsvOption = Annotated[bool, typer.Option("--csv", help="Print CSV; amounts in millionths of a currency unit.")]
FromOption = Annotated[
    int | None,
    typer.Option(
        "--from",
        "--since",
        parser=point_in_time,
        metavar="TIME",
        help="Only requests since this time: 30m, 12h, 7d, a day as in 2026-11-21, a month as in 2026-11 (UTC).",
    ),
]
ToOption = Annotated[
    int | None,
    typer.Option(
        "--to", parser=end_of_time, metavar="TIME", help="Only requests until then; a day or a month is included."
    ),
]


@usage.command("list")
def list_(
    account: AccountOption = None,
    model: ModelOption = None,
    outcome: OutcomeOption = None,
    since: FromOption = None,
    until: ToOption = None,
    limit: Annotated[int, typer.Option(min=1, help="How many requests to list at most.")] = 50,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """List requests, newest first.

    Example: `gateway usage list --account alice --from 1h --outcome caller_gone`
    """
    _check_order(since, until)
    unusable: list[UnusableFile] = []
    selected = _selected(config, account, model, outcome, since, until)
    records = list(islice(_select(config, selected, unusable, newest_first=True), limit))
    if as_csv or as_json:
        _print_all(records, as_csv)
    else:
        print_requests(records, empty="There are no such requests. Does `--from` reach far enough back?")
    _note_gaps(_folder(config), arrival_ms(records[-1].id) if len(records) == limit else since, until)
    _fail(unusable)


@usage.command()
def show(
    request_id: RequestArgument,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the record of one request with all its fields.

    Example: `gateway usage show 01a1fccb-1807-7197-9f1b-61a58aba6c92 --json`
    """
    found = find(config, request_id)
    if (record := found.record) is None:
        raise refuse("; ".join([f"the usage log has no request {request_id}", *found.unasked]), "not_found")
    if as_json:
        print_json(record)
        return
    print_fields({name: _plain(value) for name, value in msgspec.to_builtins(record).items()})


@usage.command()
def tail(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Print each request when it ends, until Ctrl-C.

    Example: `gateway usage tail --json | jq 'select(.outcome != "completed")'`
    """
    settings = configuration(config)
    usage_folder(settings)
    with suppress(KeyboardInterrupt):
        asyncio.run(_follow(settings, as_json))


@usage.command()
def summary(
    by: Annotated[
        str, typer.Option(metavar="NAMES", help=f"Group by these, with commas between them: {_GIVEN}.")
    ] = "day",
    account: AccountOption = None,
    model: ModelOption = None,
    outcome: OutcomeOption = None,
    since: FromOption = None,
    until: ToOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Show totals of requests, tokens, charges, costs and margins.

    Costs are those of `cost` in the file. `unknown_costs` counts the requests without one: they are missing in `cost` and `margin`.
    In a table, `written` are tokens that were written to a cache. Columns that a table has no room for are in CSV and JSON.

    Examples: `gateway usage summary --by account,model,day --from 2026-11`,
    `gateway usage summary --by hour,error --from 12h --account alice`
    """
    _check_order(since, until)
    groups = _groups(by)
    unusable: list[UnusableFile] = []
    selected = _selected(config, account, model, outcome, since, until)
    totals = grouped(_folder(config), groups, selected, unusable)
    if as_csv:
        print_csv(totals)
    elif as_json:
        for total in totals:
            print_json(total)
    else:
        print_sums(groups, totals, empty="No requests ended in that time.")
    _note_gaps(_folder(config), since, until)
    _fail(unusable)


@usage.command()
def export(
    account: AccountOption = None,
    model: ModelOption = None,
    outcome: OutcomeOption = None,
    since: FromOption = None,
    until: ToOption = None,
    config: ConfigOption = None,
    as_csv: CsvOption = False,
) -> None:
    """Print records as JSON, one on each line, oldest first; or as CSV.

    Example: `gateway usage export --from 30d > usage.jsonl`
    """
    _check_order(since, until)
    unusable: list[UnusableFile] = []
    selected = _selected(config, account, model, outcome, since, until)
    _print_all(_select(config, selected, unusable), as_csv)
    _note_gaps(_folder(config), since, until)
    _fail(unusable)


def _selected(
    config: Path | None,
    account: str | None,
    model: str | None,
    outcome: Outcome | None,
    since: int | None,
    until: int | None,
) -> Selected:
    return Selected(account and account_of(config, account), model, outcome, since, until)


def _check_order(since: int | None, until: int | None) -> None:
    if since is not None and until is not None and since >= until:
        raise typer.BadParameter("`--from` must be before `--to`")


def _select(
    config: Path | None, selected: Selected, unusable: list[UnusableFile], *, newest_first: bool = False
) -> Iterator[Record]:
    terms = msgspec.structs.asdict(selected)
    return queries.select(_folder(config), **terms, newest_first=newest_first, unusable=unusable)


def _print_all(records: Iterable[Record], as_csv: bool) -> None:
    if as_csv:
        print_csv(map(msgspec.to_builtins, records))
        return
    for record in records:
        print_json(record)


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
            print(GAP.join(cells_of(record)))
        sys.stdout.flush()


def find(config: Path | None, request_id: str) -> Found:
    """Return the record of a request from the files, or else from the store if it is not in them yet; or who was not asked."""
    settings = configuration(config)
    record = None
    with suppress(UnusableFile):  # the store may have it, or says what is wrong
        record = queries.find(settings.data_path / "usage", request_id)
    return Found(record) if record is not None and record.outcome else asyncio.run(_find_anywhere(settings, request_id))


async def _find_anywhere(settings: Config, request_id: str) -> Found:
    async with store_of(settings) as store:
        return await store.usage.ask(request_id)


def _note_gaps(folder: Path, since_ms: int | None = None, until_ms: int | None = None) -> None:
    """Print what may be missing in an answer about this time, on standard error."""
    for note in notes(folder, since_ms, until_ms):
        typer.echo(f"note: {note}", err=True)


def _folder(config: Path | None) -> Path:
    return usage_folder(configuration(config))


def _plain(value: object) -> str:
    if value is None or value == "":
        return "-"
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return printable(text)

"""`gateway usage`: the usage log, for people and for scripts."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from gateway.cli.client import ApiOption, run_at_files, run_with_client
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
)
from gateway.cli.named import account_at, account_of
from gateway.cli.request_ids import RequestArgument
from gateway.cli.tables import GAP
from gateway.cli.usage_tables import cells_of, print_requests, print_sums
from gateway.domain.exchange import Outcome
from gateway.runtime.data_folder import usage_folder
from gateway.usage import queries
from gateway.usage.database import SUMS, UnusableFile
from gateway.usage.gaps import notes
from gateway.usage.sums import NAMES, Selected

if TYPE_CHECKING:
    from gateway.admin.actions.action import ActionClient
    from gateway.admin.actions.requests import RequestPage
    from gateway.admin.actions.usage import SumLine, Summary
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


async def _terms(
    client: ActionClient,
    account: str | None,
    model: str | None,
    outcome: Outcome | None,
    since: int | None,
    until: int | None,
) -> dict[str, Any]:
    from gateway.admin.actions.times import moment

    return {
        "account": account and await account_at(client, account),
        "model": model,
        "outcome": outcome,
        "since": moment(since),
        "until": moment(until),
    }


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
    api: ApiOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """List requests, newest first.

    Example: `gateway usage list --account alice --from 1h --outcome caller_gone`
    """
    _check_order(since, until)

    async def work(client: ActionClient) -> tuple[list[Record], RequestPage]:
        from gateway.admin.actions import requests
        from gateway.admin.actions.action import LARGEST_LONG_PAGE

        terms = await _terms(client, account, model, outcome, since, until)
        found: list[Record] = []
        unread: list[str] = []
        after = ""
        while True:
            query = requests.Requests(limit=min(limit - len(found), LARGEST_LONG_PAGE), after=after, **terms)
            page = await requests.list_(client, query=query)
            found += page.data
            unread += page.unread
            after = page.next or ""
            if not after or len(found) == limit:
                return found, msgspec.structs.replace(page, unread=list(dict.fromkeys(unread)))

    records, page = run_at_files(config, api, work)
    if as_csv or as_json:
        _print_all(records, as_csv)
    else:
        print_requests(records, empty="There are no such requests. Does `--from` reach far enough back?")
    _note_gaps(page.notes)
    _fail(page.unread)


@usage.command()
def show(
    request_id: RequestArgument,
    config: ConfigOption = None,
    api: ApiOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the record of one request with all its fields.

    Example: `gateway usage show 01a1fccb-1807-7197-9f1b-61a58aba6c92 --json`
    """

    async def work(client: ActionClient) -> Record:
        from gateway.admin.actions import requests

        return requests.record_of(await requests.read(client, request_id))

    record = run_at_files(config, api, work)
    if as_json:
        print_json(record)
        return
    print_fields({name: _plain(value) for name, value in msgspec.to_builtins(record).items()})


@usage.command()
def tail(config: ConfigOption = None, api: ApiOption = None, as_json: JsonOption = False) -> None:
    """Print each request when it ends, until Ctrl-C.

    Example: `gateway usage tail --json | jq 'select(.outcome != "completed")'`
    """
    if api is not None:
        with suppress(KeyboardInterrupt):
            run_with_client(config, api, lambda client: _follow_there(client, as_json))
        return
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
    api: ApiOption = None,
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

    async def work(client: ActionClient) -> tuple[list[SumLine], Summary]:
        from gateway.admin.actions import usage

        terms = await _terms(client, account, model, outcome, since, until)
        found: list[SumLine] = []
        after: str | None = ""
        while after is not None:
            query = usage.SumsQuery(by=",".join(groups), **terms, limit=usage.MOST_LINES, after=after)
            page = await usage.summary(client, query=query)
            found += page.data
            after = page.next
        return found, page

    lines, page = run_at_files(config, api, work)
    totals = [{name: getattr(line, name) for name in (*groups, *SUMS)} for line in lines]
    if as_csv:
        print_csv(totals)
    elif as_json:
        for total in totals:
            print_json(total)
    else:
        print_sums(groups, totals, empty="No requests ended in that time.")
    _note_gaps(page.notes)
    _fail(page.unread)


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
    selected = Selected(account and account_of(config, account), model, outcome, since, until)
    folder = usage_folder(configuration(config))
    records = queries.select(folder, **msgspec.structs.asdict(selected), unusable=unusable)
    _print_all(records, as_csv)
    _note_gaps(notes(folder, since, until))
    _fail(map(str, unusable))


def _check_order(since: int | None, until: int | None) -> None:
    if since is not None and until is not None and since >= until:
        raise typer.BadParameter("`--from` must be before `--to`")


def _print_all(records: Iterable[Record], as_csv: bool) -> None:
    if as_csv:
        print_csv(map(msgspec.to_builtins, records))
        return
    for record in records:
        print_json(record)


def _fail(unread: Iterable[str]) -> None:
    """End with exit code 1 where files could not be read, and name them."""
    left_out = [refuse(text) for text in unread]
    if left_out:
        raise left_out[-1]


async def _follow(settings: Config, as_json: bool) -> None:
    from gateway.cli.follow import ended  # it imports aiohttp, which takes a third of a second

    async for record in ended(settings):
        _print_ended(record, as_json)


async def _follow_there(client: ActionClient, as_json: bool) -> None:
    from gateway.admin.actions import usage
    from gateway.admin.actions.remote import FeedElsewhere

    feed = await usage.live(client, query=usage.Followed())
    if isinstance(feed, FeedElsewhere):
        async for record in feed.records():
            _print_ended(record, as_json)


def _print_ended(record: Record, as_json: bool) -> None:
    if as_json:
        print_json(record)
    else:
        print(GAP.join(cells_of(record)))
    sys.stdout.flush()


def _note_gaps(found: Iterable[str]) -> None:
    """Print what may be missing in an answer, on standard error."""
    for note in found:
        typer.echo(f"note: {note}", err=True)


def _plain(value: object) -> str:
    if value is None or value == "":
        return "-"
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return printable(text)

"""`gateway usage` and `gateway trace`: what arrived, how it ended, what it cost."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import tzinfo
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from gateway.admin.actions.action import LARGEST_LONG_PAGE
from gateway.admin.actions.times import local
from gateway.admin.actions.usage import GIVEN, MOST_LINES, dicts, groups
from gateway.base.amounts import amount
from gateway.base.errors import Refused
from gateway.base.text import counted, printable
from gateway.cli.client import USUAL, At, command, noted
from gateway.cli.common import (
    RequestArgument,
    end_of_time,
    point_in_time,
    print_csv,
    print_fields,
    print_json,
    progress,
    refuse,
    request_id,
)
from gateway.cli.exits import EXIT_CODES
from gateway.cli.tables import GAP, line_of, print_table, terminal_width, width_of, widths_of
from gateway.domain.exchange import Outcome
from gateway.usage import queries
from gateway.usage.completeness import notes
from gateway.usage.database import SUMS, UnusableFile

if TYPE_CHECKING:
    from gateway.usage.gateways import Membership
    from gateway.usage.record import Record

usage = typer.Typer()


def _groups(text: str) -> list[str]:
    try:
        return groups(text)
    except Refused as error:
        raise typer.BadParameter(error.message) from None


async def _terms(
    at: At, account: str | None, model: str | None, outcome: Outcome | None, since: int | None, until: int | None
) -> dict[str, Any]:
    from gateway.admin.actions.times import moment

    return {
        "account": account and await at.account(account),
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
    Outcome | None, typer.Option(metavar="OUTCOME", help=f"Only requests with this outcome: {', '.join(Outcome)}.")
]
TokenOption = Annotated[str | None, typer.Option(metavar="ID", help="Only requests with this token.")]
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


@command(usage, "list", options=(*USUAL, "as_csv"), needs="files")
async def list_(
    at: At,
    account: AccountOption = None,
    model: ModelOption = None,
    outcome: OutcomeOption = None,
    token: TokenOption = None,
    tag: Annotated[
        str | None, typer.Option(metavar="NAME:VALUE", help="Only requests with this tag, as in tenant:acme.")
    ] = None,
    since: FromOption = None,
    until: ToOption = None,
    limit: Annotated[int, typer.Option(min=1, help="How many requests to list at most.")] = 50,
) -> None:
    """List requests, newest first.

    Example: `gateway usage list --account alice --from 1h --outcome caller_gone`
    """
    _check_order(since, until)

    terms = await _terms(at, account, model, outcome, since, until) | {"token": token, "tag": tag}
    pages = [page async for page in at.pages("requests.list_", size=LARGEST_LONG_PAGE, most=limit, **terms)]
    records = [record for page in pages for record in page.data]
    if at.as_csv or at.as_json:
        _print_all(records, at.as_csv)
    else:
        print_requests(
            records, await at.zone(), empty="There are no such requests. Does `--from` reach far enough back?"
        )
    more = f"{len(records)} are listed, and there are more: give a larger --limit" if pages[-1].has_more else ""
    _note([*pages[-1].notes, *filter(None, [more])])
    _fail(dict.fromkeys(name for page in pages for name in page.unread))


@command(usage, needs="files")
async def show(at: At, request_id: RequestArgument) -> None:
    """Show the record of one request with all its fields.

    Example: `gateway usage show 01a1fccb-1807-7197-9f1b-61a58aba6c92 --json`
    """
    from gateway.admin.actions.requests import record_of, sum_of

    record = record_of(await at.do("requests.read", request_id))
    if at.as_json:
        print_json(record)
        return
    fields = {name: _plain(value) for name, value in msgspec.to_builtins(record).items()}
    print_fields(fields | {"charge": f"{amount(record.charge_micros)}{sum_of(record)}"})


@command(usage, needs="files")
async def tail(at: At) -> None:
    """Print each request when it ends, until Ctrl-C.

    Example: `gateway usage tail --json | jq 'select(.outcome != "completed")'`
    """
    feed, zone = await at.do("usage.live"), await at.zone()
    with suppress(asyncio.CancelledError):  # by Ctrl-C
        async for record in feed.records():
            if at.as_json:
                print_json(record)
            else:
                print(GAP.join(cells_of(record, zone)))
            sys.stdout.flush()


@command(usage, options=(*USUAL, "as_csv"), needs="files")
async def summary(
    at: At,
    by: Annotated[
        str,
        typer.Option(metavar="NAMES", help=f"Group by these, with commas between them: {', '.join(GIVEN)}, tag:NAME."),
    ] = "day",
    account: AccountOption = None,
    model: ModelOption = None,
    outcome: OutcomeOption = None,
    token: TokenOption = None,
    since: FromOption = None,
    until: ToOption = None,
) -> None:
    """Show totals of requests, tokens, charges, costs and margins.

    Costs are those of `cost` in the file. `unknown_costs` counts the requests without one: then cost and margin
    are `-`, and in JSON and CSV those of the others.
    In a table, `cached` are the prompt tokens that upstreams read from a cache, with their share (`--by channel` shows which caches
    are warm), and `written` those that were written to one. Columns that a table has no room for are in CSV and JSON.

    Examples: `gateway usage summary --by account,model,day --from 2026-11`,
    `gateway usage summary --by hour,error --from 12h --account alice`
    """
    _check_order(since, until)
    names = _groups(by)

    terms = await _terms(at, account, model, outcome, since, until) | {"token": token}
    pages = [page async for page in at.pages("usage.summary", size=MOST_LINES, by=",".join(names), **terms)]
    lines = [line for page in pages for line in page.data]
    totals = dicts(lines, names)
    if at.as_csv:
        print_csv(totals)
    elif at.as_json:
        for total in totals:
            print_json(total)
    else:
        print_sums(names, totals, empty="No requests ended in that time.")
    _note(pages[-1].notes)
    _fail(pages[-1].unread)


@command(usage, options=("config", "as_csv"), needs="files")
async def export(
    at: At,
    account: AccountOption = None,
    model: ModelOption = None,
    outcome: OutcomeOption = None,
    token: TokenOption = None,
    since: FromOption = None,
    until: ToOption = None,
) -> None:
    """Print records as JSON, one on each line, oldest first; or as CSV.

    Example: `gateway usage export --from 30d > usage.jsonl`
    """
    _check_order(since, until)
    unusable: list[UnusableFile] = []
    account, home = account and await at.account(account), at.local.usage_home
    terms: dict[str, Any] = {"account": account, "model": model, "outcome": outcome, "token_id": token}
    records = queries.select(home, since_ms=since, until_ms=until, unusable=unusable, **terms)
    _print_all(records, at.as_csv)
    _note(notes(home, since, until))
    _fail(map(str, unusable))


async def _moves(at: At) -> str:
    leaves = bool(at.config.usage.database) and await _membership(at).other_database()
    return "The gateways log to another database, which is left as it is. Go on?" if leaves else ""


def _membership(at: At) -> Membership:
    from gateway.usage.gateways import Membership

    return Membership(at.local.store.client, at.local.usage_home, at.local.store.usage.installation)


@command(usage, options=("config",), sure=_moves)
async def move(at: At) -> None:
    """Copy the log of this gateway from its files to `usage.database`, so that several gateways can share it.

    Stop the gateway first. What was copied before is not copied again, the files stay, and the numbers of requests are compared at
    the end: then all gateways of the store log to that database.

    Example: `gateway usage move`
    """
    from gateway.serve.serve import instance_lock
    from gateway.usage.database import UsageFiles
    from gateway.usage.home import postgres
    from gateway.usage.move import move

    if not at.config.usage.database:
        raise refuse('the configuration has no `usage: {database: "postgresql://..."}`: set it first')
    home = postgres(at.config.usage.database, at.local.usage_home.folder)
    membership = _membership(at)
    with instance_lock(at.config.data_path):
        await membership.other_database()  # raises where the files of another gateway are the log
        with progress() as show:
            found = await asyncio.to_thread(
                move, UsageFiles(home.folder), home, lambda done: show(counted(done, "request"))
            )
        async with noted(at.local.store, "usage.move", months=", ".join(found)):
            await membership.take()
    print_table(
        ("month", "requests", "ended"), [(month, *counts) for month, counts in found.items()], empty="No files."
    )
    typer.echo(
        "The gateways of this store log to `usage.database` from now on. The files stay: delete them when you like."
    )


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


def _note(found: Iterable[str]) -> None:
    """Print what may be missing in an answer, on standard error, after the answer."""
    sys.stdout.flush()
    for note in found:
        typer.echo(f"note: {note}", err=True)


def _plain(value: object) -> str:
    if value is None or value == "":
        return "-"
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return printable(text)


COLUMNS: Final = (
    *("arrived", "id", "account", "channel", "model", "outcome", "error", "status", "tokens", "charge", "ms"),
)
FIRST_LINE: Final = 4
"""The columns of a request's first line, where one line is too short for all."""
INDENT: Final = "  "

HEADINGS: Final = {
    **{name: f"{name} (UTC)" for name in ("month", "day", "hour")},
    "prompt_tokens": "prompt",
    "cached_tokens": "cached",
    "cache_write_tokens": "written",
    "completion_tokens": "output",
    "charge_micros": "charge",
    "cost_micros": "cost",
    "margin_micros": "margin",
    "unknown_costs": "unknown",
}
OPTIONAL: Final = (
    "cache_write_tokens",
    "cached_tokens",
    "completed",
    "margin_micros",
    "prompt_tokens",
    "unknown_costs",
)
"""The sums that are left out of a table that is too wide, in this order."""


def cells_of(record: Record, zone: tzinfo) -> list[str]:
    """Return the cells of a request."""
    tokens = f"{record.prompt_tokens}+{record.completion_tokens}" if record.usage_source != "none" else ""
    cells = (
        local(record.arrived_at, zone),
        record.id,
        record.account,
        record.channel,
        record.model,
        record.outcome or "under way",
        record.error_code,
        record.status or "",
        tokens,
        amount(record.charge_micros),
        record.duration_ms,
    )
    return [str(cell) or "-" for cell in cells]


def print_requests(records: Iterable[Record], zone: tzinfo, *, empty: str) -> None:
    """Print requests, each on a line if all of them fit, or else on two lines."""
    rows = [cells_of(record, zone) for record in records]
    if not rows or width_of(COLUMNS, rows) <= terminal_width():
        print_table(COLUMNS, rows, empty=empty)
        return
    table = [COLUMNS[:FIRST_LINE], *(row[:FIRST_LINE] for row in rows)]
    widths = widths_of(table)
    print(line_of(COLUMNS[:FIRST_LINE], widths))
    for row in rows:
        print(line_of(row[:FIRST_LINE], widths))
        print(INDENT + _in_words(*row[FIRST_LINE:]))


def print_sums(groups: Sequence[str], totals: Sequence[Mapping[str, Any]], *, empty: str) -> None:
    """Print sums with their total, without the columns for which the terminal has no room."""
    total = {name: sum(row[name] for row in totals) for name in SUMS}
    last = {name: " " if number else "total" for number, name in enumerate(groups)} | total
    rows = [*totals, last] if totals and groups else totals
    names = [HEADINGS.get(name, name) for name in (*groups, *SUMS)]
    print_table(
        names,
        map(_cells, rows),
        empty=empty,
        total=bool(groups),
        optional=[HEADINGS.get(name, name) for name in OPTIONAL],
        others="--csv and --json have",
    )


def _cells(total: Mapping[str, Any]) -> list[object]:
    """Return the cells of a row of sums. Where a cost is not known there is neither a cost nor a margin."""
    unknown = ("cost_micros", "margin_micros") if total["unknown_costs"] else ()
    prompt, cached = total["prompt_tokens"], total["cached_tokens"]
    cells = dict(total, cached_tokens=f"{cached} ({100 * cached / prompt:.1f} %)") if cached else total
    return [
        "-" if value == "" or name in unknown else amount(value) if name.endswith("_micros") else value
        for name, value in cells.items()
    ]


def _in_words(model: str, outcome: str, error: str, status: str, tokens: str, charge: str, ms: str) -> str:
    ended = " ".join(part for part in (outcome, error, status) if part != "-")
    return GAP.join(part for part in (model, ended, tokens, charge, f"{ms} ms") if part != "-")


@command(needs="files")
async def trace(
    at: At,
    text: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="The request's `x-request-id`, or whatever else one has: the id of its answer, its upstream's, the caller's "
            "X-Client-Request-Id, an account's id or external id, the beginning of a token.",
        ),
    ],
) -> None:
    """Show in a sentence what happened to a request. By another id than a request's, show what is found.

    The exit code is 1 if it never arrived, or if it is not found and a gateway that may know of it could not be asked.

    Examples: `gateway trace 01a1fccb-1807-7197-9f1b-61a58aba6c92`, `gateway trace chatcmpl-1795462402975327903`
    """
    try:
        wanted = request_id(text)
    except typer.BadParameter:
        wanted = await _found(at, text)
        if not wanted:
            return
    await _told(at, wanted)


async def _found(at: At, text: str) -> str:
    """Return the id of the one request that is found by a text. Print what is found else."""
    from gateway.admin.actions.requests import Found

    found = await at.do("requests.search", q=text) if text.strip() else Found([], [], [])
    if len(found.requests) == 1 and not found.accounts and not found.tokens:
        return str(found.requests[0].id)
    if at.as_json:
        print_json(found)
    elif not (found.requests or found.accounts or found.tokens):
        raise refuse(
            "nothing is found by it: no request, account or token. Requests are found by the id of their answer once they have "
            "ended, and all the time by their `x-request-id`",
            "not_found",
        )
    else:
        for account in found.accounts:
            typer.echo(f"account {account.id}: {account.status}, balance {amount(account.balance_micros)}")
        for token in found.tokens:
            typer.echo(f"token {token.id}: {token.state}; `gateway usage list --token {token.id}` shows its requests")
        if found.requests:
            print_requests(found.requests, await at.zone(), empty="")
    return ""


async def _told(at: At, request_id: str) -> None:
    told = await at.do("requests.trace", request_id)
    record = told.record
    if at.as_json:
        unasked = {"unasked": told.unasked} if record is None or told.unasked else {}
        print_json({"id": request_id, "verdict": told.verdict, "record": record} | unasked)
    else:
        from gateway.admin.actions.requests import heading

        typer.echo(
            f"{request_id}\n{told.verdict}" if record is None else f"{heading(record, await at.zone())}\n{told.verdict}"
        )
    if record is None:
        raise typer.Exit(EXIT_CODES["not_found"][0])

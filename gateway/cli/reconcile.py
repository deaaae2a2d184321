"""`gateway reconcile`: an upstream's bill beside the usage log."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gateway.base.ids import LAST_MS
from gateway.cli.common import ConfigOption, JsonOption, configuration, day, note_api, print_json, print_table, refuse
from gateway.runtime.data_folder import usage_home
from gateway.tools.reconcile import KINDS, NANOS, Columns, Join, Side, Sum, logged, read

if TYPE_CHECKING:
    from gateway.usage.database import UnusableFile

SKEW: Final = timedelta(days=2)
"""A bill may name the day after a request's arrival, and days of another time zone."""

HEADINGS: Final = {
    "differs": "billed in another amount than expected",
    "only_in_bill": "only on the bill",
    "only_in_log": "only in the usage log",
    "billed_twice": "on several lines of the bill",
}


def _tolerance(text: str) -> Callable[[int, int], bool]:
    """Return whether an amount is beyond `0.01` or `1%` of another."""
    try:
        number = Decimal(text.removesuffix("%"))
    except InvalidOperation:
        number = Decimal(-1)
    if not (number.is_finite() and 0 <= number <= NANOS):
        raise typer.BadParameter(f"`{text}` is not a tolerance; write an amount as in 0.01, or a part as in 1%")
    if not text.endswith("%"):
        most = int(number * NANOS)
        return lambda billed, expected: abs(billed - expected) > most
    part = Fraction(number) / 100
    over, under = part.numerator, part.denominator
    return lambda billed, expected: abs(billed - expected) * under > max(abs(billed), abs(expected)) * over


def reconcile(
    bill: Annotated[
        Path,
        typer.Argument(
            metavar="BILL",
            help="The bill, a CSV file in UTF-8 with a header, commas and decimal points.",
            show_default=False,
        ),
    ],
    id_: Annotated[
        str,
        typer.Option(
            "--id", metavar="COLUMN", help="The column with the upstream's request id, or the completion's id."
        ),
    ] = "request_id",
    cost: Annotated[str, typer.Option(metavar="COLUMN", help="The column with the cost of the line.")] = "cost",
    day_: Annotated[
        str, typer.Option("--day", metavar="COLUMN", help="The column with the day, or the time.", show_default=False)
    ] = "",
    model: Annotated[str, typer.Option(metavar="COLUMN", help="The column with the model.", show_default=False)] = "",
    tolerance: Annotated[
        str, typer.Option(metavar="AMOUNT", help="How far one request may differ: an amount, or a part as in 1%.")
    ] = "0.000001",
    channel: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A channel that the bill is for. Default: those that it has a request of."),
    ] = None,
    first: Annotated[
        str | None, typer.Option("--from", parser=day, metavar="DAY", help="The first day of the bill (UTC).")
    ] = None,
    last: Annotated[
        str | None, typer.Option("--to", parser=day, metavar="DAY", help="The last day of the bill, included (UTC).")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="How many lines of each table to print. JSON has all.")] = 20,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare an upstream's bill with the usage log, call by call.

    Each line of the bill is looked for by its id among the ids that the upstream gave the calls in the usage log, and its cost is
    compared with what the call was expected to cost, by the `cost` of its channel. Amounts are in units of your currency, and
    nothing is converted. Calls that arrived within the days of the bill and are not on it are shown, too.

    The exit code is 1 where a call differs by more than the tolerance, or is only on one side.

    Examples: `gateway reconcile bill.csv --id generation_id --cost cost_total --day created_at --tolerance 1%`,
    `gateway reconcile bill.csv --channel openai --from 2026-11-01 --to 2026-11-30 --json`
    """
    beyond = _tolerance(tolerance)
    note_api()
    settings = configuration(config)
    for name in channel or ():
        if name not in settings.channels:
            raise typer.BadParameter(f"there is no channel `{name}`; known: {', '.join(settings.channels)}")
    unusable: list[UnusableFile] = []
    with Join(beyond) as join:
        join.add_lines(read(bill, Columns(id_, cost, day_, model)))
        since, until = _around(first or join.days()[0], last or join.days()[1])
        join.add_calls(logged(usage_home(settings), since_ms=since, until_ms=until, unusable=unusable))
        period = join.join(first or "", last or "", channel or ())
        notes = _notes(join, *period)
        if as_json:
            _print_json(join, notes)
        else:
            _print(join, notes, limit)
        wrong = any(join.total(kind)[0] for kind in ("differs", "only_in_bill", "only_in_log"))
    for error in unusable:
        left_out = refuse(str(error))
    if unusable:
        raise left_out
    if wrong:
        raise typer.Exit(1)


def _around(first: str, last: str) -> tuple[int | None, int | None]:
    """Return the time in which requests of these days arrived, in milliseconds since 1970."""
    return (_ms(first, -SKEW) if first else None, _ms(last, SKEW + timedelta(days=1)) if last else None)


def _ms(text: str, more: timedelta) -> int:
    moment = datetime.combine(date.fromisoformat(text), datetime.min.time(), UTC)
    return min(max(0, round((moment.timestamp() + more.total_seconds()) * 1000)), LAST_MS)


def _notes(join: Join, first: str, last: str, channels: list[str]) -> list[str]:
    notes = []
    if channels:
        notes.append(f"calls of {', '.join(channels)} from {first} to {last} (UTC) must be on the bill")
    else:
        notes.append("no id of the bill is in the usage log: is --id the right column, and is the log of this machine?")
    if unknown := join.count("unknown"):
        notes.append(f"{unknown} calls have no known cost and were not compared: give their channels a `cost`")
    if nameless := join.count("nameless"):
        notes.append(f"{nameless} calls have no id of the upstream, and cannot be found on any bill")
    if shared := join.count("shared"):
        notes.append(
            f"{shared} ids are of several calls and were not used: the upstream does not give each call its own"
        )
    return notes


def _print(join: Join, notes: list[str], limit: int) -> None:
    for kind, heading in HEADINGS.items():
        count, _ = join.total(kind)
        if count:
            print(f"{count} {heading}:")
            rows = [_cells(side) for side in islice(join.found(kind), limit)]
            if rows:
                print_table(
                    ("line", "upstream id", "request", "day", "model", "billed", "expected", "difference"),
                    rows,
                    optional=("model", "day", "line", "expected", "billed"),
                    empty="",
                )
            print(f"... and {count - limit} more\n" if count > limit else "")
    rows = [
        [
            *(each.day or "-", each.model or "-", str(each.lines), str(each.calls), str(each.unknown)),
            *(units(each.billed), units(each.expected), units(each.billed - each.expected, sign=True)),
        ]
        for each in join.sums()
    ]
    if several := len(rows) > 1:
        sums = [sum(column) for column in zip(*map(_numbers, join.sums()), strict=True)]
        difference = units(sums[3] - sums[4], sign=True)
        rows.append(["total", "", *map(str, sums[:3]), units(sums[3]), units(sums[4]), difference])
    columns = ("day", "model", "lines", "calls", "cost unknown", "billed", "expected", "difference")
    optional = ("cost unknown", "calls", "lines")
    print_table(
        columns,
        rows,
        total=several,
        optional=optional,
        empty="The bill has no lines, and the usage log no calls in its days.",
    )
    print(f"\n{join.count('agree')} of {join.count('matched')} calls on both sides agree.")
    for note in notes:
        typer.echo(f"note: {note}", err=True)


def _numbers(each: Sum) -> tuple[int, ...]:
    return each.lines, each.calls, each.unknown, each.billed, each.expected


def _cells(side: Side) -> list[str]:
    difference = "-" if side.expected is None else units(side.billed - side.expected, sign=True)
    expected = "unknown" if side.expected is None else units(side.expected)
    texts = [str(side.number or ""), side.id, side.request, side.day, side.model]
    return [*(text or "-" for text in texts), units(side.billed), expected, difference]


def _print_json(join: Join, notes: list[str]) -> None:
    for kind in KINDS:
        for side in join.found(kind):
            print_json(
                {
                    "kind": kind,
                    "upstream_id": side.id,
                    "request": side.request,
                    "day": side.day,
                    "model": side.model,
                    "channel": side.channel,
                    "line": side.number or None,
                    "lines": side.lines,
                    "billed": units(side.billed),
                    "expected": None if side.expected is None else units(side.expected),
                }
            )
    for each in join.sums():
        amounts = {"billed": units(each.billed), "expected": units(each.expected)}
        counts = {"lines": each.lines, "calls": each.calls, "unknown": each.unknown}
        print_json({"kind": "sum", "day": each.day, "model": each.model, **counts, **amounts})
    totals = {kind: {"count": count, "amount": units(amount)} for kind in KINDS for count, amount in [join.total(kind)]}
    print_json(
        {"kind": "total", "matched": join.count("matched"), "agree": join.count("agree"), **totals, "notes": notes}
    )


def units(nanos: int, *, sign: bool = False) -> str:
    """Format billionths as an amount: `5.00`, `0.000123`, with a sign `+0.50`."""
    whole, _, decimals = f"{Decimal(nanos) / NANOS:{'+' if sign else ''}.9f}".partition(".")
    return f"{whole}.{decimals.rstrip('0').ljust(2, '0')}"

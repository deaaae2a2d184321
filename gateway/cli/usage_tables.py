"""The tables of `gateway usage`, which fit the terminal, or 80 characters where there is none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from gateway.base.amounts import amount
from gateway.cli.tables import GAP, note_left_out, print_table, terminal_width, width_of
from gateway.usage.database import SUMS

if TYPE_CHECKING:
    from gateway.usage.record import Record

COLUMNS: Final = (
    *("arrived (UTC)", "id", "account", "channel", "model", "outcome", "error", "status", "tokens", "charge", "ms"),
)
FIRST_LINE: Final = 4
"""The columns of a request's first line, where one line is too short for all."""
INDENT: Final = "  "

HEADINGS: Final = {
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


def cells_of(record: Record) -> list[str]:
    """Return the cells of a request."""
    tokens = f"{record.prompt_tokens}+{record.completion_tokens}" if record.usage_source != "none" else ""
    cells = (
        record.arrived_at[:19].replace("T", " "),
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


def print_requests(records: Iterable[Record], *, empty: str) -> None:
    """Print requests, each on a line if all of them fit, or else on two lines."""
    rows = list(map(cells_of, records))
    if not rows or width_of(COLUMNS, rows) <= terminal_width():
        print_table(COLUMNS, rows, empty=empty)
        return
    table = [COLUMNS[:FIRST_LINE], *(row[:FIRST_LINE] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    print(_line(COLUMNS[:FIRST_LINE], widths))
    for row in rows:
        print(_line(row[:FIRST_LINE], widths))
        print(INDENT + _in_words(*row[FIRST_LINE:]))


def print_sums(groups: Sequence[str], totals: Sequence[Mapping[str, Any]], *, empty: str) -> None:
    """Print sums with their total, without the columns for which the terminal has no room."""
    total = {name: sum(row[name] for row in totals) for name in SUMS}
    last = {name: " " if number else "total" for number, name in enumerate(groups)} | total
    rows = [*totals, last] if totals and groups else totals
    cells = [dict(zip(row, _cells(row), strict=True)) for row in rows]
    names, left_out = [*groups, *SUMS], list[str]()
    for name in OPTIONAL:
        if width_of(_headings(names), [_of(row, names) for row in cells]) > terminal_width():
            names.remove(name)
            left_out.append(name)
    print_table(_headings(names), [_of(row, names) for row in cells], empty=empty, total=bool(groups))
    if left_out and cells:
        note_left_out(left_out, "--csv and --json have")


def _cells(total: Mapping[str, Any]) -> list[object]:
    """Return the cells of a row of sums. Where no cost is known there is neither a cost nor a margin."""
    unknown = ("cost_micros", "margin_micros") if total["unknown_costs"] == total["requests"] else ()
    return [
        "-" if value == "" or name in unknown else amount(value) if name.endswith("_micros") else value
        for name, value in total.items()
    ]


def _headings(names: Iterable[str]) -> list[str]:
    return [HEADINGS.get(name, name) for name in names]


def _of(row: Mapping[str, object], names: Iterable[str]) -> list[object]:
    return [row[name] for name in names]


def _line(cells: Iterable[str], widths: Iterable[int]) -> str:
    return GAP.join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _in_words(model: str, outcome: str, error: str, status: str, tokens: str, charge: str, ms: str) -> str:
    ended = " ".join(part for part in (outcome, error, status) if part != "-")
    return GAP.join(part for part in (model, ended, tokens, charge, f"{ms} ms") if part != "-")

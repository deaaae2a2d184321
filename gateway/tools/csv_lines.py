"""CSV that a spreadsheet opens as it is: no text in it is a formula."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from gateway.tools.plain_text import shown

FORMULAS: Final = ("=", "+", "-", "@", "\t", "\r")
"""What begins a formula."""


def csv_lines(rows: Iterable[Mapping[str, object]]) -> Iterator[str]:
    """Yield rows as lines of CSV, the first one with their names; nothing where there are no rows.

    What is neither text nor a number is JSON. A text that a spreadsheet would take for a formula begins with an apostrophe, and
    has no characters that a terminal would obey.
    """
    for number, row in enumerate(rows):
        if number == 0:
            yield csv_line(row)
        yield csv_line(row.values())


def csv_line(values: Iterable[object]) -> str:
    """Return one line of CSV, with its end."""
    output = io.StringIO()
    csv.writer(output, lineterminator="\n").writerow(map(_cell, values))
    return output.getvalue()


def _cell(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        return msgspec.json.encode(value).decode()
    text = shown(value)
    return f"'{text}" if text.startswith(FORMULAS) else text

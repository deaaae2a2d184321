"""Tables as text. Lines end with their last letter, and only a terminal gets styles: none with `NO_COLOR`."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Final
from unicodedata import east_asian_width

from gateway.base.text import shown, shown_in_line

GAP: Final = "  "
"""What is between two columns."""
BOLD: Final = "\x1b[1m{}\x1b[0m"


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    empty: str,
    total: bool = False,
    optional: Iterable[str] = (),
    others: str = "--json has",
) -> None:
    """Print a table, or the sentence `empty` if there are no rows. `total`: the last row is a sum of the others.

    While the table is wider than the terminal, the columns of `optional` are left out, the first of them first. A pipe gets all.
    `others`: which options show all columns.
    """
    texts = [list(columns), *([shown_in_line(str(cell)) for cell in row] for row in rows)]
    if len(texts) == 1:
        print(shown(empty))
        return
    left_out = _narrow(texts, optional)
    widths = widths_of(texts)
    for number, row in enumerate(texts):
        line = line_of(row, widths)
        bold = number == 0 or (total and number == len(texts) - 1)
        print(BOLD.format(line) if bold and _has_styles() else line)
    if left_out:
        print(f"note: too wide for {', '.join(left_out)}; {others} all columns", file=sys.stderr)


def print_fields(fields: Mapping[str, object]) -> None:
    """Print names and values, one pair on each line."""
    rows = [
        [first, line]
        for name, value in fields.items()
        for first, line in zip_longest([name], shown(str(value)).splitlines() or [""], fillvalue="")
    ]
    widths = widths_of(rows)
    for row in rows:
        print(line_of(row, widths))


def width_of(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> int:
    """Return how many characters wide a table is."""
    widths = widths_of([columns, *([str(cell) for cell in row] for row in rows)])
    return sum(widths) + len(GAP) * (len(widths) - 1)


def terminal_width() -> int:
    """Return how many characters a line of the terminal has; what is no terminal is taken for one of 80."""
    return shutil.get_terminal_size((80, 24)).columns


def _narrow(texts: list[list[str]], optional: Iterable[str]) -> list[str]:
    """Remove columns until the table fits the terminal. Return their names."""
    left_out = []
    for name in optional:
        has_width = sys.stdout.isatty() or "COLUMNS" in os.environ
        if not has_width or width_of(texts[0], texts[1:]) <= terminal_width():
            break
        place = texts[0].index(name)
        left_out.append(name)
        for row in texts:
            del row[place]
    return left_out


def widths_of(rows: Iterable[Sequence[str]]) -> list[int]:
    """Return how many characters wide each column is."""
    return [max(map(_width, column)) for column in zip(*rows, strict=True)]


def line_of(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Return a line of a table."""
    padded = (cell + " " * (width - _width(cell)) for cell, width in zip(cells, widths, strict=True))
    return GAP.join(padded).rstrip()


def _width(text: str) -> int:
    """Return how many columns of a terminal a text takes: letters of East Asia take two."""
    return len(text) if text.isascii() else sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def _has_styles() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

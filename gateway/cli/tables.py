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
    widths = _widths(texts)
    for number, row in enumerate(texts):
        line = _line(row, widths)
        bold = number == 0 or (total and number == len(texts) - 1)
        print(BOLD.format(line) if bold and _has_styles() else line)
    if left_out:
        print(f"note: too wide for {', '.join(left_out)}; {others} all columns", file=sys.stderr)


def print_fields(fields: Mapping[str, object]) -> None:
    """Print names and values, one pair on each line."""
    rows = [[name, line] for name, value in fields.items() for name, line in _lines(name, shown(str(value)))]
    widths = _widths(rows)
    for row in rows:
        print(_line(row, widths))


def width_of(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> int:
    """Return how many characters wide a table is."""
    widths = _widths([columns, *([str(cell) for cell in row] for row in rows)])
    return sum(widths) + len(GAP) * (len(widths) - 1)


def terminal_width() -> int:
    """Return how many characters a line of the terminal has; what is no terminal is taken for one of 80."""
    return shutil.get_terminal_size((80, 24)).columns


def _narrow(texts: list[list[str]], optional: Iterable[str]) -> list[str]:
    """Remove columns until the table fits the terminal. Return their names."""
    left_out = []
    for name in optional:
        if not _has_width() or width_of(texts[0], texts[1:]) <= terminal_width():
            break
        place = texts[0].index(name)
        left_out.append(name)
        for row in texts:
            del row[place]
    return left_out


def _lines(name: str, value: str) -> Iterable[tuple[str, str]]:
    return zip_longest([name], value.splitlines() or [""], fillvalue="")


def _widths(rows: Iterable[Sequence[str]]) -> list[int]:
    return [max(map(_width, column)) for column in zip(*rows, strict=True)]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell + " " * (width - _width(cell)) for cell, width in zip(cells, widths, strict=True))
    return GAP.join(padded).rstrip()


def _width(text: str) -> int:
    """Return how many columns of a terminal a text takes: letters of East Asia take two."""
    return len(text) if text.isascii() else sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def _has_width() -> bool:
    return sys.stdout.isatty() or "COLUMNS" in os.environ


def _has_styles() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

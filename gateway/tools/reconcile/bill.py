"""Bill of an upstream as a CSV file: the cost of each line, and the id of the request that it is for.

The file is UTF-8 with commas between its columns and a point before decimals. It is read line by line, and every line that cannot
be read is named. Amounts become whole billionths of the currency unit.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from gateway.base.errors import Misconfigured, cannot_use
from gateway.base.text import printable

if TYPE_CHECKING:
    from _csv import Reader

MAX_ID: Final = 128
"""Ids are compared up to this length; a record has no more of them."""
MAX_WRONG: Final = 10
"""Lines that an error names."""
NANOS: Final = 1_000_000_000
"""Billionths in one unit of the currency."""
LARGEST: Final = 1_000_000
"""The largest amount of one line that is believed."""
MAX_SHOWN: Final = 60
AMOUNT: Final = re.compile(r"-?[0-9]{1,12}(?:\.[0-9]{1,18})?(?:[eE][+-]?[0-9]{1,3})?")


class BillLine(msgspec.Struct, frozen=True):
    """One line of a bill. `id` is empty where it names no request; `cost` is in billionths of the currency unit."""

    number: int
    id: str
    cost: int
    day: str
    model: str


class Columns(msgspec.Struct, frozen=True):
    """The names of the columns. `day` and `model` are empty where the bill has none, or they do not matter."""

    id: str
    cost: str
    day: str = ""
    model: str = ""


def read(path: Path, columns: Columns) -> Iterator[BillLine]:
    """Yield the lines of a bill.

    Raises `Misconfigured` for a file that is no such bill; it has several lines where several lines of the bill are wrong.
    """
    wrong = list[str]()
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            indices = _indices(path, reader, columns)
            for row in reader:
                if not any(row):
                    continue
                try:
                    line = _line(reader.line_num, row, indices)
                except ValueError as error:
                    wrong.append(f"{path}:{reader.line_num}: {error}")
                    if len(wrong) == MAX_WRONG:
                        break
                    continue
                yield line
    except OSError as error:
        raise cannot_use(str(path), error, cure="name a readable CSV file") from None
    except UnicodeError:
        raise Misconfigured(f"{path}: not UTF-8; convert it, as with `iconv -f cp1252 -t utf-8`") from None
    except csv.Error as error:
        raise Misconfigured(f"{path}: not valid CSV: {error}; look for a quote that is not closed") from None
    if wrong:
        more = "\nand perhaps more: only the first are shown" if len(wrong) == MAX_WRONG else ""
        raise Misconfigured("\n".join(wrong) + more)


def _indices(path: Path, reader: Reader, columns: Columns) -> dict[str, int]:
    """Read the header. Return the index of each column that has a name, by its option."""
    header = next(([cell.strip() for cell in row] for row in reader if any(row)), None)
    if header is None:
        raise Misconfigured(f"{path}: empty; give a CSV file with a header")
    indices = {}
    for option in columns.__struct_fields__:
        if not (name := getattr(columns, option)):
            continue
        if name not in header:
            known = ", ".join(shown(cell) for cell in header if cell) or "none"
            text = f"{path}: there is no column `{name}`; name yours with --{option}. It has: {known}"
            raise Misconfigured(text + (" (commas must separate columns)" if len(header) == 1 else ""))
        if header.count(name) > 1:
            raise Misconfigured(f"{path}: the column `{name}` is there {header.count(name)} times; rename one")
        indices[option] = header.index(name)
    return indices


def _line(number: int, row: Sequence[str], indices: Mapping[str, int]) -> BillLine:
    """Return a line. Raises `ValueError`, whose text says what is wrong."""
    if len(row) <= max(indices.values()):
        raise ValueError(f"it has {len(row)} fields, fewer than the header: is a quote or a separator missing?")
    fields = {option: row[index].strip() for option, index in indices.items()}
    if not fields["id"].isprintable():
        raise ValueError(f"`{shown(fields['id'])}` is not an id")
    return BillLine(
        number, fields["id"][:MAX_ID], amount(fields["cost"]), _day(fields.get("day", "")), fields.get("model", "")
    )


def _day(text: str) -> str:
    """Return the day of a day or a time in ISO 8601."""
    try:
        return date.fromisoformat(text[:10]).isoformat() if text else ""
    except ValueError:
        raise ValueError(
            f"`{shown(text)}` is not a day such as 2026-11-21: leave out --day, or convert the column"
        ) from None


def amount(text: str) -> int:
    """Return an amount in billionths, rounded. Raises `ValueError`, whose text says what to do."""
    if not text:
        raise ValueError("it has no cost")
    if not AMOUNT.fullmatch(text):
        raise ValueError(
            f"`{shown(text)}` is not an amount such as 0.0012: a point separates decimals, and nothing thousands; "
            "leave out the currency"
        )
    number = Decimal(text)
    if abs(number) > LARGEST:
        raise ValueError(f"`{shown(text)}` is more than {LARGEST}: is it the cost of one request?")
    return int((number * NANOS).to_integral_value())


def shown(text: str) -> str:
    """Return a text of the bill as an error shows it: printable, and not long."""
    return printable(text[:MAX_SHOWN]) + "..." * (len(text) > MAX_SHOWN)

"""An upstream's bill as a CSV file: the cost of each line, and the id of the request that it is for.

The separator and the encoding are found out. The file is read line by line, and every line that cannot be read is named.

Amounts are written as people and programs do: `0.0012`, `$1,234.50`, `1.234,50 €`, `4.2e-05`. They become whole billionths of the
currency unit. An amount that can be read in two ways is refused: a comma may separate thousands.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import msgspec

from gateway.base.errors import Misconfigured, cannot_use

if TYPE_CHECKING:
    from _csv import Reader


SEPARATORS: Final = ",;\t|"
MAX_ID: Final = 128
"""Ids are compared up to this length; a record has no more of them."""
MAX_WRONG: Final = 10
"""Lines that an error names."""
PROGRESS_LINES: Final = 4096
ENCODINGS: Final = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
TIME_FOLLOWS: Final = len("2026-11-21")
MAX_DAYS: Final = 10_000

Row = Mapping[str, str]

NANOS: Final = 1_000_000_000
"""Billionths in one unit of the currency."""
LARGEST: Final = 1_000_000
"""The largest amount of one line that is believed."""
MAX_LENGTH: Final = 60
FAST_WHOLE: Final = 6
FAST_DECIMALS: Final = 9
"""Digits of an amount that is read without the arithmetic of decimals: it is below `LARGEST`, and exact in billionths."""
CHOOSE: Final = "say which separates decimals, with `--decimal .` or `--decimal ,`"

PLAIN: Final = re.compile(r"-?[0-9]{1,12}(?:\.[0-9]{1,18})?")
"""What nearly every line has."""
MARK: Final = r"[^\W\d_]{0,3}[$€£¥]?"
WRITTEN: Final = re.compile(
    rf"({MARK}) ?(-?) ?({MARK}) ?([0-9](?:[0-9.,' ]*[0-9])?(?:[eE][+-]?[0-9]{{1,3}})?) ?({MARK})"
)
"""A mark of the currency, a sign, the number, and the mark in other places."""
SCIENTIFIC: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?[eE][+-]?[0-9]{1,3}")
GROUPED: Final = re.compile(r"-?[1-9][0-9]{0,2}(?:([.,' ])[0-9]{3})(?:\1[0-9]{3})*")
"""Digits in groups of three. With one separator, it may be that of the decimals."""
CURRENCIES: Final = {"$": "USD", "US$": "USD", "€": "EUR", "£": "GBP", "¥": "CNY"}


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

    @property
    def given(self) -> dict[str, str]:
        """Return the name of each column that has one, by its option."""
        return {option: name for option in self.__struct_fields__ if (name := getattr(self, option))}


def read(
    path: Path,
    columns: Columns,
    *,
    encoding: str = "",
    decimal: str = "",
    progress: Callable[[int], None] = lambda _: None,
) -> Iterator[BillLine]:
    """Yield the lines of a bill. `progress` is called now and then with the bytes that were read.

    Raises `Misconfigured` for a file that is no such bill; it has several lines where several lines of the bill are wrong.
    """
    amounts, wrong = Amounts(decimal), list[str]()
    with _opened(path, encoding) as file, _errors_named(path):
        reader, indices = _header(path, file, columns)
        parser = _LineParser(indices, amounts)
        for row in reader:
            if reader.line_num % PROGRESS_LINES == 0:
                progress(file.buffer.tell())  # type: ignore[attr-defined]  # a text file has a buffer
            if not any(row):
                continue
            try:
                line = parser.read(reader.line_num, row)
            except ValueError as error:
                wrong.append(f"{path}:{reader.line_num}: {error}")
                if len(wrong) == MAX_WRONG:
                    break
                continue
            yield line
    if wrong:
        more = "\nand perhaps more: only the first are shown" if len(wrong) == MAX_WRONG else ""
        raise Misconfigured("\n".join(wrong) + more)


class _LineParser:
    """Makes lines of the fields of a bill."""

    def __init__(self, indices: Mapping[str, int], amounts: Amounts) -> None:
        self._needed = max(indices.values()) + 1
        self._id, self._cost = indices["id"], indices["cost"]
        self._day, self._model = indices.get("day"), indices.get("model")
        self._amounts = amounts
        self._days: dict[str, str] = {}
        """The texts of days and of the beginnings of times that were read before."""

    def read(self, number: int, row: Sequence[str]) -> BillLine:
        """Return a line. Raises `ValueError`, whose text says what is wrong."""
        if len(row) < self._needed:
            raise ValueError(f"it has {len(row)} fields, fewer than the header: is a quote or a separator missing?")
        request, cost = row[self._id].strip(), row[self._cost].strip()
        if not request.isprintable():
            raise ValueError(f"`{shown(request)}` is not an id")
        if not cost:
            raise ValueError("it has no cost")
        day = "" if self._day is None else self._read_day(row[self._day].strip())
        model = "" if self._model is None else row[self._model].strip()
        return BillLine(number, request[:MAX_ID], self._amounts.read(cost), day, model)

    def _read_day(self, text: str) -> str:
        start = text[:TIME_FOLLOWS] if text[TIME_FOLLOWS : TIME_FOLLOWS + 1] in ("", " ", "T") else text
        day = self._days.get(start)
        if day is None:
            day = _day(text)
            if len(start) == TIME_FOLLOWS and len(self._days) < MAX_DAYS:
                self._days[start] = day
        return day


def _day(text: str) -> str:
    """Return the day (UTC) of a day, a time in ISO 8601, or a number of seconds or milliseconds since 1970."""
    if not text:
        return ""
    try:
        if re.fullmatch(r"[0-9]{10}(?:\.[0-9]+)?|[0-9]{13}", text):
            seconds = float(text) / (1000 if len(text) == 13 else 1)
            return datetime.fromtimestamp(seconds, UTC).date().isoformat()
        return date.fromisoformat(text[:10]).isoformat()
    except ValueError:
        raise ValueError(
            f"`{shown(text)}` is not a day such as 2026-11-21: leave out --day, or convert the column"
        ) from None


@contextmanager
def _opened(path: Path, encoding: str) -> Iterator[IO[str]]:
    try:
        with path.open("rb") as file:
            start = file.read(4)
        found = next((name for mark, name in ENCODINGS if start.startswith(mark)), "utf-8")
        text = path.open(encoding=encoding or found, newline="")
    except OSError as error:
        raise cannot_use(str(path), error, cure="name a readable CSV file") from None
    except LookupError:
        raise Misconfigured(f"there is no encoding `{encoding}`; give one such as utf-8, cp1252 or utf-16") from None
    with text:
        yield text


@contextmanager
def _errors_named(path: Path) -> Iterator[None]:
    try:
        yield
    except UnicodeError:
        raise Misconfigured(f"{path}: not UTF-8; give its encoding, as in `--encoding cp1252`") from None
    except csv.Error as error:
        raise Misconfigured(f"{path}: not valid CSV: {error}; look for a quote that is not closed") from None


def _header(path: Path, file: IO[str], columns: Columns) -> tuple[Reader, dict[str, int]]:
    """Return a reader behind the header, with the separator that gives the columns, and the index of each column."""
    text = file.readline()
    skipped = 0
    while text and (not text.strip() or re.fullmatch(r"sep=.\s*", text)):
        text, skipped = file.readline(), skipped + 1
    if not text:
        raise Misconfigured(f"{path}: empty; give a CSV file with a header")
    headers = [[cell.strip() for cell in next(csv.reader([text], delimiter=separator), [])] for separator in SEPARATORS]
    header = max(headers, key=lambda cells: (_hits(cells, columns), len(cells)))
    indices = {}
    for option, name in columns.given.items():
        places = [index for index, cell in enumerate(header) if cell.casefold() == name.casefold()]
        exact = [index for index, cell in enumerate(header) if cell == name]
        if not places:
            known = ", ".join(shown(cell) for cell in header if cell) or "none"
            raise Misconfigured(f"{path}: there is no column `{name}`; name yours with --{option}. It has: {known}")
        if len(exact or places) > 1:
            raise Misconfigured(f"{path}: the column `{name}` is there {len(exact or places)} times; rename one")
        indices[option] = (exact or places)[0]
    reader = csv.reader(_after(text, skipped, file), delimiter=SEPARATORS[headers.index(header)], strict=True)
    for _ in range(skipped + 1):
        next(reader)
    return reader, indices


def _hits(cells: Sequence[str], columns: Columns) -> int:
    present = {cell.casefold() for cell in cells}
    return sum(name.casefold() in present for name in columns.given.values())


def _after(header: str, skipped: int, file: IO[str]) -> Iterator[str]:
    """Yield the header again with the lines before it left blank, so that the reader counts lines as editors do."""
    yield from ["\n"] * skipped
    yield header
    yield from file


class Amounts:
    """Reads the amounts of one bill. All must be of one currency, and separate decimals in one way.

    `decimal`: what separates decimals, `.` or `,`; where it is empty it is found out.
    """

    def __init__(self, decimal: str = "") -> None:
        self._decimal = decimal
        self._doubtful = ""
        """A number with a point that only another number can tell from thousands."""
        self._currency = ""

    def read(self, text: str) -> int:
        """Return an amount in billionths, rounded. Raises `ValueError`, whose text says what to do."""
        if self._decimal != "," and PLAIN.fullmatch(text):
            if not self._decimal and "." in text:
                self._note_point(text)
            whole, _, decimals = text.partition(".")
            if len(whole) <= FAST_WHOLE and len(decimals) <= FAST_DECIMALS:
                return int(whole + decimals.ljust(FAST_DECIMALS, "0"))
            return _nanos(Decimal(text), text)
        spaced = " ".join(text.split()).replace("\u2212", "-")
        negative = spaced.startswith("(") and spaced.endswith(")")
        found = WRITTEN.fullmatch(spaced[1:-1] if negative else spaced) if len(spaced) <= MAX_LENGTH else None
        if found is None:
            raise _no_amount(text)
        before, sign, between, number, after = found.groups()
        self._note_currency(before + between + after, text)
        amount = self._number(number, text)
        return _nanos(-amount if negative != bool(sign) else amount, text)

    def _number(self, number: str, text: str) -> Decimal:
        if SCIENTIFIC.fullmatch(number):
            return Decimal(number)
        decimal = self._decimal or self._found_decimal(number, text)
        whole, separator, decimals = number.partition(decimal) if decimal else (number, "", "0")
        if not (whole.isdigit() or GROUPED.fullmatch(whole)) or not (decimals.isdigit() or not separator):
            if self._decimal and not number.isdigit():
                raise ValueError(f"`{shown(text)}` is not an amount where `{decimal}` separates decimals: {CHOOSE}")
            raise _no_amount(text)
        return Decimal(f"{re.sub('[^0-9]', '', whole)}.{decimals or 0}")

    def _found_decimal(self, number: str, text: str) -> str:
        """Return what separates the decimals of a number, the first that shows it; empty where it has none."""
        last = max(number.rfind("."), number.rfind(","))
        if last < 0:
            return ""
        separator = number[last]
        if number.count(separator) > 1:  # 1,234,567
            self._settle("." if separator == "," else ",", text)
        elif GROUPED.fullmatch(number):
            if separator == ",":
                readings = f"{number.replace(',', '')} or {number.replace(',', '.')}"
                raise ValueError(f"`{shown(text)}` may be {readings}: {CHOOSE}")
            self._note_point(number)
            return "."
        else:
            self._settle(separator, text)
        return self._decimal

    def _note_point(self, number: str) -> None:
        if GROUPED.fullmatch(number):
            self._doubtful = self._doubtful or number
        else:
            self._decimal = "."

    def _settle(self, decimal: str, text: str) -> None:
        if decimal == "," and self._doubtful:
            raise ValueError(
                f"`{shown(text)}` has a decimal comma, and `{self._doubtful}` before it may be thousands: {CHOOSE}"
            )
        self._decimal = decimal

    def _note_currency(self, mark: str, text: str) -> None:
        if not mark:
            return
        if mark not in CURRENCIES and not re.fullmatch("[A-Za-z]{3}", mark):
            raise _no_amount(text)
        currency = CURRENCIES.get(mark, mark.upper())
        if self._currency not in ("", currency):
            raise ValueError(
                f"`{shown(text)}` is in {currency}, a line before in {self._currency}: reconcile one currency"
            )
        self._currency = currency


def _nanos(number: Decimal, text: str) -> int:
    if abs(number) > LARGEST:
        raise ValueError(f"`{shown(text)}` is more than {LARGEST}: is it the cost of one request?")
    return int((number * NANOS).to_integral_value())


def _no_amount(text: str) -> ValueError:
    return ValueError(f"`{shown(text)}` is not an amount such as 0.0012")


def shown(text: str) -> str:
    """Return a text of the bill as an error shows it: printable, and not long."""
    printable = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text[:MAX_LENGTH])
    return printable if len(text) <= MAX_LENGTH else f"{printable}..."

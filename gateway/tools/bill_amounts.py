"""The amounts of a bill as people and programs write them: `0.0012`, `$1,234.50`, `1.234,50 €`, `4.2e-05`.

They become whole billionths of the currency unit. What can be read in two ways is refused: a comma may separate thousands.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

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

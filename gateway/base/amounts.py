"""Amounts of money. Programs count in micros, millionths of the currency unit; people read the currency unit with its decimals."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any, Final

ENDING: Final = "_micros"
MICROS: Final = 1_000_000
"""Micros in one unit of the currency."""
LARGEST_AMOUNT: Final = 2**53 // MICROS
"""Currency units. Up to here, micros are exact in a script, whose numbers are doubles."""
_AMOUNT: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)")
"""No exponents: `1e3` is rather a slip, or a number that a spreadsheet made of an id."""


def amount(micros: int) -> str:
    """Format micros as an amount in currency units, with two decimals at least: `5.00`, `0.000123`."""
    whole, _, decimals = f"{Decimal(micros) / MICROS:.6f}".partition(".")
    return f"{whole}.{decimals.rstrip('0').ljust(2, '0')}"


def with_amounts(value: Any) -> Any:
    """Return plain data in which each `..._micros` is an amount in currency units, without that end of its name."""
    if isinstance(value, dict):
        return {
            key.removesuffix(ENDING): amount(each) if key.endswith(ENDING) and type(each) is int else with_amounts(each)
            for key, each in value.items()
        }
    return [with_amounts(each) for each in value] if isinstance(value, list) else value


def parsed(text: str) -> int:
    """Return the micros of an amount such as `5.00`. Raises `ValueError` with what is wrong with it."""
    if not _AMOUNT.fullmatch(text.strip()):
        raise ValueError(f"`{text[:40]}` is not an amount; write it as in 5.00")
    value = Decimal(text.strip())
    if not -LARGEST_AMOUNT < value < LARGEST_AMOUNT:
        raise ValueError(f"`{text[:40]}` is too large: give less than {LARGEST_AMOUNT}")
    if value != round(value, 6):
        raise ValueError(f"`{text[:40]}` cannot be stored exactly; use at most six decimals")
    return int(value * MICROS)

"""Amounts of money. Programs count in micros, millionths of the currency unit; people read the currency unit with its decimals."""

from __future__ import annotations

from decimal import Decimal
from typing import Final

MICROS: Final = 1_000_000
"""Micros in one unit of the currency."""


def amount(micros: int) -> str:
    """Format micros as an amount in currency units, with two decimals at least: `5.00`, `0.000123`."""
    whole, _, decimals = f"{Decimal(micros) / MICROS:.6f}".partition(".")
    return f"{whole}.{decimals.rstrip('0').ljust(2, '0')}"

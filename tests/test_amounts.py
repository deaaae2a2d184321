"""Amounts as people read them."""

from __future__ import annotations

import pytest

from gateway.amounts import amount


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (0, "0.00"),
        (5_000_000, "5.00"),
        (123, "0.000123"),
        (-1_500_000, "-1.50"),
        (2**53, "9007199254.740992"),
        (25, "0.000025"),
    ],
)
def test_an_amount_has_two_to_six_decimals(micros: int, text: str) -> None:
    assert amount(micros) == text

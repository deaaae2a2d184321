"""Amounts as people read them."""

from __future__ import annotations

import pytest

from gateway.base.amounts import amount, parsed


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


@pytest.mark.parametrize(
    ("text", "micros"), [("5", 5_000_000), (" 5.00 ", 5_000_000), ("-.5", -500_000), ("+1.", 1_000_000), ("0", 0)]
)
def test_an_amount_is_read_as_people_write_it(text: str, micros: int) -> None:
    assert parsed(text) == micros


@pytest.mark.parametrize(
    "text", ["", ".", "1e3", "1E3", "1_000", "1,5", "NaN", "inf", "5 0", "0x5", "\u0665", "1.2345678", "-", "9" * 12]
)
def test_what_may_be_a_slip_is_no_amount(text: str) -> None:
    with pytest.raises(ValueError, match=r"^`.*` (is not an amount|is too large|cannot be stored)"):
        parsed(text)

"""The amounts of bills are read as they are meant, and refused where that cannot be known."""

from __future__ import annotations

import pytest

from gateway.tools.reconcile.bill import Amounts

READ = {
    "0": 0,
    "0.0012": 1_200_000,
    "12": 12_000_000_000,
    "-0.5": -500_000_000,
    "0.000000001": 1,
    "0.0000000015": 2,
    "4.2e-05": 42_000,
    "1E-3": 1_000_000,
    "$0.10": 100_000_000,
    "$ 0.10": 100_000_000,
    "-$0.10": -100_000_000,
    "$-0.10": -100_000_000,
    "0.10 USD": 100_000_000,
    "USD 0.10": 100_000_000,
    "US$0.10": 100_000_000,
    "(0.10)": -100_000_000,
    "\u22120.10": -100_000_000,
    "1,234.50": 1_234_500_000_000,
    "1,234,567": None,
    "1.234,50 €": 1_234_500_000_000,
    "€ 1.234,50": 1_234_500_000_000,
    "1\u202f234,50\u00a0€": 1_234_500_000_000,
    "1'234.50": 1_234_500_000_000,
    "0,0012": 1_200_000,
    "0,123": 123_000_000,
    "12,5": 12_500_000_000,
    "1 234": 1_234_000_000_000,
    "1.234": 1_234_000_000,
}


@pytest.mark.parametrize("text", READ)
def test_an_amount_is_read_exactly(text: str) -> None:
    if (nanos := READ[text]) is None:
        with pytest.raises(ValueError, match="is more than 1000000: is it the cost of one request"):
            Amounts().read(text)
    else:
        assert Amounts().read(text) == nanos


@pytest.mark.parametrize(
    "text",
    [
        *("", "abc", "NaN", "inf", "1.2.3,4,5", "--1", "12 34", "1,2345.6", "1,23,456.7", "0x10", "1e9999", "$", "5%"),
        *("1/2", "1" * 100, "1 2 3 " * 20, "ABCD 5", "5 €$", "1.5.", "٣"),
    ],
)
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(ValueError) as refused:
        Amounts().read(text)
    assert "is not an amount" in str(refused.value) or "is more than" in str(refused.value)
    assert len(str(refused.value)) < 200


def test_a_comma_that_may_be_either_is_for_a_person_to_decide() -> None:
    with pytest.raises(ValueError) as refused:
        Amounts().read("1,234")
    assert str(refused.value) == (
        "`1,234` may be 1234 or 1.234: say which separates decimals, with `--decimal .` or `--decimal ,`"
    )
    assert Amounts(".").read("1,234") == 1_234_000_000_000
    assert Amounts(",").read("1,234") == 1_234_000_000
    assert Amounts(",").read("1.234") == 1_234_000_000_000


def test_another_line_may_tell_what_separates_decimals() -> None:
    point = Amounts()
    assert [point.read(text) for text in ("0.5", "1,234")] == [500_000_000, 1_234_000_000_000]
    comma = Amounts()
    assert [comma.read(text) for text in ("0,5", "1.234", "7")] == [500_000_000, 1_234_000_000_000, 7_000_000_000]


def test_lines_that_contradict_each_other_are_refused() -> None:
    for first, second in (("0.5", "0,5"), ("0,5", "0.5"), ("1.234", "0,5"), ("1,234.5", "1.234,5")):
        amounts = Amounts()
        amounts.read(first)
        with pytest.raises(ValueError, match=r"--decimal \."):
            amounts.read(second)


def test_one_bill_has_one_currency() -> None:
    amounts = Amounts()
    assert [amounts.read(text) for text in ("$1", "1 USD", "1", "US$1")] == [1_000_000_000] * 4
    with pytest.raises(ValueError, match="`€1` is in EUR, a line before in USD: reconcile one currency"):
        amounts.read("€1")

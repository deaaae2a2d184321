"""The prices of an entry come out exact, per million tokens; what cannot be right is named."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from gateway.config.model import Cost, Tier
from gateway.tools.prices.catalogues import CatalogueEntry, Priced, load, read
from tests.tools.prices.test_price_list import LITELLM


def cost(
    input: str,  # noqa: A002
    output: str,
    cached: str = "",
    write: str = "",
    *,
    request: str = "",
    tiers: tuple[Tier, ...] = (),
) -> Cost:
    given = {name: Decimal(text) for name, text in (("cached_input", cached), ("cache_write", write)) if text}
    per_request = Decimal(request) if request else None
    return Cost(Decimal(input), Decimal(output), **given, request=per_request, tiers=tiers, service_tiers=None)


def tier(above: int, input: str, output: str, cached: str = "", write: str = "") -> Tier:  # noqa: A002
    given = {name: Decimal(text) for name, text in (("cached_input", cached), ("cache_write", write)) if text}
    return Tier(above=above, input=Decimal(input), output=Decimal(output), **given)


LITELLM_PRICES = {
    "gpt-4o": cost("2.5", "10", "1.25"),
    "gpt-5.4": cost("2.5", "15", "0.25", tiers=(tier(272_000, "5", "22.5", "0.5"),)),
    "gemini/gemini-2.5-pro": cost("1.25", "10", "0.125", tiers=(tier(200_000, "2.5", "15", "0.25"),)),
    "claude-sonnet-4-5": cost("3", "15", "0.3", "3.75"),
    "perplexity/pplx-70b-online": cost("0", "2.8", request="0.005"),
    "dashscope/qwen3-coder-flash": cost(
        "0.3",
        "1.5",
        "0.08",
        tiers=(
            tier(32_000, "0.5", "2.5", "0.12"),
            tier(128_000, "0.8", "4", "0.2"),
            tier(256_000, "1.6", "9.6", "0.4"),
        ),
    ),
    "kyma/qwen3.7-flash": cost(
        "0.0435", "0.1886", "0.0081", tiers=(tier(32_000, "0.135", "0.54"), tier(256_000, "0.27", "1.08"))
    ),
    "novita/moonshotai/kimi-k2.7-code": cost("0.95", "4", "0.19"),
}


@pytest.mark.parametrize("key", LITELLM_PRICES)
def test_prices_per_token_become_prices_per_million(key: str) -> None:
    (entry,) = load(LITELLM).with_key(key)
    assert read(entry).cost == LITELLM_PRICES[key]


def per_token(**raw: Any) -> Priced:
    raw = {"input_cost_per_token": Decimal("1e-6"), "output_cost_per_token": Decimal("2e-6")} | raw
    return read(CatalogueEntry("x/m", "x", "m", raw))


def test_the_noise_of_floats_is_gone_after_six_decimals() -> None:
    assert per_token(input_cost_per_token=Decimal("9.499999999999999e-07")).cost == cost("0.95", "2")


def test_a_tier_above_128000_tokens() -> None:
    priced = per_token(
        input_cost_per_token_above_128k_tokens=Decimal("2e-6"), output_cost_per_token_above_128k_tokens=Decimal("4e-6")
    )
    assert priced.cost == cost("1", "2", tiers=(tier(128_000, "2", "4"),))


def test_a_tier_with_the_prices_of_all_requests_is_left_out() -> None:
    assert per_token(input_cost_per_token_above_128k_tokens=Decimal("1e-6")).cost == cost("1", "2")


def test_cached_and_written_tokens_at_0_are_not_free() -> None:
    (entry,) = load(LITELLM).with_key("deepseek/deepseek-chat")
    priced = read(entry)
    assert priced.cost == cost("0.28", "0.42", "0.028")
    assert priced.notes == ("cache_write is 0 there and was left out, so that these tokens cost what input costs",)


def test_what_is_null_is_said_and_is_not_0() -> None:
    priced = per_token(cache_read_input_token_cost=None)
    assert priced.cost == cost("1", "2")
    assert priced.notes == ("cache_read_input_token_cost is null there and was left out",)
    without = per_token(input_cost_per_token=None)
    assert without.cost is None
    assert without.notes[0] == "it has no price of input there"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("2.5", "cache_read_input_token_cost is '2.5', not a number"),
        (True, "cache_read_input_token_cost is True, not a number"),
        ({"a": "b" * 100}, "..., not a number"),
        (Decimal("NaN"), "cache_read_input_token_cost is NaN, not a finite number"),
        (Decimal("Infinity"), "cache_read_input_token_cost is Infinity, not a finite number"),
        (Decimal(-1), "cache_read_input_token_cost is negative: -1"),
        (Decimal("0.010001"), "cache_read_input_token_cost is 0.010001, which cannot be right"),
        (Decimal("1e99999999"), "which cannot be right"),
        (Decimal("2.5e-12"), "cache_read_input_token_cost is 2.5E-12, which cannot be right"),
        (Decimal("1e-99999999"), "which cannot be right"),
    ],
)
def test_a_price_that_cannot_be_right_is_named(value: object, text: str) -> None:
    with pytest.raises(ValueError) as wrong:
        per_token(cache_read_input_token_cost=value)
    assert text in str(wrong.value)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (
            {"input_cost_per_request": Decimal(101)},
            "input_cost_per_request is 101, which cannot be right",
        ),
        ({"input_cost_per_token": Decimal("2.5")}, "input_cost_per_token is 2.5, which cannot be right"),
        (
            {"input_cost_per_token_above_128k_tokens": Decimal(-1)},
            "above_128k_tokens: input_cost_per_token is negative",
        ),
        ({"tiered_pricing": [7]}, "tiered_pricing[0] is 7, not a mapping"),
        ({"tiered_pricing": [{"range": ["x"]}]}, "tiered_pricing[0].range is 'x', not a number of tokens"),
    ],
)
def test_a_price_per_token_that_cannot_be_right_is_named(raw: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError) as wrong:
        per_token(**raw)
    assert text in str(wrong.value).replace("Decimal('7')", "7")


def test_prices_of_something_else_than_chat_are_no_prices() -> None:
    (entry,) = load(LITELLM).with_key("text-embedding-3-small")
    assert read(entry) == Priced(None, ("it is a price of 'embedding', not of chat completions",))


def test_an_entry_without_prices_and_one_with_0_are_told_apart() -> None:
    (without,) = load(LITELLM).with_key("github_copilot/gpt-4o")
    (zero,) = load(LITELLM).with_key("gemini/gemini-exp-1206")
    assert read(without).cost is None
    assert read(zero).free
    assert not read(load(LITELLM).with_key("gpt-4o")[0]).free

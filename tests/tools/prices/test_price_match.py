"""Which entry of a catalogue is the price of a model, and the line where that cannot be known."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from gateway.base.errors import Misconfigured
from gateway.config.channel import Channel
from gateway.config.model import Model, Serving
from gateway.tools.prices.catalogues import CatalogueEntry, PriceList, load
from gateway.tools.prices.match import Match, Matcher
from tests.tools.prices.test_price_list import LITELLM

CHANNELS = {
    "openai": Channel("https://api.openai.com/v1"),
    "azure": Channel("https://acme.openai.azure.com/openai/v1"),
    "gemini": Channel("https://generativelanguage.googleapis.com/v1beta/openai"),
    "anthropic": Channel("https://api.anthropic.com/v1"),
    "openrouter": Channel("https://openrouter.ai/api/v1"),
    "local": Channel("http://127.0.0.1:8000/v1"),
}


def priced(*channels: str | Serving) -> Model:
    return Model(list(channels), Decimal(1), Decimal(1))


def of_model(name: str, *channels: str | Serving, prices: Any = None, **chosen: str) -> Match:
    return Matcher(prices or load(LITELLM), CHANNELS, chosen).of_model(name, priced(*channels))


def entry(key: str, provider: str, input: object, output: object = Decimal("2e-6")) -> CatalogueEntry:  # noqa: A002
    raw = {"input_cost_per_token": input, "output_cost_per_token": output}
    return CatalogueEntry(key, provider, key.rpartition("/")[2], raw)


def test_the_channels_provider_decides_between_entries_of_one_name() -> None:
    assert of_model("gemini-2.5-pro", "gemini").key == "gemini/gemini-2.5-pro"
    assert of_model("gemini-2.5-pro", "local").key == "gemini-2.5-pro"
    assert of_model("gpt-4o", "azure").key == "azure/gpt-4o"


def test_a_model_is_found_by_the_name_that_it_has_upstream() -> None:
    assert of_model("smart", Serving("anthropic", "claude-sonnet-4-5")).key == "claude-sonnet-4-5"
    assert of_model("smart", Serving("local", "kimi-k2.5")).key == "moonshot/kimi-k2.5"


def test_a_model_is_found_by_its_own_name_where_the_upstreams_is_a_deployment() -> None:
    assert of_model("gpt-4o", Serving("azure", "our-deployment")).key == "azure/gpt-4o"


def test_several_channels_with_one_price_are_one() -> None:
    match = of_model("gpt-4o", "openai", Serving("azure", weight=2))
    assert (match.key, match.wrong) == ("gpt-4o", "")


def test_several_prices_are_listed_and_none_is_chosen() -> None:
    match = of_model("gpt-4o", "openai", Serving("azure", "eu/gpt-4o"))
    assert match == Match(wrong="several prices: gpt-4o (2.5/10 and more), azure/eu/gpt-4o (2.75/11 and more)")


def test_a_person_chooses() -> None:
    match = of_model("gpt-4o", "openai", Serving("azure", "eu/gpt-4o"), **{"gpt-4o": "azure/eu/gpt-4o"})
    assert match.key == "azure/eu/gpt-4o"
    with pytest.raises(Misconfigured, match="the catalogue has no `eu/gpt-4o`; like it: azure/eu/gpt-4o"):
        of_model("gpt-4o", "openai", **{"gpt-4o": "eu/gpt-4o"})
    with pytest.raises(Misconfigured, match="the catalogue has no `x`; see the keys in the file"):
        of_model("gpt-4o", "openai", **{"gpt-4o": "x"})


def test_what_is_missing_is_named() -> None:
    assert of_model("own", Serving("local", "mine")).missing == "the catalogue has no `own` nor `mine`"
    assert of_model("gemini-exp-1206", "gemini").missing == "gemini/gemini-exp-1206: all its prices are 0 there"
    embedding = "text-embedding-3-small: it is a price of 'embedding', not of chat completions"
    assert of_model("text-embedding-3-small", "openai").missing == embedding


def test_a_price_that_cannot_be_right_is_wrong_only_without_another() -> None:
    broken, right = entry("a/m", "a", Decimal("NaN")), entry("b/m", "b", Decimal("1e-6"))
    alone = of_model("m", "local", prices=PriceList([broken]))
    assert alone == Match(wrong="a/m: input_cost_per_token is NaN, not a finite number")
    assert of_model("m", "local", prices=PriceList([broken, right])).key == "b/m"


def test_names_that_differ_only_in_case_are_compared() -> None:
    twice = PriceList([entry("a/M", "a", Decimal("1e-6")), entry("a/m", "a", Decimal("3e-6"))])
    assert of_model("m", "local", prices=twice).wrong == "several prices: a/M (1/2), a/m (3/2)"


def test_a_long_list_of_prices_is_cut() -> None:
    many = PriceList([entry(f"p{index}/m", f"p{index}", Decimal(index + 1) / 1_000_000) for index in range(9)])
    assert of_model("m", "local", prices=many).wrong.endswith("p5/m (6/2) and 3 more")


def test_the_cost_of_a_channel_needs_a_known_provider() -> None:
    matcher = Matcher(load(LITELLM), CHANNELS, {})
    assert matcher.of_channel("gpt-4o", Serving("azure")).key == "azure/gpt-4o"
    assert matcher.of_channel("gpt-4o", Serving("local")).missing == (
        "no provider is known at the address of the channel `local`"
    )
    assert matcher.of_channel("gpt-4o", Serving("anthropic")).missing == "the catalogue has no `gpt-4o`"
    assert Matcher(load(LITELLM), CHANNELS, {"m": "gpt-4o"}).of_channel("m", Serving("local")).key == "gpt-4o"

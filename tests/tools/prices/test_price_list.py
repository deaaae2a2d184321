"""Catalogues of prices: entries are read exactly, matched with models, and compared."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.base.errors import Misconfigured
from gateway.config.channel import Channel
from gateway.config.model import Cost, Model, Serving, Tier
from gateway.tools.prices.catalogues import CatalogueEntry, Priced, PriceList, load, read
from gateway.tools.prices.match import Match, Matcher, PriceChange, changes, merged, prices_of

# LiteLLM's catalogue is read, exactly, and what is no catalogue is refused in one line.
LISTS = Path(__file__).parent / "price_lists"
"""Some models of the catalogue, with the prices of LiteLLM 1.109.1."""
LITELLM = LISTS / "litellm.json"


@pytest.mark.parametrize(
    ("key", "provider", "model"),
    [
        ("gpt-4o", "openai", "gpt-4o"),
        ("azure/eu/gpt-4o", "azure", "eu/gpt-4o"),
        ("gemini-2.5-pro", "vertexai", "gemini-2.5-pro"),
        ("gemini/gemini-2.5-pro", "gemini", "gemini-2.5-pro"),
        (
            "together_ai/meta-llama/Llama-3.3-70B-Instruct-Turbo",
            "togetherai",
            "meta-llama/Llama-3.3-70B-Instruct-Turbo",
        ),
    ],
)
def test_an_entry_knows_its_provider_and_its_name_there(key: str, provider: str, model: str) -> None:
    (entry,) = load(LITELLM).with_key(key)
    assert (entry.key, entry.provider, entry.model) == (key, provider, model)


def test_numbers_are_read_as_they_are_written() -> None:
    (entry,) = load(LITELLM).with_key("novita/moonshotai/kimi-k2.7-code")
    assert entry.raw["input_cost_per_token"] == Decimal("9.499999999999999e-07")


def test_the_description_of_litellms_fields_is_no_model() -> None:
    assert not load(LITELLM).with_key("sample_spec")


@pytest.mark.parametrize(
    ("address", "provider"),
    [
        ("https://api.openai.com/v1", "openai"),
        ("https://eu.api.openai.com/v1", "openai"),
        ("https://acme.openai.azure.com/openai/v1", "azure"),
        ("https://generativelanguage.googleapis.com/v1beta/openai", "gemini"),
        ("https://europe-west4-aiplatform.googleapis.com/v1", "vertexai"),
        ("https://openrouter.ai/api/v1", "openrouter"),
    ],
)
def test_the_provider_of_an_address_is_known(address: str, provider: str) -> None:
    assert provider in load(LITELLM).providers(address)


def test_an_entry_is_found_by_its_key_then_by_its_model_then_by_the_end_of_its_name() -> None:
    prices = load(LITELLM)
    assert [entry.key for entry in prices.named("GPT-4o")] == ["gpt-4o"]
    assert [entry.key for entry in prices.named("kimi-k2.5")] == ["moonshot/kimi-k2.5"]
    assert [entry.key for entry in prices.named("Llama-3.3-70B-Instruct-Turbo")] == [
        "together_ai/meta-llama/Llama-3.3-70B-Instruct-Turbo"
    ]
    assert prices.named("no-such-model") == []


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"[]", "not a catalogue of prices"),
        (b"{}", "not a catalogue of prices"),
        (b'{"gpt-4o": 1}', "not a catalogue of prices"),
        (b'{"a": {}}\n{', ":2: not valid JSON"),
        (b"<html>", ":1: not valid JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_catalogue_is_refused_with_what_to_give(tmp_path: Path, raw: bytes, text: str) -> None:
    file = tmp_path / "catalogue.json"
    file.write_bytes(raw)
    with pytest.raises(Misconfigured) as refused:
        load(file)
    assert text in str(refused.value)
    assert str(file) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(Misconfigured, match="name a readable file"):
            load(path)


def test_a_mark_of_the_byte_order_is_no_error(tmp_path: Path) -> None:
    file = tmp_path / "catalogue.json"
    file.write_bytes(b"\xef\xbb\xbf" + LITELLM.read_bytes())
    assert load(file).with_key("gpt-4o")


# The prices of an entry come out exact, per million tokens; what cannot be right is named.
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


def test_prices_of_something_else_than_tokens_are_no_prices() -> None:
    (entry,) = load(LITELLM).with_key("text-embedding-3-small")
    assert read(entry) == Priced(Cost(Decimal("0.02"), Decimal(0)))
    pictures = msgspec.structs.replace(entry, raw={**entry.raw, "mode": "image_generation"})
    assert read(pictures) == Priced(None, ("it is a price of 'image_generation', not of tokens",))


def test_an_entry_without_prices_and_one_with_0_are_told_apart() -> None:
    (without,) = load(LITELLM).with_key("github_copilot/gpt-4o")
    (zero,) = load(LITELLM).with_key("gemini/gemini-exp-1206")
    assert read(without).cost is None
    assert read(zero).free
    assert not read(load(LITELLM).with_key("gpt-4o")[0]).free


# Which entry of a catalogue is the price of a model, and the line where that cannot be known.
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


# What changes between two prices, and by how much.
def told(now: Cost | None, becomes: Cost) -> list[tuple[str, str, str]]:
    return [(change.label, str(change.now), str(change.becomes)) for change in changes(now, becomes)]


def test_each_part_of_a_price_is_compared() -> None:
    assert told(cost("1", "2", "0.5", "1.5", request="0.1"), cost("2", "3", "0.25", "2", request="0.2")) == [
        ("input", "1", "2"),
        ("cached_input", "0.5", "0.25"),
        ("cache_write", "1.5", "2"),
        ("output", "2", "3"),
        ("request", "0.1", "0.2"),
    ]
    assert changes(cost("1", "2"), cost("1.0", "2.00")) == []


def test_a_price_that_was_not_given_is_compared_with_what_it_falls_back_to() -> None:
    (change,) = changes(cost("1", "2"), cost("1", "2", "0.25"))
    assert change == PriceChange("cached_input", 0, Decimal(1), Decimal("0.25"), given=False)


def test_an_unknown_cost_shows_what_the_catalogue_gives() -> None:
    assert told(None, cost("1", "2", "0.1", tiers=(tier(10, "3", "4"),))) == [
        ("input", "None", "1"),
        ("cached_input", "None", "0.1"),
        ("output", "None", "2"),
        ("input above 10", "None", "3"),
        ("output above 10", "None", "4"),
    ]


def test_a_tier_is_compared_at_its_border_and_only_where_it_differs() -> None:
    now = cost("1", "2", tiers=(tier(100, "2", "4"),))
    assert told(now, cost("1", "2", tiers=(tier(100, "3", "4"),))) == [
        ("input above 100", "2", "3"),
        ("cached_input above 100", "2", "3"),
        ("cache_write above 100", "2", "3"),
    ]
    assert told(now, cost("1", "2")) == [
        ("input above 100", "2", "1"),
        ("cached_input above 100", "2", "1"),
        ("cache_write above 100", "2", "1"),
        ("output above 100", "4", "2"),
    ]
    assert told(cost("1", "2", "1", "1"), cost("1", "3", "1", "1", tiers=(tier(100, "2", "3"),))) == [
        ("output", "2", "3"),
        ("input above 100", "1", "2"),
    ]


def test_a_tier_falls_back_as_the_configuration_does() -> None:
    given = Tier(above=100, input=Decimal(3))
    assert told(cost("1", "2", "0.5"), cost("1", "2", "0.5", tiers=(given,))) == [
        ("input above 100", "1", "3"),
        ("cache_write above 100", "1", "3"),
    ]


def test_what_the_catalogue_does_not_say_stays() -> None:
    now = cost("1", "2", "0.5", "1.5", request="0.1", tiers=(tier(100, "2", "4"),))
    assert merged(now, cost("3", "4", "0.6")) == cost(
        "3", "4", "0.6", "1.5", request="0.1", tiers=(tier(100, "2", "4"),)
    )
    assert merged(None, cost("3", "4")) == cost("3", "4")


def test_a_free_model_has_no_prices() -> None:
    assert prices_of(Model(["a"], free=True)) is None
    assert prices_of(Model(["a"], Decimal(1), Decimal(2))) == cost("1", "2")

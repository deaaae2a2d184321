"""Catalogues of prices: entries are read exactly, matched with models, and compared."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from gateway.base.errors import Misconfigured
from gateway.config.schema import Config, load
from gateway.tools import prices
from gateway.tools.prices import Comparison, Note, PriceList, compare, rates_of

LITELLM = Path(__file__).parent / "litellm.json"
"""Some models of the catalogue, with the prices of LiteLLM 1.109.1."""
FILE = """
channels: {one: {base_url: "http://127.0.0.1:9/v1"}, two: {base_url: "http://127.0.0.1:9/v1"}}
models:
  MODEL: {input: 1, output: 2, max_output_tokens: 9, channels: [{use: one, model: UPSTREAM, cost: {input: 1, output: 1}}, two]}
groups: {default: {}}
"""


def config(folder: Path, model: str, upstream: str = "mine") -> Config:
    (folder / "gateway.yaml").write_text(FILE.replace("MODEL", model).replace("UPSTREAM", upstream))
    return load(folder / "gateway.yaml", {}).config


def compared(folder: Path, model: str, upstream: str = "mine", chosen: str = "", *, costs: bool = False) -> Comparison:
    return compare(
        config(folder, model, upstream), prices.load(LITELLM), [model], {model: chosen} if chosen else {}, costs=costs
    )


def entry(**raw: object) -> dict[str, Any]:
    given = {"input_cost_per_token": Decimal("1e-6"), "output_cost_per_token": Decimal("2e-6"), **raw}
    return {"litellm_provider": "p", **given}


def test_a_model_is_found_by_its_own_name_then_by_that_at_a_channel_then_with_any_provider(tmp_path: Path) -> None:
    for model, upstream, key in (
        ("gpt-4o", "gpt-5.4", "gpt-4o"),
        ("smart", "claude-sonnet-4-5", "claude-sonnet-4-5"),
        ("smart", "kimi-k2.5", "moonshot/kimi-k2.5"),
        ("GPT-4o", "mine", "gpt-4o"),
    ):
        assert {each.entry for each in compared(tmp_path, model, upstream).changes} == {key}


def test_a_person_chooses(tmp_path: Path) -> None:
    assert compared(tmp_path, "gpt-4o", chosen="azure/eu/gpt-4o").changes[0].entry == "azure/eu/gpt-4o"
    with pytest.raises(Misconfigured, match=r"the catalogue has no `eu/gpt-4o`; like it: .*azure/eu/gpt-4o"):
        compared(tmp_path, "gpt-4o", chosen="eu/gpt-4o")
    with pytest.raises(Misconfigured, match="the catalogue has no `x`; see the keys in the file"):
        compared(tmp_path, "gpt-4o", chosen="x")


def test_what_cannot_be_used_is_named(tmp_path: Path) -> None:
    def note(**entries: dict[str, Any]) -> Note:
        named = {key.replace("__", "/"): value for key, value in entries.items()}
        (found,) = compare(config(tmp_path, "m"), PriceList(named), ["m"], {}, costs=False).notes
        return found

    assert note().text == "the catalogue has no `m`"
    several = note(a__m=entry(), b__m=entry(input_cost_per_token=Decimal("3e-6")))
    assert (several.wrong, several.text) == (True, "several prices: a/m (1/2), b/m (3/2); choose one with --as")
    broken = note(a__m=entry(input_cost_per_token=Decimal("NaN")))
    assert (broken.wrong, broken.text) == (True, "a/m: input_cost_per_token is NaN, not a number")
    tiers = note(m=entry(input_cost_per_token_above_200k_tokens=Decimal("3e-6")))
    assert (tiers.wrong, tiers.text) == (False, "m: it has prices by the size of the prompt: compare them by hand")


def test_prices_that_agree_are_counted(tmp_path: Path) -> None:
    for entries in ({"m": entry()}, {"a/m": entry(), "b/m": entry()}):
        found = compare(config(tmp_path, "m"), PriceList(entries), ["m"], {}, costs=False)
        assert (found.changes, found.notes, found.same) == ([], [], 1)


def test_cached_and_written_tokens_at_0_or_null_are_not_free() -> None:
    raw = entry(cache_read_input_token_cost=Decimal(0), cache_creation_input_token_cost=None)
    assert rates_of(raw) == {"input": Decimal(1), "output": Decimal(2)}


def test_the_noise_of_floats_is_gone_after_six_decimals() -> None:
    assert rates_of(prices.load(LITELLM).entries["novita/moonshotai/kimi-k2.7-code"])["input"] == Decimal("0.95")


@pytest.mark.parametrize(
    "value", [True, "1e-6", [], Decimal("-1e-6"), Decimal("Infinity"), Decimal("0.02"), Decimal("1e-12")]
)
def test_a_price_that_cannot_be_right_is_named(value: object) -> None:
    with pytest.raises(ValueError, match=r"^output_cost_per_token is "):
        rates_of(entry(output_cost_per_token=value))


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ({"mode": "image_generation"}, "it is a price of image_generation, not of tokens"),
        ({"output_cost_per_token": None}, "it has no price of input and output there"),
        ({"input_cost_per_token": Decimal(0), "output_cost_per_token": Decimal(0)}, "all its prices are 0 there"),
    ],
)
def test_what_has_no_price_of_tokens_is_left_out(raw: dict[str, Any], why: str) -> None:
    with pytest.raises(LookupError, match=why):
        rates_of(entry(**raw))


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b"\xff", b'{"a": {}}', b"[" * 100_000])
def test_what_is_no_catalogue_is_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "file").write_bytes(raw)
    with pytest.raises(Misconfigured, match="file:"):
        prices.load(tmp_path / "file")


def test_a_mark_of_the_byte_order_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("\ufeff" + json.dumps({"m": {"litellm_provider": "p"}}))
    assert list(prices.load(tmp_path / "file").entries) == ["m"]

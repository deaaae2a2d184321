"""The prices of a model and the cost of a channel: what is accepted, and the one line about what is not."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from gateway.base.errors import Misconfigured
from gateway.config.model import Cost, Model, Serving, Tier
from gateway.config.schema import load

PRICE = (
    "give `input` and `output` prices per million tokens, or `free: true` without them; or `image`, `second` or `character`, for "
    "what is billed by these alone"
)
RANGE = "prices must be from 0 to 1000000, with at most six decimals"
TIERS = "tiers must be at most 16, each with a larger `above` than the one before"
NAMED = "service_tiers are named by letters and digits, and `default` and `auto` need no price"
FACTORS = "service_tiers have factors above 0, 1000 at most, with at most six decimals"
OWN = "a tier needs a price of its own: `input`, `cached_input`, `cache_write` or `output`"


def read(tmp_path: Path, model: str) -> Model:
    file = tmp_path / "gateway.yaml"
    file.write_text(f"channels: {{up: {{base_url: 'http://h/v1'}}}}\nmodels: {{m: {model}}}")
    return load(file, {}).config.models["m"]


def test_every_part_of_a_price_is_read_exactly(tmp_path: Path) -> None:
    model = read(
        tmp_path,
        "{input: 2.50, cached_input: 1.25, cache_write: 3.125, output: 10.00, request: 0.005, "
        "tiers: [{above: 128000, input: 5.00, output: 15.00}, {above: 256000, cached_input: 0.1}], "
        "channels: [{use: up, cost: {input: 2.00, cached_input: 1.00, output: 8.00, tiers: [{above: 9, output: 9}]}}]}",
    )
    assert model == Model(
        [Serving("up", cost=Cost(Decimal(2), Decimal(8), Decimal(1), tiers=(Tier(9, output=Decimal(9)),)))],
        Decimal("2.5"),
        Decimal(10),
        cached_input=Decimal("1.25"),
        cache_write=Decimal("3.125"),
        request=Decimal("0.005"),
        tiers=(Tier(128_000, Decimal(5), Decimal(15)), Tier(256_000, cached_input=Decimal("0.1"))),
    )


def test_what_is_not_given_is_unknown_and_not_0(tmp_path: Path) -> None:
    model = read(tmp_path, "{input: 1, output: 2, channels: [up]}")
    assert (model.cached_input, model.cache_write, model.request, model.tiers) == (None, None, None, ())
    assert model.servings == (Serving("up", cost=None),)


@pytest.mark.parametrize(
    ("model", "error"),
    [
        ("{cached_input: 1, output: 1, channels: [up]}", f"models.m: {PRICE}"),
        ("{free: true, cached_input: 0, channels: [up]}", f"models.m: {PRICE}"),
        ("{free: true, request: 0.1, channels: [up]}", f"models.m: {PRICE}"),
        ("{free: true, tiers: [{above: 1, input: 1}], channels: [up]}", f"models.m: {PRICE}"),
        ("{free: true, service_tiers: {flex: 1}, channels: [up]}", f"models.m: {PRICE}"),
        ("{input: 1, output: 1, service_tiers: {default: 1}, channels: [up]}", f"models.m: {NAMED}"),
        ("{input: 1, output: 1, service_tiers: {'a b': 1}, channels: [up]}", f"models.m: {NAMED}"),
        ("{input: 1, output: 1, service_tiers: {flex: 0}, channels: [up]}", f"models.m: {FACTORS}"),
        ("{input: 1, output: 1, cached_input: -1, channels: [up]}", f"models.m: {RANGE}"),
        ("{input: 1, output: 1, cache_write: 1000001, channels: [up]}", f"models.m: {RANGE}"),
        ("{input: 1, output: 1, request: 0.0000001, channels: [up]}", f"models.m: {RANGE}"),
        ("{input: 1, output: 1, tiers: [{above: 1, input: -1}], channels: [up]}", f"models.m.tiers[0]: {RANGE}"),
        ("{input: 1, output: 1, tiers: [{above: 1}], channels: [up]}", f"models.m.tiers[0]: {OWN}"),
        (
            "{input: 1, output: 1, tiers: [{above: 0, input: 1}], channels: [up]}",
            "models.m.tiers[0].above: must be a whole number >= 1",
        ),
        ("{input: 1, output: 1, tiers: [{input: 1}], channels: [up]}", "models.m.tiers[0]: `above` is missing; add it"),
        (
            "{input: 1, output: 1, tiers: [{above: 1, request: 1}], channels: [up]}",
            "models.m.tiers[0].request: unknown setting; known here: above, cache_write, cached_input, input, output",
        ),
        (
            "{input: 1, output: 1, tiers: [{above: 2, input: 1}, {above: 2, input: 2}], channels: [up]}",
            f"models.m: {TIERS}",
        ),
        (
            "{input: 1, output: 1, tiers: [{above: 2, input: 1}, {above: 1, input: 2}], channels: [up]}",
            f"models.m: {TIERS}",
        ),
        (
            "{free: true, channels: [{use: up, cost: {input: 1}}]}",
            "models.m.channels[0].cost: `output` is missing; add it",
        ),
        (
            "{free: true, channels: [{use: up, cost: {input: 1, output: 1, price: 1}}]}",
            "models.m.channels[0].cost.price: unknown setting; "
            "known here: cache_write, cached_input, input, output, request, service_tiers, tiers",
        ),
        (
            "{free: true, channels: [{use: up, cost: {input: 1, output: 'NaN'}}]}",
            f"models.m.channels[0].cost: {RANGE}",
        ),
    ],
)
def test_a_wrong_price_is_one_line(tmp_path: Path, model: str, error: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        read(tmp_path, model)
    assert str(refused.value) == f"{tmp_path}/gateway.yaml:2: {error}"

"""Costs are exact: they are computed in whole numbers and rounded up once. Groups, accounts and tokens limit the models."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.chat.usage import Usage
from gateway.config.channel import Channel
from gateway.config.model import Model, Serving
from gateway.config.schema import Config, Group, load
from gateway.domain.catalogue import Catalogue, matches
from gateway.domain.facts import Caller
from gateway.domain.prices import Price
from gateway.operations.operation import Operation

A, B = Channel("http://a/v1"), Channel("http://b/v1")

CATALOGUE = Catalogue(
    Config(
        channels={"a": A, "b": B},
        models={
            "small": Model(["a"], input=Decimal("0.15"), output=Decimal("0.60")),
            "gpt-4[8k]?": Model(["a"], free=True),
            "spread": Model(
                [Serving("a", priority=1), "b", Serving("a", model="renamed", weight=3), Serving("b", priority=-1)],
                free=True,
            ),
        },
        groups={
            "default": Group(),
            "half": Group(models=["small"], ratio=Decimal("0.5")),
            "odd": Group(models=["gpt-4[8k]?", "s*l"], ratio=Decimal("0.333333")),
            "none": Group(models=[]),
            "b": Group(channels=["b"]),
        },
    )
)


def caller(group: str, account: tuple[str, ...] | None = None, token: tuple[str, ...] | None = None) -> Caller:
    return Caller("acc", "acc-1", group, account_models=account, token_models=token)


tokens = st.integers(0, 10**9)
prices = st.decimals(0, 1_000_000, places=6)
ratios = st.decimals(0, 1000, places=6)


@given(tokens, tokens, prices, prices, ratios)
def test_the_cost_is_the_exact_one_rounded_up_once(
    prompt: int, completion: int, input_price: Decimal, output_price: Decimal, ratio: Decimal
) -> None:
    catalogue = Catalogue(
        Config(
            channels={"a": A},
            models={"m": Model(["a"], input=input_price, output=output_price)},
            groups={"g": Group(ratio=ratio)},
        )
    )
    price = catalogue.price("m", "g")
    assert price is not None
    units = (prompt * Fraction(input_price) + completion * Fraction(output_price)) * Fraction(ratio) / 1_000_000
    assert price.cost(prompt, completion) == math.ceil(units * 1_000_000)


@given(tokens, tokens, st.integers(0, 10**12), st.integers(0, 10**12), st.fractions(0, 1000))
def test_charging_in_parts_never_costs_less(one: int, other: int, to_read: int, to_write: int, by: Fraction) -> None:
    price = Price(to_read, to_write, by)
    assert price.cost(one, other) <= price.cost(one, 0) + price.cost(0, other) <= price.cost(one, other) + 1
    assert price.cost(one, other) <= price.cost(one + 1, other)


@pytest.mark.parametrize(
    ("written", "micros"),
    [
        ("0.15", 150_000),
        ("0.1", 100_000),
        ("2.675", 2_675_000),
        ("0.000001", 1),
        ("1.005", 1_005_000),
        ("3", 3_000_000),
    ],
)
def test_a_price_in_the_file_is_exact_in_micros(tmp_path: Path, written: str, micros: int) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(
        f"channels: {{a: {{base_url: 'http://a'}}}}\nmodels: {{m: {{input: {written}, output: 0, channels: [a]}}}}"
    )
    price = Catalogue(load(file, {}).config).price("m", "default")
    assert price == Price(micros, 0)


def test_a_million_tokens_cost_the_price_and_one_token_a_whole_micro() -> None:
    price = CATALOGUE.price("small", "default")
    assert price == Price(150_000, 600_000)
    assert price.cost(1_000_000, 1_000_000) == 750_000
    assert price.cost(1, 0) == 1
    assert price.cost(0, 0) == 0
    assert price.of(Usage(2_000_000, 0, "upstream")) == 300_000


def test_the_ratio_of_the_group_multiplies_and_stays_exact_in_the_record() -> None:
    assert CATALOGUE.price("small", "half") == Price(150_000, 600_000, Fraction(1, 2))
    odd = CATALOGUE.price("small", "odd")
    assert odd is not None
    assert odd.record(Usage()) == {"input": 150_000, "output": 600_000, "ratio": "333333/1000000"}


def test_a_free_model_costs_nothing_and_an_unknown_one_has_no_price() -> None:
    free = CATALOGUE.price("spread", "default")
    assert free is not None
    assert free.cost(10**9, 10**9) == 0
    assert CATALOGUE.price("other", "default") is None


def test_a_caller_may_use_the_models_that_group_and_account_allow() -> None:
    assert CATALOGUE.allows(caller("default"), "small")
    assert not CATALOGUE.allows(caller("default"), "other")
    assert not CATALOGUE.allows(caller("none"), "small")
    assert not CATALOGUE.allows(caller("gone"), "small")
    assert CATALOGUE.allows(caller("default", account=("s*",)), "small")
    assert not CATALOGUE.allows(caller("default", account=("x",)), "small")
    assert not CATALOGUE.allows(caller("default", token=("x",)), "small")
    assert CATALOGUE.allows(caller("default", token=("s*",)), "small")


@pytest.mark.parametrize(
    ("asking", "model", "barrier", "text"),
    [
        (caller("default"), "smal", "configuration", "the configuration has no model `smal`"),
        (caller("half"), "spread", "group", "group half allows small"),
        (caller("b"), "small", "group", "group b may use channels b, and none of them serves small"),
        (caller("gone"), "small", "group", "group gone allows none"),
        (caller("default", account=("x", "y")), "small", "account", "account acc allows x, y"),
        (caller("default", token=("x",)), "small", "token", "token acc-1 allows x"),
    ],
)
def test_an_operator_learns_what_keeps_a_caller_from_a_model(
    asking: Caller, model: str, barrier: str, text: str
) -> None:
    found = CATALOGUE.why_not(asking, model)
    assert found is not None
    assert (found[0], found[1].startswith(text)) == (barrier, True), found
    assert CATALOGUE.why_not(caller("default"), "small") is None


def test_visible_models_are_also_narrowed_by_the_token_and_in_the_order_of_the_file() -> None:
    assert CATALOGUE.visible(caller("default")) == ["small", "gpt-4[8k]?", "spread"]
    assert CATALOGUE.visible(caller("default", token=("s*",))) == ["small", "spread"]
    assert CATALOGUE.visible(caller("odd", account=("*",), token=("*",))) == ["small", "gpt-4[8k]?"]
    assert CATALOGUE.visible(caller("gone")) == []


def test_only_the_star_is_special_in_a_pattern() -> None:
    assert matches(["gpt-4[8k]?"], "gpt-4[8k]?")
    assert not matches(["gpt-4[8k]?"], "gpt-48x")
    assert not matches(["small"], "Small")
    assert matches(["a*c*e"], "abcde")
    assert not matches(["a*c*e"], "abde")
    assert not matches([], "small")


def test_a_group_has_only_its_channels_and_the_models_that_they_serve() -> None:
    tiers = CATALOGUE.tiers("spread", "b", Operation.CHAT)
    assert [[candidate.name for candidate, _ in tier] for tier in tiers] == [["b"], ["b"]]
    assert CATALOGUE.visible(caller("b")) == ["spread"]
    assert not CATALOGUE.allows(caller("b"), "small")


def test_channels_are_grouped_by_priority_with_their_weights_and_model_names() -> None:
    tiers = CATALOGUE.tiers("spread", "default", Operation.CHAT)
    entries = [[(c.name, c.channel, c.model, weight) for c, weight in tier] for tier in tiers]
    assert entries == [
        [("b", B, "spread", 1)],
        [("b", B, "spread", 1), ("a", A, "renamed", 3)],
        [("a", A, "spread", 1)],
    ]
    assert CATALOGUE.attempts("spread") == 3
    assert CATALOGUE.attempts("small") == 1

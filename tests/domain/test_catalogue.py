"""Prices, charges and models: costs are exact, computed in whole numbers, and never more than the hold."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.chat.usage import ReportedUsage, Usage, read_counts
from gateway.config.channel import Channel
from gateway.config.model import Cost, Model, Serving, Tier
from gateway.config.schema import Config, Group, load
from gateway.domain.catalogue import Catalogue, matches
from gateway.domain.facts import Caller
from gateway.domain.prices import Price, price_from, price_of
from gateway.operations.operation import Operation

# Costs are exact: they are computed in whole numbers and rounded up once. Groups, accounts and tokens limit the models.
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


@given(tokens, tokens, st.integers(0, 10**12), st.integers(0, 10**12), st.fractions(0, 1000))
def test_charging_in_parts_never_costs_less(one: int, other: int, to_read: int, to_write: int, by: Fraction) -> None:
    price = Price(to_read, to_write, by)
    assert price.cost(one, other) <= price.cost(one, 0) + price.cost(0, other) <= price.cost(one, other) + 1
    assert price.cost(one, other) <= price.cost(one + 1, other)


@pytest.mark.parametrize(
    ("written", "micros"),
    [
        *(("0.15", 150_000), ("0.1", 100_000), ("2.675", 2_675_000)),
        *(("0.000001", 1), ("1.005", 1_005_000), ("3", 3_000_000)),
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


# Charges are exact and never more than the hold; what is not priced falls back to the input, never to 0.
amounts = st.decimals(0, 1_000_000, places=6)
some = st.one_of(st.none(), amounts)
prices_ratios = st.fractions(0, 1000, max_denominator=10**6)
counts = st.integers(0, 300_000)


@st.composite
def models(draw: st.DrawFn) -> Model:
    borders = sorted(draw(st.sets(st.integers(1, 300_000), max_size=3)))
    tiers = tuple(Tier(above, draw(amounts), draw(some), draw(some), draw(some)) for above in borders)
    return Model(
        ["a"],
        draw(amounts),
        draw(amounts),
        cached_input=draw(some),
        cache_write=draw(some),
        request=draw(some),
        tiers=tiers,
    )


def test_a_service_tier_is_held_at_the_dearest_that_it_can_be_and_charged_by_the_answer() -> None:
    tiers = (Tier(1000, Decimal(10)),)
    factors = {"flex": Decimal("0.5"), "priority": Decimal(2)}
    price = price_of(Model(["a"], Decimal(1), Decimal(2), tiers=tiers, service_tiers=factors), Fraction(3))
    assert {asked: price.ordered(asked).ratio for asked in ("", "auto", "flex", "priority")} == {
        "": 3,
        "auto": 6,
        "flex": 3,
        "priority": 6,
    }
    named = {"default": Decimal(1), **factors}
    unnamed = {"auto": Decimal(1), "flex": Decimal(1), "priority": Decimal(2)}
    for asked, told, factor in [
        *((asked, told, factor) for asked in unnamed for told, factor in named.items()),
        *((asked, told, factor) for asked, factor in unnamed.items() for told in ("", "x")),
    ]:
        served, usage = price.served(asked, told), Usage(2000, 7, "upstream")
        assert served.of(usage) == 3 * factor * (2000 * 10 + 7 * 2)
        assert served.record(usage)["ratio"] == str(3 * Fraction(factor))
        assert served.record(usage).get("service_tier") == (told if told in factors else asked if factor == 2 else None)
        assert price_from(served.record(usage)).of(usage) == served.of(usage)


def test_a_cost_has_the_service_tiers_of_its_model_unless_it_gives_its_own() -> None:
    model = Model(["a"], Decimal(1), Decimal(2), service_tiers={"flex": Decimal("0.5")})
    assert price_of(Cost(Decimal(1), Decimal(1)), model=model).service_tiers == (("flex", Fraction(1, 2)),)
    own = Cost(Decimal(1), Decimal(1), service_tiers={"priority": Decimal(3)})
    assert price_of(own, model=model).service_tiers == (("priority", Fraction(3)),)


@st.composite
def usages(draw: st.DrawFn, most_prompt: int = 300_000, most_output: int = 300_000) -> Usage:
    """The usage of one attempt, within bounds."""
    prompt = draw(st.integers(0, most_prompt))
    cached = draw(st.integers(0, prompt))
    written = draw(st.integers(0, prompt - cached))
    return Usage(prompt, draw(st.integers(0, most_output)), "upstream", cached, written, draw(st.integers(0, 1)))


def exact(model: Model, usage: Usage, ratio: Fraction) -> Fraction:
    """Return the charge in micros before it is rounded, computed from the file's prices in another way."""
    reached = [tier for tier in model.tiers if usage.prompt_tokens > tier.above]
    tier = max(reached, key=lambda tier: tier.above, default=Tier(1, input=model.input))

    def first(*given: Decimal | None) -> Fraction:
        return next(Fraction(price) for price in given if price is not None)

    plain = first(tier.input, model.input)
    cached = Fraction(first(tier.cached_input, model.cached_input, Decimal(-1)))
    written = Fraction(first(tier.cache_write, model.cache_write, Decimal(-1)))
    total = (usage.prompt_tokens - usage.cached_tokens - usage.cache_write_tokens) * plain
    total += usage.cached_tokens * (plain if cached < 0 else cached)
    total += usage.cache_write_tokens * (plain if written < 0 else written)
    total += usage.completion_tokens * first(tier.output, model.output)
    return (total + usage.answers * Fraction(model.request or 0) * 1_000_000) * ratio


@settings(max_examples=250, deadline=None)
@given(models(), usages(), prices_ratios)
def test_a_charge_is_the_exact_one_rounded_up_once_and_can_be_computed_again(
    model: Model, usage: Usage, ratio: Fraction
) -> None:
    price = price_of(model, ratio)
    charge = price.of(usage)
    assert charge == math.ceil(exact(model, usage, ratio))
    assert price_from(price.record(usage)).of(usage) == charge


@settings(max_examples=250, deadline=None)
@given(st.data(), models(), prices_ratios, st.integers(0, 300_000), st.integers(0, 300_000), st.integers(1, 3))
def test_a_charge_is_never_more_than_the_hold(
    data: st.DataObject, model: Model, ratio: Fraction, bound: int, ceiling: int, attempts: int
) -> None:
    price = price_of(model, ratio)
    total, failed = Usage(), 0
    for number in range(data.draw(st.integers(0, attempts))):
        answers = number == attempts - 1
        one = data.draw(usages(bound, ceiling if answers else 0))
        split = one.cached_tokens, one.cache_write_tokens
        total += Usage(one.prompt_tokens, one.completion_tokens, "estimated", *split, answers=int(answers))
        failed += 0 if answers else one.prompt_tokens
    assert price.of(total) <= price.most(bound, ceiling, failed)


@given(models(), usages(), st.integers(0, 1000))
def test_a_longer_prompt_is_not_held_for_less(model: Model, usage: Usage, more: int) -> None:
    price = price_of(model)
    assert price.most(usage.prompt_tokens, 10) <= price.most(usage.prompt_tokens + more, 10)


def test_what_is_not_given_falls_back_and_never_to_0() -> None:
    assert price_of(Model(["a"], Decimal(2), Decimal(8))) == Price(2_000_000, 8_000_000)
    plain = price_of(Cost(Decimal(2), Decimal(8), tiers=(Tier(10, input=Decimal(3)), Tier(20, cache_write=Decimal(7)))))
    assert plain.of(Usage(10, 1, "upstream", 10)) == 10 * 2 + 8
    assert plain.of(Usage(11, 1, "upstream", 4, 4)) == 11 * 3 + 8, "cached and written as the input of the tier"
    assert plain.of(Usage(21, 1, "upstream", 4, 4)) == 17 * 2 + 4 * 7 + 8, "the input of the model, not of another tier"
    parts = Model(["a"], Decimal(2), Decimal(8), cached_input=Decimal("0.5"), tiers=(Tier(10, input=Decimal(3)),))
    assert price_of(parts).of(Usage(12, 0, "upstream", 4, 4)) == 8 * 3 + 2, "cached as the model's cached"


def test_a_price_of_0_that_is_given_is_one() -> None:
    model = Model(["a"], Decimal(2), Decimal(8), cached_input=Decimal(0), cache_write=Decimal(0))
    assert price_of(model).of(Usage(10, 0, "upstream", 4, 4)) == 4


def test_a_tier_begins_above_its_border_and_is_for_all_tokens() -> None:
    price = price_of(Model(["a"], Decimal(1), Decimal(1), tiers=(Tier(100, Decimal(2), Decimal(3)),)))
    assert price.of(Usage(100, 10, "upstream")) == 110
    assert price.of(Usage(101, 10, "upstream")) == 232
    assert price.record(Usage(101, 10, "upstream"))["above"] == 100
    assert "above" not in price.record(Usage(100, 10, "upstream"))


def test_of_several_attempts_the_one_that_was_answered_chooses_the_tier() -> None:
    price = price_of(Model(["a"], Decimal(1), Decimal(1), request=Decimal(1), tiers=(Tier(100, Decimal(2)),)))
    failed, short = Usage(120, 0, "estimated"), Usage(90, 10, "upstream", answers=1)
    assert price.of(failed + short) == 210 + 10 + 1_000_000
    assert price.of(failed + failed) == 2 * 240
    assert price.of(short + failed) == price.of(failed + short)
    assert price.of(Usage(60, 0, "estimated") + Usage(60, 0, "estimated")) == 120, "each is below the border"


def test_only_an_answer_costs_the_price_of_the_request() -> None:
    price = price_of(Model(["a"], Decimal(1), Decimal(1), request=Decimal("0.25")), Fraction(1, 2))
    assert price.of(Usage(10, 0, "estimated")) == 5
    assert price.of(Usage(10, 0, "estimated", answers=1)) == 5 + 125_000
    assert price.record(Usage(10, 0, "estimated", answers=1))["request"] == 250_000
    assert "request" not in price.record(Usage(10, 0, "estimated"))


def test_a_record_of_an_earlier_version_has_its_price() -> None:
    price = price_from({"input": 150_000, "output": 600_000, "ratio": "333333/1000000", "capped_micros": 7})
    assert price == Price(150_000, 600_000, Fraction(333_333, 1_000_000))


WRONG = st.one_of(
    st.integers(-(10**6), -1),
    st.floats(-1e6, -0.001, allow_nan=False),
    st.sampled_from([1e300, 1 << 41, "64", True, [], {}, -1.0]),
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens"]), WRONG, counts, counts)
def test_a_wrong_number_of_cached_tokens_never_lowers_a_charge(
    name: str, wrong: object, prompt: int, output: int
) -> None:
    price = price_of(Model(["a"], Decimal(2), Decimal(8), cached_input=Decimal("0.2")))
    plain = {"prompt_tokens": prompt, "completion_tokens": output}
    assert charge(price, {**plain, name: wrong}) >= charge(price, plain)
    assert charge(price, {**plain, "prompt_tokens_details": {name: wrong}}) >= charge(price, plain)


@settings(max_examples=150, deadline=None)
@given(counts, counts, st.integers(0, 10**6))
def test_more_cached_tokens_than_the_prompt_has_never_lower_a_charge(prompt: int, output: int, more: int) -> None:
    price = price_of(Model(["a"], Decimal(2), Decimal(8), cached_input=Decimal("0.2")))
    plain = {"prompt_tokens": prompt, "completion_tokens": output}
    assert charge(price, {**plain, "cached_tokens": prompt + 1 + more}) >= charge(price, plain)


@settings(max_examples=150, deadline=None)
@given(WRONG, counts, st.sampled_from(["prompt_tokens", "completion_tokens", "total_tokens"]))
def test_a_wrong_count_never_costs_less_than_if_it_was_not_told(wrong: object, count: int, name: str) -> None:
    price = price_of(Model(["a"], Decimal(2), Decimal(8)))
    told: dict[str, object] = {"prompt_tokens": count, "completion_tokens": count, "total_tokens": 2 * count}
    without = {key: value for key, value in told.items() if key != name}
    assert charge(price, {**told, name: wrong}) >= charge(price, without)


@given(st.floats(0.001, 1e6), counts)
def test_a_fraction_costs_at_least_what_it_says(told: float, prompt: int) -> None:
    price = price_of(Model(["a"], Decimal(2), Decimal(8)))
    assert charge(price, {"prompt_tokens": prompt, "completion_tokens": told}) >= 8 * told


def charge(price: Price, told: Mapping[str, object]) -> int:
    """Return the charge of an answer with this usage object after its finish, of which nothing was seen."""
    reported = ReportedUsage()
    if (found := read_counts(json.dumps(told).encode())) is not None:
        reported.add(found, final=True)
    return price.of(reported.usage(lambda: 20, lambda: 6))


@pytest.mark.parametrize("above", [1, 10])
def test_the_highest_prices_of_the_tiers_that_can_apply_are_held(above: int) -> None:
    price = price_of(
        Model(["a"], Decimal(1), Decimal(9), cache_write=Decimal(4), tiers=(Tier(above, Decimal(2), Decimal(3)),))
    )
    assert price.most(above, 10) == above * 4 + 90
    assert price.most(above + 1, 10) == (above + 1) * 4 + 90, "a tier that is cheaper in a part lowers nothing"

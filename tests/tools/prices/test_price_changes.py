"""What changes between two prices, and by how much."""

from __future__ import annotations

from decimal import Decimal

from gateway.config.model import Cost, Model, Tier
from gateway.tools.prices.match import PriceChange, changes, merged, prices_of
from tests.tools.prices.test_price_entry import cost, tier


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

"""The operation on models: what is served, by which channels, at which prices and costs. The file rules."""

from __future__ import annotations

from decimal import Decimal

import msgspec

from gateway.amounts import MICROS
from gateway.catalogue import Catalogue
from gateway.config.model import Cost, Model, Tier
from gateway.management.desk import LocalDesk
from gateway.management.operation import Scope, operation
from gateway.management.page import Page


class Rates(msgspec.Struct, frozen=True):
    """Prices of tokens, in micros for a million of them; null for what is not given, so that the one of `input` counts."""

    input_micros: int | None
    output_micros: int | None
    cached_input_micros: int | None
    cache_write_micros: int | None


class TierRates(Rates, frozen=True, kw_only=True):
    """The prices of a request with more than `above` prompt tokens; null for those that are as below."""

    above: int


class Prices(Rates, frozen=True, kw_only=True):
    """All prices of a model, or costs of a channel. `request_micros`: for each request that was answered."""

    request_micros: int | None
    tiers: list[TierRates]


class ServedBy(msgspec.Struct, frozen=True):
    """A channel of a model, with the model's name there. A smaller `priority` is tried first. `cost`: null where not known."""

    channel: str
    model: str
    priority: int
    weight: int
    cost: Prices | None


class ModelServed(msgspec.Struct, frozen=True):
    """A model that callers may request. `price`: null for a free one. `groups`: those that may use it, with the ratio they pay."""

    name: str
    price: Prices | None
    max_output_tokens: int
    context_length: int | None
    channels: list[ServedBy]
    groups: dict[str, str]


@operation("GET", "/models", Scope.READ)
async def list_(desk: LocalDesk) -> Page[ModelServed]:
    """List the models with their prices, costs and channels, in the order of the file."""
    catalogue = Catalogue(desk.config)
    return Page([_described(catalogue, name, model) for name, model in catalogue.models.items()])


def _described(catalogue: Catalogue, name: str, model: Model) -> ModelServed:
    return ModelServed(
        name,
        None if model.free else _prices(model),
        model.max_output_tokens,
        model.context_length,
        [
            ServedBy(
                each.use,
                each.model or name,
                each.priority,
                each.weight,
                None if each.cost is None else _prices(each.cost),
            )
            for each in model.servings
        ],
        {group: f"{each.ratio}" for group, each in catalogue.groups.items() if catalogue.serves(group, name)},
    )


def _prices(of: Model | Cost) -> Prices:
    tiers = [TierRates(*_rates(tier), above=tier.above) for tier in of.tiers]
    return Prices(*_rates(of), request_micros=_micros(of.request), tiers=tiers)


def _rates(of: Model | Cost | Tier) -> tuple[int | None, ...]:
    return _micros(of.input), _micros(of.output), _micros(of.cached_input), _micros(of.cache_write)


def _micros(amount: Decimal | None) -> int | None:
    return None if amount is None else int(amount * MICROS)

"""The price of a model and the cost of a channel, prepared once for a configuration: whole numbers, no floats.

Amounts are in micros (a millionth of the currency unit), prices of tokens in micros per million tokens. A charge is computed in
one pass and rounded up once, at its end.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Final

import msgspec

from gateway.base.amounts import MICROS
from gateway.chat.request import AUTO_TIER, DEFAULT_TIER, Body
from gateway.chat.usage import Usage
from gateway.config.model import Cost, Model, Tier

PER_TOKENS: Final = 1_000_000
"""How many tokens the price of a token is given for."""
ONE: Final = Fraction(1)
AS_INPUT: Final = -1
LARGEST_COST: Final = 10**15
"""Micros that a call can cost the operator; what an upstream reports beyond them is an error of it."""
_PARTS: Final = ("input", "output", "cached_input", "cache_write", "request", "unit")


class Price(msgspec.Struct, frozen=True):
    """The price of a model: micros per million tokens, and the ratio of the caller's group.

    `cached_input` and `cache_write`: of those tokens of the prompt that the upstream read from a cache or wrote to one; by default
    the same as `input`. `request`: micros for an answer. `tiers`: the prices of requests with more than `above` prompt tokens, in
    ascending order. `most_input` and `most_output`: the highest price of a token here and in the tiers below. `service_tiers`:
    the factors of the service tiers that have a price, and `service_tier` the one that this is the price of. `units`: the prices of
    pictures, seconds and characters, in micros a million of them, `unit` that of what a request is billed by.
    `factor` and `divisor` make micros of an amount, by the ratio.
    """

    input: int
    output: int
    ratio: Fraction = ONE
    cached_input: int = AS_INPUT
    cache_write: int = AS_INPUT
    request: int = 0
    above: int = 0
    tiers: tuple[Price, ...] = ()
    most_input: int = 0
    most_output: int = 0
    service_tiers: tuple[tuple[str, Fraction], ...] = ()
    service_tier: str = ""
    units: tuple[tuple[str, int], ...] = ()
    unit: int = 0
    factor: int = 0
    divisor: int = 0

    def __post_init__(self) -> None:
        cached = self.input if self.cached_input == AS_INPUT else self.cached_input
        written = self.input if self.cache_write == AS_INPUT else self.cache_write
        most = max(self.most_input, self.input, cached, written)
        settled = {"cached_input": cached, "cache_write": written, "most_input": most}
        settled |= {"factor": self.ratio.numerator, "divisor": PER_TOKENS * self.ratio.denominator}
        for name, value in {**settled, "most_output": max(self.most_output, self.output)}.items():
            msgspec.structs.force_setattr(self, name, value)

    def at(self, prompt_tokens: int) -> Price:
        """Return the price of a request with so many prompt tokens."""
        for tier in reversed(self.tiers):
            if prompt_tokens > tier.above:
                return tier
        return self

    def in_tier(self, name: str) -> Price:
        """Return the price in a service tier; the same for one that has no price of its own."""
        factor = dict(self.service_tiers).get(name)
        if factor is None:
            return self
        tiers = tuple(
            msgspec.structs.replace(tier, ratio=tier.ratio * factor, service_tier=name) for tier in self.tiers
        )
        return msgspec.structs.replace(self, ratio=self.ratio * factor, service_tier=name, tiers=tiers)

    def ordered(self, asked: str) -> Price:
        """Return what is held for a request that asks for a service tier: the dearest price that it can get."""
        names = dict(self.service_tiers) if asked == AUTO_TIER else (asked,)
        return max((self, *map(self.in_tier, names)), key=lambda price: price.ratio)

    def served(self, asked: str, told: str) -> Price:
        """Return the price of an answer to such a request. `told`: the tier that it names, empty for none.

        One that names no tier costs what was asked for, and never less than the default.
        """
        if told in (DEFAULT_TIER, *dict(self.service_tiers)):
            return self.in_tier(told)
        return self if asked == AUTO_TIER else self.ordered(asked)

    def by(self, body: Body) -> Price:
        """Return the price of a request that is billed by another unit than tokens: the dearest that it can get."""
        rates = {name[len(body.unit) + 1 :]: rate for name, rate in self.units if name.partition(" ")[0] == body.unit}
        parts = {part for name in rates for part in name.split()}
        variant = tuple(part if part in parts else "" for part in body.variant)  # another spelling may mean any
        named = {name: rate for name, rate in rates.items() if all(_may_be(part, variant) for part in name.split())}
        if named and all(part in variant for name in named for part in name.split()):
            rate = max((len(name.split()), rate) for name, rate in named.items())[1]
        else:
            rate = max((named or rates).values(), default=0)
        return Price(0, 0, self.ratio, request=self.request, units=self.units, unit=rate)

    def of(self, usage: Usage) -> int:
        """Return the cost of `usage` in micros, rounded up."""
        price = self.at(usage.tier_tokens) if self.tiers else self
        cached, written = usage.cached_tokens, usage.cache_write_tokens
        amount = (usage.prompt_tokens - cached - written) * price.input + usage.completion_tokens * price.output
        if cached or written:
            amount += cached * price.cached_input + written * price.cache_write
        if price.request:
            amount += usage.answers * price.request * PER_TOKENS
        if price.unit:
            amount += usage.units * price.unit
        return -(-amount * price.factor // price.divisor)

    def cost(self, prompt_tokens: int, completion_tokens: int) -> int:
        """Return the cost of tokens in micros, rounded up: none of them cached, and without the price of the request."""
        price = self.at(prompt_tokens)
        return -(-(prompt_tokens * price.input + completion_tokens * price.output) * price.factor // price.divisor)

    def most(self, prompt_tokens: int, completion_tokens: int, failed_tokens: int = 0, units: int = 0) -> int:
        """Return the most that a request can cost, in micros, if an attempt is answered and others were billed `failed_tokens`."""
        price = self.at(prompt_tokens) if self.tiers else self
        amount = (prompt_tokens + failed_tokens) * price.most_input + completion_tokens * price.most_output
        amount += price.request * PER_TOKENS + units * price.unit
        return -(-amount * price.factor // price.divisor)

    def record(self, usage: Usage) -> dict[str, object]:
        """Return the price of `usage` as it is stored in a usage record, from which a charge can be computed again.

        It has a part where that differs from `input`, `request` where there is an answer, and `above` or `service_tier` where it
        is a tier's.
        """
        price = self.at(usage.tier_tokens) if self.tiers else self
        terms: dict[str, object] = {"input": price.input, "output": price.output, "ratio": str(price.ratio)}
        if price.cached_input != price.input:
            terms["cached_input"] = price.cached_input
        if price.cache_write != price.input:
            terms["cache_write"] = price.cache_write
        if price.request and usage.answers:
            terms["request"] = price.request
        if price.unit:
            terms |= {"unit": price.unit, "units": usage.units}
        if price.above:
            terms["above"] = price.above
        if price.service_tier:
            terms["service_tier"] = price.service_tier
        return terms


def price_of(prices: Model | Cost, ratio: Fraction = ONE, model: Model | None = None) -> Price:
    """Return the prices of the file in micros. What is not given falls back to the input, a tier's to the model's own.

    `model`: the one that a cost is of, whose service tiers it has unless it gives its own.
    """
    base = Tier(1, prices.input or Decimal(0), prices.output or Decimal(0), prices.cached_input, prices.cache_write)
    request = _micros(prices.request or Decimal(0))
    tiers: list[Price] = []
    most_input = most_output = 0
    for tier in (base, *prices.tiers):
        price = Price(
            _rate(tier.input, base.input),
            _rate(tier.output, base.output),
            ratio,
            _rate(tier.cached_input, base.cached_input),
            _rate(tier.cache_write, base.cache_write),
            request,
            0 if tier is base else tier.above,
            (),
            most_input,
            most_output,
        )
        most_input, most_output = price.most_input, price.most_output
        tiers.append(price)
    given = model.service_tiers if model and prices.service_tiers is None else prices.service_tiers
    factors = tuple((name, Fraction(factor)) for name, factor in (given or {}).items())
    given_units = unit_prices(prices) if isinstance(prices, Model) else {}
    units = tuple(
        (name, _micros(each if name == "character" else each * PER_TOKENS)) for name, each in given_units.items()
    )
    return msgspec.structs.replace(tiers[0], tiers=tuple(tiers[1:]), service_tiers=factors, units=units)


def unit_prices(model: Model) -> dict[str, Decimal]:
    """Return the prices of a picture, by the quality and the size in its name, of a second, and of a million characters."""
    images = model.image if isinstance(model.image, dict) else {"": model.image}
    prices = {f"image {name}".strip(): price for name, price in images.items()}
    prices |= {"second": model.second, "character": model.character}
    return {name: price for name, price in prices.items() if price is not None}


def _may_be(part: str, variant: tuple[str, ...]) -> bool:
    """Return whether what is ordered may be of this quality or size."""
    quality, size = variant
    given = size if part[:1].isdigit() else quality
    return given in (part, "", AUTO_TIER)


def price_from(terms: dict[str, object]) -> Price:
    """Return the price that `Price.record` gave. A record without a part has the price of the input for it."""
    part = {name: terms[name] for name in _PARTS if name in terms}
    return Price(**part, ratio=Fraction(str(terms["ratio"])))  # type: ignore[arg-type]


def _rate(*given: Decimal | None) -> int:
    """Return the first price that is given, in micros."""
    return next((_micros(price) for price in given if price is not None), AS_INPUT)


def _micros(amount: Decimal) -> int:
    return int(amount * MICROS)

"""Checks of a configuration that is valid: probable mistakes in it, and its exposure.

Probable mistakes are names of models that no model has, a chain in which nothing charges, and imperfect certificate authorities.

The exposure is how far a balance can fall, computed before the first request. A request is charged at most the full price of its
body, of its output limit and of its failed attempts, and holds that of the attempts so far while it runs. So no balance falls
below minus its credit line, unless `max_hold` lets requests hold less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import ROUND_CEILING, Decimal
from difflib import get_close_matches
from typing import Final, Protocol, runtime_checkable

import msgspec

from gateway.base.amounts import MICROS
from gateway.chain.chain import Chain
from gateway.chat.fields import REMEDIES
from gateway.chat.prompt import (
    MAX_PARTS,
    MESSAGE_ALLOWANCE,
    REQUEST_ALLOWANCE,
    REWRITTEN_TIMES,
    TOOLS_ALLOWANCE,
    PartTokens,
)
from gateway.chat.request import AUTO_TIER, BodyRules
from gateway.chat.usage import BYTES_PER_TOKEN
from gateway.config.authorities import imperfections
from gateway.config.schema import Config
from gateway.domain.catalogue import Catalogue, matches
from gateway.domain.prices import Price
from gateway.operations.images import MOST_IMAGES

MOST_NAMES: Final = 20
"""Names of a list in a sentence."""

MIN_MESSAGE: Final = len('{"role":""},')
MIN_PART: Final = len('{"file":0},')


def mistakes(config: Config, chain: Chain) -> Iterator[str]:
    """Yield a sentence for each probable mistake."""
    for name, group in config.groups.items():
        for pattern in unknown_models(config, group.models):
            yield f"groups.{name}.models: {about_unknown_model(config, pattern)}"
    if "default" not in config.groups:
        yield "groups: there is no `default`, the group of accounts that are created without --group"
    free = all(model.free for model in config.models.values())
    if not free and not any(isinstance(entry.plugin, Holding) for entry in chain.entries):
        yield "plugins: nothing charges, so every request is free: add `- use: quota` above model-routing"
    for field in (name for name in config.port.allow_fields if name not in REMEDIES):
        if passed := [
            name for name, each in config.channels.items() if not (each.fields and each.fields.replaces(field))
        ]:
            text = "changes what upstreams bill, and nothing here has a price for that; `drop` it in channels that may bill it"
            yield f"port.allow_fields: `{field}` {text}: {listed(passed)}"
    for name, channel in config.channels.items():
        for imperfection in imperfections(channel.trust.context) if channel.trust else ():
            yield f"channels.{name}.ca_file: {imperfection}: trusted here, and refused by most clients from Python 3.13 on"


def unknown_models(config: Config, names: Iterable[str]) -> list[str]:
    """Return the names and patterns that match no model. `*` matches also where there is none yet."""
    return [
        name
        for name in names
        if name != "*" and not any(matches([name], model) for model in (*config.models, *config.aliases))
    ]


def about_unknown_model(config: Config, name: str) -> str:
    """Return a sentence about a name that matches no model, with the model that it resembles, or else with all."""
    what = f"no model matches `{name}`" if "*" in name else f"there is no model `{name}`"
    if close := get_close_matches(name, config.models, 1):
        return f"{what}; did you mean `{close[0]}`?"
    return f"{what}; known: {listed(config.models) or 'none yet'}"


def listed(names: Iterable[str]) -> str:
    """Return names with commas between them, of many the first ones."""
    shown = list(names)
    more = f" and {len(shown) - MOST_NAMES} more" if len(shown) > MOST_NAMES else ""
    return ", ".join(shown[:MOST_NAMES]) + more


@runtime_checkable
class Holding(Protocol):
    """A plugin that takes holds: the largest amount of one, and how many an account may have at once."""

    max_hold: Decimal | None
    max_holds: int


class Exposure(msgspec.Struct, frozen=True):
    """The bounds that apply to every account, in micros.

    `largest_cost`: the most that one request is charged, for the most expensive `model` and `group`. `overdraft`: how far
    below minus its credit line a balance can fall while the store is healthy. `failover`: how much further one failover
    of the store that loses acknowledged holds can take it; that amount is charged, not lost.
    """

    largest_cost: int
    model: str
    group: str
    overdraft: int
    failover: int

    def __str__(self) -> str:
        below = f" - {_units(self.overdraft)}" if self.overdraft else ""
        return (
            f"every balance stays >= -credit line{below}; one failover of the store may take it {_units(self.failover)} "
            f"further; the most expensive request costs {_units(self.largest_cost)} ({self.model}, group {self.group})"
        )

    @property
    def in_words(self) -> str:
        """The bound of every balance in one sentence, while the store is healthy."""
        return self.warning or "no balance falls below zero, or below its account's credit line"

    @property
    def warning(self) -> str:
        """Say how far a balance can fall below its credit line; empty where it cannot."""
        if not self.overdraft:
            return ""
        below = _units(self.overdraft)
        return f"a balance can fall {below} below its credit line: `max_hold` lets requests cost more than they hold"


def exposure_of(config: Config, chain: Chain) -> Exposure | None:
    """Return the bounds, or None if no plugin of the chain takes holds or every model is free."""
    holding = next((entry.plugin for entry in chain.entries if isinstance(entry.plugin, Holding)), None)
    catalogue = Catalogue(config)
    costs = [
        (_largest_cost(catalogue, config, model, price), model, group)
        for group, settings in config.groups.items()
        for model in config.models
        if catalogue.named_in(settings.models, model) and (price := catalogue.price(model, group)) is not None
    ]
    cost, model, group = max(costs, default=(0, "", ""))
    if holding is None or cost == 0:
        return None
    hold = cost if holding.max_hold is None else min(cost, int(holding.max_hold * MICROS))
    return Exposure(cost, model, group, holding.max_holds * (cost - hold), holding.max_holds * cost)


def max_prompt_tokens(size: int, parts: PartTokens) -> int:
    """Return for how many input tokens a body of `size` bytes is held at most."""
    text = REWRITTEN_TIMES * size + size // MIN_MESSAGE * MESSAGE_ALLOWANCE + REQUEST_ALLOWANCE + TOOLS_ALLOWANCE
    return text + min(size // MIN_PART, MAX_PARTS) * max(parts.image, parts.audio, parts.file) + parts.added


def _largest_cost(catalogue: Catalogue, config: Config, model: str, price: Price) -> int:
    rules, size = BodyRules(), config.port.max_body
    ceiling = max(rules.max_output_tokens, config.models[model].max_output_tokens)
    failed = (catalogue.attempts(model) - 1) * -(-size // BYTES_PER_TOKEN)
    by_tokens = price.ordered(AUTO_TIER).most(
        max_prompt_tokens(size, catalogue.part_tokens[model]), rules.max_n * ceiling, failed
    )
    of_a_unit = (Price(0, 0, price.ratio, unit=rate) for _, rate in price.units)
    return max((by_tokens, *(each.most(0, 0, units=max(size, MOST_IMAGES)) for each in of_a_unit)))


def _units(micros: int) -> str:
    return str((Decimal(micros) / MICROS).quantize(Decimal("0.01"), ROUND_CEILING))

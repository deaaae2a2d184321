"""The comparison of the configured prices with a catalogue: what would change, what needs a person.

An entry of the catalogue is matched with a configured model, or with one of its channels. The provider is known by the address of
a channel. Where it is, only its own entries are considered, first by the name that the model has there; else any entry with the
name. Several entries that say the same are one; others are for a person to choose from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Final

import msgspec

from gateway.base.errors import Misconfigured
from gateway.config.channel import Channel
from gateway.config.model import Cost, Model, Serving
from gateway.config.schema import Config
from gateway.tools.prices import catalogues
from gateway.tools.prices.catalogues import CatalogueEntry, PriceList, plain

SHOWN: Final = 6
"""Entries that a message names."""

PARTS: Final = ("input", "cached_input", "cache_write", "output")


class MatchedPrice(msgspec.Struct, frozen=True):
    """The price of a model, or of one of its channels: the entry of the catalogue and what it changes."""

    model: str
    channel: str
    key: str
    changes: list[PriceChange]


class Note(msgspec.Struct, frozen=True):
    """What a person must know of one model. `wrong`: the catalogue has a price for it that cannot be used."""

    model: str
    channel: str
    text: str
    wrong: bool = False


class Comparison(msgspec.Struct):
    """The result."""

    found: list[MatchedPrice] = []
    notes: list[Note] = []


def compare(
    config: Config, prices: PriceList, names: Iterable[str], chosen: Mapping[str, str], *, costs: bool
) -> Comparison:
    """Compare some models with a catalogue: what callers pay, or with `costs` what their channels cost."""
    matcher = Matcher(prices, config.channels, chosen)
    result = Comparison()
    for name in names:
        model = config.models[name]
        if costs:
            for serving in model.servings:
                _compare(name, serving.use, serving.cost, matcher.of_channel(name, serving), result)
        elif (now := prices_of(model)) is None:
            text = "it is free in the configuration, and stays so"
            if not model.free:
                text = "it is billed by units alone, which are not compared: set their prices by the provider's list"
            result.notes.append(Note(name, "", text))
        else:
            _compare(name, "", now, matcher.of_model(name, model), result)
    return result


def _compare(name: str, channel: str, now: Cost | None, match: Match, result: Comparison) -> None:
    """Add what is found to the result."""
    result.notes += [Note(name, channel, f"{match.key}: {text}") for text in match.notes]
    if match.cost is None:
        result.notes.append(Note(name, channel, match.wrong or match.missing, wrong=bool(match.wrong)))
    else:
        result.found.append(MatchedPrice(name, channel, match.key, changes(now, merged(now, match.cost))))


class Match(msgspec.Struct, frozen=True):
    """The price that was found, and under which key; or why there is none.

    `missing`: the catalogue has none. `wrong`: what it has is ambiguous or cannot be right.
    """

    cost: Cost | None = None
    key: str = ""
    notes: tuple[str, ...] = ()
    missing: str = ""
    wrong: str = ""


class Matcher:
    """Finds prices for the models of a configuration. `chosen`: the key that a person gave for a model."""

    def __init__(self, prices: PriceList, channels: Mapping[str, Channel], chosen: Mapping[str, str]) -> None:
        self._prices = prices
        self._channels = channels
        self._chosen = chosen

    def of_model(self, name: str, model: Model) -> Match:
        """Return what callers would pay for a model by the catalogue: what its channels cost."""
        if name in self._chosen:
            return self._by_key(self._chosen[name])
        found = [entry for serving in model.servings for entry in self._of_serving(name, serving)]
        if not found:
            found = self._prices.named(name)
        if not found:
            found = [
                entry for serving in model.servings if serving.model for entry in self._prices.named(serving.model)
            ]
        names = dict.fromkeys((name, *(serving.model for serving in model.servings if serving.model)))
        return _choose(found, names)

    def of_channel(self, name: str, serving: Serving) -> Match:
        """Return what a channel of a model costs by the catalogue. Its provider must be known."""
        if name in self._chosen:
            return self._by_key(self._chosen[name])
        address = self._channels[serving.use].base_url
        if not self._prices.providers(address):
            return Match(missing=f"no provider is known at the address of the channel `{serving.use}`")
        return _choose(self._of_serving(name, serving), dict.fromkeys((serving.model or name, name)))

    def _of_serving(self, name: str, serving: Serving) -> list[CatalogueEntry]:
        providers = self._prices.providers(self._channels[serving.use].base_url)
        found = self._prices.of_provider(providers, serving.model or name)
        return found or self._prices.of_provider(providers, name)

    def _by_key(self, key: str) -> Match:
        found = self._prices.with_key(key)
        if not found:
            near = sorted({entry.key for entry in self._prices.named(key)})[:SHOWN]
            hint = f"; like it: {', '.join(near)}" if near else "; see the keys in the file"
            raise Misconfigured(f"the catalogue has no `{key}`{hint}")
        return _choose(found, (key,))


def _choose(entries: Iterable[CatalogueEntry], names: Iterable[str]) -> Match:
    """Return the one price of some entries, those without a price left out."""
    priced: dict[str, tuple[Cost, tuple[str, ...]]] = {}
    unpriced, wrong = dict[str, str](), dict[str, str]()
    for entry in entries:
        try:
            read = catalogues.read(entry)
        except ValueError as error:
            wrong[entry.key] = str(error)
            continue
        if read.cost is None or read.free:
            unpriced[entry.key] = read.notes[0] if read.cost is None else "all its prices are 0 there"
        else:
            priced[entry.key] = read.cost, read.notes
    if not priced:
        if wrong:
            return Match(wrong=_listed(wrong))
        if unpriced:
            return Match(missing=_listed(unpriced))
        return Match(missing=f"the catalogue has no {' nor '.join(f'`{name}`' for name in names)}")
    if len({cost for cost, _ in priced.values()}) > 1:
        shown = [f"{key} ({_in_short(cost)})" for key, (cost, _) in list(priced.items())[:SHOWN]]
        more = f" and {len(priced) - SHOWN} more" if len(priced) > SHOWN else ""
        return Match(wrong=f"several prices: {', '.join(shown)}{more}")
    key, (cost, notes) = next(iter(priced.items()))
    return Match(cost, key, notes)


def _listed(entries: Mapping[str, str]) -> str:
    return "; ".join(f"{key}: {text}" for key, text in list(entries.items())[:SHOWN])


def _in_short(cost: Cost) -> str:
    return f"{plain(cost.input)}/{plain(cost.output)}" + ("" if not _has_more(cost) else " and more")


def _has_more(cost: Cost) -> bool:
    return any(part is not None for part in (cost.cached_input, cost.cache_write, cost.request)) or bool(cost.tiers)


class PriceChange(msgspec.Struct, frozen=True):
    """One price that would change: of requests with more than `above` prompt tokens, or of all where `above` is 0.

    `now` is what such tokens cost today, also where it is another price that they fall back to, which `given` tells; None where
    nothing is known.
    """

    price: str
    above: int
    now: Decimal | None
    becomes: Decimal
    given: bool

    @property
    def label(self) -> str:
        """Return the name of the price, for people."""
        return f"{self.price} above {self.above}" if self.above else self.price


def prices_of(model: Model) -> Cost | None:
    """Return the configured prices of a model, or None where it is free."""
    if model.input is None or model.output is None:
        return None
    return Cost(model.input, model.output, model.cached_input, model.cache_write, model.request, model.tiers)


def merged(now: Cost | None, listed: Cost) -> Cost:
    """Return the catalogue's prices, and the configured ones where the catalogue says nothing."""
    if now is None:
        return listed
    kept = {
        name: getattr(listed, name) if getattr(listed, name) is not None else getattr(now, name)
        for name in ("cached_input", "cache_write", "request")
    }
    return Cost(listed.input, listed.output, tiers=listed.tiers or now.tiers, **kept)


def changes(now: Cost | None, becomes: Cost) -> list[PriceChange]:
    """Return every price that differs. A price above a border is left out where it changes like the one below it."""
    found = list(_changes_above(0, now, becomes))
    before = {change.price: change for change in found}
    for above in sorted({tier.above for cost in (now, becomes) if cost is not None for tier in cost.tiers}):
        for change in _changes_above(above, now, becomes):
            below = before.get(change.price)
            if below is None or (below.now, below.becomes) != (change.now, change.becomes):
                found.append(change)
                before[change.price] = change
    was, request = (now.request or Decimal(0)) if now else None, becomes.request or Decimal(0)
    if was != request and (was is not None or request):
        found.append(PriceChange("request", 0, was, request, bool(now and now.request is not None)))
    return found


def _changes_above(above: int, now: Cost | None, becomes: Cost) -> Iterator[PriceChange]:
    for part in PARTS:
        price, given = rate(becomes, part, above)
        if now is None:
            if given:
                yield PriceChange(part, above, None, price, False)
            continue
        was, was_given = rate(now, part, above)
        if was != price:
            yield PriceChange(part, above, was, price, was_given)


def rate(cost: Cost, part: str, above: int) -> tuple[Decimal, bool]:
    """Return the price of a part of the tokens of a request with more than `above` prompt tokens, and whether it is given there.

    What a tier does not give is the price without a tier. Cached and written tokens without a price cost what input costs.
    """
    tier = next((tier for tier in reversed(cost.tiers) if tier.above <= above), None)
    own: Decimal | None = getattr(tier, part, None)
    if own is not None:
        return own, True
    base: Decimal | None = getattr(cost, part)
    if base is not None:
        return base, tier is None or tier.above != above
    return rate(cost, "input", above)[0], False

"""Which entry of a catalogue is the price of a configured model, or of one of its channels.

The provider is known by the address of a channel. Where it is, only its own entries are considered, first by the name that the
model has there; else any entry with the name. Several entries that say the same are one; others are for a person to choose from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from gateway.config.channel import Channel
from gateway.config.model import Cost, Model, Serving
from gateway.errors import Misconfigured
from gateway.tools import price_entry
from gateway.tools.price_entry import plain
from gateway.tools.price_list import Entry, PriceList

SHOWN: Final = 6
"""Entries that a message names."""


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

    def _of_serving(self, name: str, serving: Serving) -> list[Entry]:
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


def _choose(entries: Iterable[Entry], names: Iterable[str]) -> Match:
    """Return the one price of some entries, those without a price left out."""
    priced: dict[str, tuple[Cost, tuple[str, ...]]] = {}
    unpriced, wrong = dict[str, str](), dict[str, str]()
    for entry in entries:
        try:
            read = price_entry.read(entry)
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

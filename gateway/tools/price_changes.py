"""The difference between configured prices and those of a catalogue, and which of them rise too far."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Final

import msgspec

from gateway.config.model import Cost, Model

PARTS: Final = ("input", "cached_input", "cache_write", "output")


class Change(msgspec.Struct, frozen=True):
    """One price that would change: of requests with more than `above` prompt tokens, or of all where `above` is 0.

    `now` is what such tokens cost today, also where it is another price that they fall back to, which `given` tells; None where
    nothing is known.
    """

    price: str
    above: int
    now: Decimal | None
    becomes: Decimal
    given: bool

    def rises_beyond(self, factor: Decimal) -> bool:
        """Return whether the price becomes more than `factor` times what it is. From 0 every rise is beyond."""
        return self.now is not None and self.becomes > self.now * factor

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


def changes(now: Cost | None, becomes: Cost) -> list[Change]:
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
        found.append(Change("request", 0, was, request, bool(now and now.request is not None)))
    return found


def _changes_above(above: int, now: Cost | None, becomes: Cost) -> Iterator[Change]:
    for part in PARTS:
        price, given = rate(becomes, part, above)
        if now is None:
            if given:
                yield Change(part, above, None, price, False)
            continue
        was, was_given = rate(now, part, above)
        if was != price:
            yield Change(part, above, was, price, was_given)


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

"""The prices of one entry of a catalogue, as the configuration has them: per million tokens, with at most six decimals.

A price that cannot be right makes the whole entry unusable: the others beside it were written by the same hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

import msgspec

from gateway.config.model import Cost, Tier
from gateway.tools.price_list import Entry

MOST: Final = Decimal(10_000)
"""The highest price per million tokens that is believed."""
LEAST: Final = Decimal("0.0001")
"""The lowest one above 0."""
MOST_REQUEST: Final = Decimal(100)
MILLION: Final = Decimal(1_000_000)
MAX_BORDER: Final = 1_000_000_000

PER_TOKEN: Final = {
    "input_cost_per_token": "input",
    "output_cost_per_token": "output",
    "cache_read_input_token_cost": "cached_input",
    "cache_creation_input_token_cost": "cache_write",
}
PER_MILLION: Final = {"input": "input", "output": "output", "cache_read": "cached_input", "cache_write": "cache_write"}
ABOVE: Final = re.compile(r"(.+)_above_([0-9]{1,6})k_tokens")
CHAT: Final = ("chat", "completion", "responses")


class Priced(msgspec.Struct, frozen=True):
    """The prices of an entry, and what a person must know of them. `cost` is None where `notes` say why there are none."""

    cost: Cost | None
    notes: tuple[str, ...] = ()

    @property
    def free(self) -> bool:
        """Return whether nothing costs anything, which is also what catalogues say of what they do not know."""
        cost = self.cost
        return cost is not None and not (cost.input or cost.output or cost.request)


def read(entry: Entry) -> Priced:
    """Return the prices of an entry. Raises `ValueError` for a price that cannot be right; the text names it."""
    if entry.per_token:
        mode = entry.raw.get("mode", "chat")
        if mode not in CHAT:
            return Priced(None, (f"it is a price of {_short(mode)}, not of chat completions",))
        return _priced(*_per_token(entry.raw))
    cost = entry.raw.get("cost")
    if not isinstance(cost, dict):
        return Priced(None, ("it has no prices there",))
    return _priced(*_per_million(cost))


Rates = dict[str, Decimal]


def _per_token(raw: Mapping[str, Any]) -> tuple[Rates, dict[int, Rates], list[str]]:
    notes: list[str] = []
    tiers: dict[int, Rates] = {}
    for index, step in enumerate(_items(raw, "tiered_pricing")):
        border = _first_number(step, "range", f"tiered_pricing[{index}]")
        tiers[border] = _rates(step, PER_TOKEN, MILLION, notes, f"tiered_pricing[{index}].")
    base = tiers.pop(0, {}) | _rates(raw, PER_TOKEN, MILLION, notes)
    for name in raw:
        if (found := ABOVE.fullmatch(name)) and found[1] in PER_TOKEN:
            part = _rates({found[1]: raw[name]}, PER_TOKEN, MILLION, notes, f"{name}: ")
            tiers.setdefault(int(found[2]) * 1000, {}).update(part)
    if "cached_input" not in base and "input_cost_per_token_cache_hit" in raw:
        base |= _rates(raw, {"input_cost_per_token_cache_hit": "cached_input"}, MILLION, notes)
    if raw.get("input_cost_per_request") is not None:
        base["request"] = _rate(raw["input_cost_per_request"], "input_cost_per_request", Decimal(1), MOST_REQUEST)
    _note_reasoning(raw.get("output_cost_per_reasoning_token"), base, MILLION, notes)
    return base, tiers, notes


def _per_million(cost: Mapping[str, Any]) -> tuple[Rates, dict[int, Rates], list[str]]:
    notes: list[str] = []
    tiers: dict[int, Rates] = {}
    for index, step in enumerate(_items(cost, "tiers")):
        tier = step.get("tier")
        if not isinstance(tier, dict) or tier.get("type", "context") != "context":
            raise ValueError(f"tiers[{index}] is not by the size of the prompt")
        tiers[_border(tier.get("size"), f"tiers[{index}].tier.size")] = _rates(
            step, PER_MILLION, Decimal(1), notes, f"tiers[{index}]."
        )
    older = cost.get("context_over_200k")
    if not tiers and isinstance(older, dict):
        tiers[200_000] = _rates(older, PER_MILLION, Decimal(1), notes, "context_over_200k.")
    base = _rates(cost, PER_MILLION, Decimal(1), notes)
    _note_reasoning(cost.get("reasoning"), base, Decimal(1), notes)
    return base, tiers, notes


def _priced(base: Rates, tiers: dict[int, Rates], notes: list[str]) -> Priced:
    if missing := [name for name in ("input", "output") if name not in base]:
        return Priced(None, (f"it has no price of {' and '.join(missing)} there", *notes))
    kept = []
    for border, rates in sorted(tiers.items()):
        if border == 0:
            raise ValueError("a tier begins at 0 tokens and has other prices than those without a tier")
        own = _without_zeros(rates, notes, rates.get("input", base["input"]))
        if any(base.get(name) != price for name, price in own.items()):
            kept.append(Tier(above=border, **own))
    return Priced(Cost(**_without_zeros(base, notes, base["input"]), tiers=tuple(kept)), tuple(dict.fromkeys(notes)))


def _without_zeros(rates: Rates, notes: list[str], full: Decimal) -> Rates:
    """Leave out cached and written tokens at 0: catalogues mean that there is no price of their own, not that they are free."""
    given = dict(rates)
    for name in ("cached_input", "cache_write"):
        if full and given.get(name) == 0:
            del given[name]
            notes.append(f"{name} is 0 there and was left out, so that these tokens cost what input costs")
    return given


def _rates(
    raw: Mapping[str, Any], names: Mapping[str, str], factor: Decimal, notes: list[str], place: str = ""
) -> Rates:
    rates = {}
    for name, ours in names.items():
        if name not in raw:
            continue
        if raw[name] is None:
            notes.append(f"{place}{name} is null there and was left out")
        else:
            rates[ours] = _rate(raw[name], f"{place}{name}", factor)
    return rates


def _rate(value: object, name: str, factor: Decimal, most: Decimal = MOST) -> Decimal:
    """Return a price of the catalogue in ours. Raises `ValueError` for one that cannot be right."""
    if not isinstance(value, Decimal):
        raise ValueError(f"{name} is {_short(value)}, not a number")
    if not value.is_finite():
        raise ValueError(f"{name} is {value}, not a finite number")
    if value < 0:
        raise ValueError(f"{name} is negative: {_short(value)}")
    if value > most / factor:
        raise ValueError(f"{name} is {_short(value)}, which is more than {most} {_unit(factor, most)}")
    if value and value < LEAST / factor:
        raise ValueError(f"{name} is {_short(value)}, which is less than {LEAST} {_unit(factor, most)}")
    return round(value * factor, 6)


def _unit(factor: Decimal, most: Decimal) -> str:
    return "for a request" if most == MOST_REQUEST else "per million tokens"


def _note_reasoning(value: object, base: Rates, factor: Decimal, notes: list[str]) -> None:
    if value is None or "output" not in base:
        return
    reasoning = _rate(value, "the price of reasoning", factor)
    if reasoning != base["output"]:
        notes.append(
            f"reasoning costs {plain(reasoning)} there and other output {plain(base['output'])}: "
            "`output` is the price of both, so decide on one"
        )


def _items(raw: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
    value = raw.get(name)
    for index, item in enumerate(value if isinstance(value, list) else [] if value is None else [value]):
        if not isinstance(item, dict):
            raise ValueError(f"{name}[{index}] is {_short(item)}, not a mapping")
        yield item


def _first_number(step: Mapping[str, Any], name: str, place: str) -> int:
    value = step.get(name)
    return _border(value[0] if isinstance(value, list) and value else value, f"{place}.{name}")


def _border(value: object, name: str) -> int:
    if not isinstance(value, Decimal) or not value.is_finite() or not 0 <= value <= MAX_BORDER or value != int(value):
        raise ValueError(f"{name} is {_short(value)}, not a number of tokens")
    return int(value)


def plain(price: Decimal) -> str:
    """Return a price without an exponent and without needless zeros: `2.5`, `10`, `0.075`."""
    return f"{price.normalize():f}"


def _short(value: object) -> str:
    text = str(value) if isinstance(value, Decimal) else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."

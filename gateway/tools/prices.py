"""Comparison of the configured prices with a public catalogue: LiteLLM's `model_prices_and_context_window.json`.

An entry is found by its key: the name of the model or the one that it has at a channel, else with a provider before it, as in
`azure/gpt-4o`. Where several entries have different prices, a person chooses. Prices are per million tokens with at most six
decimals, and all arithmetic is decimal. Prices by the size of the prompt are not compared: a note names what has them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.base.errors import Misconfigured, cannot_use
from gateway.config.model import Cost, Model
from gateway.config.schema import Config

SHAPE: Final = "LiteLLM's model_prices_and_context_window.json"
SHOWN: Final = 6
"""Entries that a message names."""
MOST: Final = Decimal(10_000)
"""The highest price per million tokens that is believed."""
LEAST: Final = Decimal("0.0001")
"""The lowest one above 0."""
MILLION: Final = Decimal(1_000_000)
NAMES: Final = {
    "input": "input_cost_per_token",
    "output": "output_cost_per_token",
    "cached_input": "cache_read_input_token_cost",
    "cache_write": "cache_creation_input_token_cost",
}
"""What the catalogue calls each price."""
BY_TOKENS: Final = ("chat", "completion", "responses", "embedding", "rerank")

Rates = dict[str, Decimal]
Entry = Mapping[str, Any]


class PriceChange(msgspec.Struct, frozen=True):
    """A price that differs, of a model or of one of its channels. `now` is None where nothing is known.

    Cached and written tokens without a price cost what input costs, in the configuration as in the catalogue.
    """

    model: str
    channel: str
    price: str
    now: Decimal | None
    becomes: Decimal
    entry: str


class Note(msgspec.Struct, frozen=True):
    """What a person must know of one model. `wrong`: the catalogue has a price for it that cannot be used."""

    model: str
    channel: str
    text: str
    wrong: bool = False


class Comparison(msgspec.Struct):
    """The result. `same`: how many prices agree with an entry in all parts."""

    changes: list[PriceChange] = []
    notes: list[Note] = []
    same: int = 0


class PriceList:
    """The entries of a file, found by their key or by the last part of it. Case does not count."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self.entries = entries
        self._named, self._ending = (defaultdict[str, list[str]](list) for _ in range(2))
        for key in entries:
            self._named[key.casefold()].append(key)
            self._ending[key.casefold().rpartition("/")[2]].append(key)

    def with_key(self, key: str) -> list[str]:
        """Return the key of an entry as it is written; several where they differ only in case."""
        return self._named.get(key.casefold(), [])

    def like(self, name: str) -> list[str]:
        """Return the keys of the entries for a model: the one with this name, else those of any provider."""
        return self.with_key(name) or self._ending.get(name.casefold().rpartition("/")[2], [])


def load(path: Path) -> PriceList:
    """Read a catalogue. Raises `Misconfigured`."""
    try:
        data = json.loads(path.read_text("utf-8-sig"), parse_float=_number, parse_int=_number, parse_constant=_number)
    except OSError as error:
        raise cannot_use(str(path), error, cure=f"name a readable file: {SHAPE}") from None
    except json.JSONDecodeError as error:
        raise Misconfigured(f"{path}:{error.lineno}: not valid JSON: {error.msg}; download it again") from None
    except (UnicodeDecodeError, RecursionError):
        data = None
    entries = {
        key: value
        for key, value in (data.items() if isinstance(data, dict) else ())
        if isinstance(value, dict) and "litellm_provider" in value and key != "sample_spec"
    }
    if not entries:
        raise Misconfigured(f"{path}: not a catalogue of prices; give {SHAPE}")
    return PriceList(entries)


def _number(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent beyond all bounds
        return Decimal("NaN")


def compare(
    config: Config, catalogue: PriceList, names: Iterable[str], chosen: Mapping[str, str], *, costs: bool
) -> Comparison:
    """Compare some models with a catalogue: what callers pay, or with `costs` what their channels cost.

    `chosen`: the key that a person gave for a model. Raises `Misconfigured` for one that there is not.
    """
    result = Comparison()
    for name in names:
        model = config.models[name]
        if costs:
            for serving in model.servings:
                keys = _keys(catalogue, chosen.get(name), [serving.model or name, name])
                _compare(catalogue, name, serving.use, serving.cost, keys, result)
        elif model.input is None or model.output is None:
            text = "it is free in the configuration, and stays so"
            if not model.free:
                text = "it is billed by units alone, which are not compared: set their prices by the provider's list"
            result.notes.append(Note(name, "", text))
        else:
            keys = _keys(catalogue, chosen.get(name), [name, *(each.model for each in model.servings if each.model)])
            _compare(catalogue, name, "", model, keys, result)
    return result


def _keys(catalogue: PriceList, chosen: str | None, names: list[str]) -> list[str]:
    if chosen is None:
        return next((found for name in names if (found := catalogue.like(name))), [])
    if not (found := catalogue.with_key(chosen)):
        near = sorted(catalogue.like(chosen))[:SHOWN]
        hint = f"; like it: {', '.join(near)}" if near else "; see the keys in the file"
        raise Misconfigured(f"the catalogue has no `{chosen}`{hint}")
    return found


def _compare(
    catalogue: PriceList, name: str, channel: str, now: Model | Cost | None, keys: list[str], result: Comparison
) -> None:
    """Add to the result what differs from the one price of some entries, those without a price left out."""
    priced, missing, wrong = dict[str, Rates](), list[str](), list[str]()
    for key in keys:
        try:
            rates = rates_of(catalogue.entries[key])
        except LookupError as error:
            missing.append(f"{key}: {error.args[0]}")
        except ValueError as error:
            wrong.append(f"{key}: {error}")
        else:
            priced[key] = rates
    if len({tuple(sorted(rates.items())) for rates in priced.values()}) > 1:
        shown = [f"{key} ({plain(rates['input'])}/{plain(rates['output'])})" for key, rates in priced.items()]
        more = f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN else ""
        wrong, priced = [f"several prices: {', '.join(shown[:SHOWN])}{more}; choose one with --as"], {}
    if not priced:
        text = "; ".join((wrong or missing)[:SHOWN]) or f"the catalogue has no `{name}`"
        result.notes.append(Note(name, channel, text, bool(wrong)))
        return
    key, rates = next(iter(priced.items()))
    if any("_above_" in field for field in catalogue.entries[key]) or catalogue.entries[key].get("tiered_pricing"):
        result.notes.append(
            Note(name, channel, f"{key}: it has prices by the size of the prompt: compare them by hand")
        )
    changes = []
    for price, becomes in rates.items():
        own: Decimal | None = getattr(now, price, None)
        was = own if own is not None else getattr(now, "input", None)
        if was != becomes:
            changes.append(PriceChange(name, channel, price, was, becomes, key))
    result.changes += changes
    result.same += not changes


def rates_of(entry: Entry) -> Rates:
    """Return the prices of an entry. Raises `LookupError` where it has none, and `ValueError` for one that cannot be right.

    Cached and written tokens at 0 are left out: catalogues mean that there is no price of their own, not that they are free.
    """
    if (mode := entry.get("mode", "chat")) not in BY_TOKENS:
        raise LookupError(f"it is a price of {str(mode)[:40]}, not of tokens")
    rates = {price: _rate(entry[name], name) for price, name in NAMES.items() if entry.get(name) is not None}
    if not rates.keys() >= {"input", "output"}:
        raise LookupError("it has no price of input and output there")
    if not (rates["input"] or rates["output"]):
        raise LookupError("all its prices are 0 there")
    return {price: rate for price, rate in rates.items() if rate or price in ("input", "output")}


def _rate(value: object, name: str) -> Decimal:
    if not isinstance(value, Decimal) or not value.is_finite():
        raise ValueError(f"{name} is {str(value)[:40]}, not a number")
    if value and not LEAST / MILLION <= value <= MOST / MILLION:
        raise ValueError(f"{name} is {str(value)[:40]}, which cannot be right")
    return round(value * MILLION, 6)


def plain(price: Decimal) -> str:
    """Return a price without an exponent and without needless zeros: `2.5`, `10`, `0.075`."""
    return f"{price.normalize():f}"

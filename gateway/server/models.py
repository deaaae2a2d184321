"""The models that a caller may use, as `GET /v1/models` lists them: OpenAI's fields, and OpenRouter's of prices and ceilings.

Prices are what this caller pays: currency units for a token or a request, with the ratio of its group, as exact decimals in
strings. What the file does not tell is left out. What channels cost, and which there are, is never shown.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

import msgspec

from gateway.amounts import MICROS
from gateway.catalogue import Catalogue
from gateway.errors import model_not_found
from gateway.facts import Caller
from gateway.prices import PER_TOKENS, Price

PLACES: Final = 18
"""Decimals of a price: six of an amount, six of a token in a million, and six of the ratio."""


class ModelList:
    """The models of one configuration. Each is encoded once for a group."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._encoded: dict[tuple[str, str], msgspec.Raw] = {}

    def all(self, caller: Caller | None) -> bytes:
        """Return all models that the caller may use, as JSON. None stands for a gateway without accounts."""
        group = "" if caller is None else caller.group
        data = [self._model(name, group) for name in self._names(caller)]
        return msgspec.json.encode({"object": "list", "data": data})

    def one(self, name: str, caller: Caller | None) -> bytes:
        """Return one of these models. Raises `Refused` for any other name."""
        if name not in self._names(caller):
            raise model_not_found()
        return bytes(self._model(name, "" if caller is None else caller.group))

    def _names(self, caller: Caller | None) -> list[str]:
        return list(self._catalogue.models) if caller is None else self._catalogue.visible(caller)

    def _model(self, name: str, group: str) -> msgspec.Raw:
        encoded = self._encoded.get((name, group))
        if encoded is None:
            encoded = msgspec.Raw(msgspec.json.encode(self._fields(name, group)))
            self._encoded[name, group] = encoded
        return encoded

    def _fields(self, name: str, group: str) -> dict[str, object]:
        model, price = self._catalogue.models[name], self._catalogue.price(name, group)
        fields: dict[str, object] = {"id": name, "object": "model", "created": 0, "owned_by": "sluicegate"}
        limits = {"max_completion_tokens": model.max_output_tokens}
        if model.context_length is not None:
            fields["context_length"] = limits["context_length"] = model.context_length
        fields |= {"max_output_tokens": model.max_output_tokens, "top_provider": limits}
        if price is not None:
            fields["pricing"] = _pricing(price)
        return fields


def _pricing(price: Price) -> dict[str, object]:
    """Return a price as OpenRouter writes it. A tier begins at `min_prompt_tokens`, that many included."""
    pricing: dict[str, object] = {**_rates(price), "request": _text(price.request * PER_TOKENS, price.ratio)}
    if price.tiers:
        pricing["overrides"] = [{"min_prompt_tokens": tier.above + 1, **_rates(tier)} for tier in price.tiers]
    return pricing


def _rates(price: Price) -> dict[str, str]:
    rates = {
        "prompt": price.input,
        "completion": price.output,
        "input_cache_read": price.cached_input,
        "input_cache_write": price.cache_write,
    }
    return {name: _text(rate, price.ratio) for name, rate in rates.items()}


def _text(rate: int, ratio: Fraction) -> str:
    """Return micros for a million tokens as currency units for one, with all decimals and without an exponent."""
    amount = Fraction(rate, PER_TOKENS * MICROS) * ratio
    whole, part = divmod(int(amount * 10**PLACES), 10**PLACES)
    return f"{whole}.{part:0{PLACES}}".rstrip("0").rstrip(".")

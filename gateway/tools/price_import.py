"""The comparison of the configured prices with a catalogue: what would change, what rises too far, what needs a person."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal

import msgspec

from gateway.config.model import Cost, Model, Serving
from gateway.config.schema import Config
from gateway.tools.price_changes import Change, changes, merged, prices_of
from gateway.tools.price_list import PriceList
from gateway.tools.price_match import Match, Matcher


class Found(msgspec.Struct, frozen=True):
    """The price of a model, or of one of its channels: the entry of the catalogue and what it changes."""

    model: str
    channel: str
    key: str
    changes: list[Change]


class Note(msgspec.Struct, frozen=True):
    """What a person must know of one model. `wrong`: the catalogue has a price for it that cannot be used."""

    model: str
    channel: str
    text: str
    wrong: bool = False


class Comparison(msgspec.Struct):
    """The result. `models` are the entries that change, as they would be."""

    found: list[Found] = []
    notes: list[Note] = []
    models: dict[str, Model] = {}

    def rises(self, most: Decimal) -> list[tuple[Found, Change]]:
        """Return the prices that become more than `most` times what they are."""
        return [(found, change) for found in self.found for change in found.changes if change.rises_beyond(most)]


def compare(
    config: Config, prices: PriceList, names: Iterable[str], chosen: Mapping[str, str], *, costs: bool
) -> Comparison:
    """Compare some models with a catalogue: what callers pay, or with `costs` what their channels cost."""
    matcher = Matcher(prices, config.channels, chosen)
    result = Comparison()
    for name in names:
        model = config.models[name]
        compared = _with_costs(name, model, matcher, result) if costs else _with_prices(name, model, matcher, result)
        if compared != model:
            result.models[name] = compared
    return result


def _with_prices(name: str, model: Model, matcher: Matcher, result: Comparison) -> Model:
    now = prices_of(model)
    if now is None:
        result.notes.append(Note(name, "", "it is free in the configuration, and stays so"))
        return model
    becomes = _compared(name, "", now, matcher.of_model(name, model), result)
    if becomes is None:
        return model
    fields = {field: getattr(becomes, field) for field in Cost.__struct_fields__}
    return msgspec.structs.replace(model, **fields)


def _with_costs(name: str, model: Model, matcher: Matcher, result: Comparison) -> Model:
    channels: list[str | Serving] = []
    for item, serving in zip(model.channels, model.servings, strict=True):
        becomes = _compared(name, serving.use, serving.cost, matcher.of_channel(name, serving), result)
        channels.append(item if becomes is None else msgspec.structs.replace(serving, cost=becomes))
    return msgspec.structs.replace(model, channels=channels)


def _compared(name: str, channel: str, now: Cost | None, match: Match, result: Comparison) -> Cost | None:
    """Add what was found to the result. Return the prices as they would be, or None where nothing changes."""
    result.notes += [Note(name, channel, f"{match.key}: {text}") for text in match.notes]
    if match.cost is None:
        result.notes.append(Note(name, channel, match.wrong or match.missing, wrong=bool(match.wrong)))
        return None
    becomes = merged(now, match.cost)
    found = changes(now, becomes)
    result.found.append(Found(name, channel, match.key, found))
    return becomes if found else None

"""Public catalogue of prices: the prices of models at their providers, read from a file and checked.

It is LiteLLM's `model_prices_and_context_window.json`, with prices per token. A catalogue is checked before it is used, since
people write it by hand. All arithmetic is decimal.

The prices of one entry are as the configuration has them: per million tokens, with at most six decimals. A price that cannot be
right makes the whole entry unusable: the others beside it were written by the same hand.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from gateway.base.errors import Misconfigured, cannot_use
from gateway.config.model import Cost, Tier

SHAPE: Final = "LiteLLM's model_prices_and_context_window.json"

PROVIDERS: Final[Mapping[str, tuple[str, ...]]] = {
    "api.openai.com": ("openai",),
    "openai.azure.com": ("azure",),
    "services.ai.azure.com": ("azure", "azureai"),
    "generativelanguage.googleapis.com": ("gemini",),
    "aiplatform.googleapis.com": ("vertexai",),
    "api.anthropic.com": ("anthropic",),
    "api.x.ai": ("xai",),
    "api.groq.com": ("groq",),
    "api.mistral.ai": ("mistral",),
    "api.deepseek.com": ("deepseek",),
    "openrouter.ai": ("openrouter",),
    "api.together.xyz": ("togetherai",),
    "api.together.ai": ("togetherai",),
    "api.moonshot.ai": ("moonshot",),
    "api.moonshot.cn": ("moonshot",),
    "api.fireworks.ai": ("fireworksai",),
    "api.perplexity.ai": ("perplexity",),
    "api.cerebras.ai": ("cerebras",),
    "api.deepinfra.com": ("deepinfra",),
    "dashscope-intl.aliyuncs.com": ("dashscope",),
    "dashscope.aliyuncs.com": ("dashscope",),
}
"""What the catalogue calls the provider behind a host, or behind the hosts below it: letters and digits alone."""

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
ABOVE: Final = re.compile(r"(.+)_above_([0-9]{1,6})k_tokens")
BY_TOKENS: Final = ("chat", "completion", "responses", "embedding", "rerank")

Rates = dict[str, Decimal]


class CatalogueEntry(msgspec.Struct, frozen=True):
    """What a catalogue says of one model of one provider. `key` is unique; `raw` is as it is in the file."""

    key: str
    provider: str
    model: str
    raw: Mapping[str, Any]


class PriceList:
    """The entries of a catalogue, found by their key, by their model, or by the last part of its name. Case does not count."""

    def __init__(self, entries: list[CatalogueEntry]) -> None:
        self.entries = entries
        self._keys, self._models, self._last_parts = (defaultdict[str, list[CatalogueEntry]](list) for _ in range(3))
        for entry in entries:
            self._keys[entry.key.casefold()].append(entry)
            self._models[entry.model.casefold()].append(entry)
            self._last_parts[entry.model.casefold().rpartition("/")[2]].append(entry)

    def providers(self, base_url: str) -> frozenset[str]:
        """Return what the catalogue calls the provider at an address; empty where that is not known."""
        host = (urlsplit(base_url).hostname or "").casefold()
        return frozenset(
            name
            for known, names in PROVIDERS.items()
            if host == known or host.endswith(f".{known}") or host.endswith(f"-{known}")
            for name in names
        )

    def with_key(self, key: str) -> list[CatalogueEntry]:
        """Return the entry with a key; several where they differ only in case."""
        return self._keys.get(key.casefold(), [])

    def of_provider(self, providers: frozenset[str], model: str) -> list[CatalogueEntry]:
        """Return the entries of some providers for a model."""
        return [entry for entry in self._models.get(model.casefold(), []) if entry.provider in providers]

    def named(self, model: str) -> list[CatalogueEntry]:
        """Return the entries with this key; where there are none, those of any provider for this model."""
        name = model.casefold()
        return self._keys.get(name) or self._models.get(name) or self._last_parts.get(name.rpartition("/")[2]) or []


def load(path: Path) -> PriceList:
    """Read a catalogue. Raises `Misconfigured`."""
    data = _parse(path)
    if not isinstance(data, dict):
        raise Misconfigured(f"{path}: not a catalogue of prices; give {SHAPE}")
    sections = {str(name): value for name, value in data.items() if isinstance(value, dict)}
    if any("litellm_provider" in value for value in sections.values()):
        return _price_list(sections)
    raise Misconfigured(f"{path}: not a catalogue of prices; give {SHAPE}")


def _parse(path: Path) -> Any:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise cannot_use(str(path), error, cure=f"name a readable file: {SHAPE}") from None
    try:
        return json.loads(raw.decode("utf-8-sig"), parse_float=_number, parse_int=_number, parse_constant=_number)
    except UnicodeDecodeError:
        raise Misconfigured(f"{path}: not UTF-8; download it again") from None
    except json.JSONDecodeError as error:
        raise Misconfigured(f"{path}:{error.lineno}: not valid JSON: {error.msg}; download it again") from None
    except RecursionError:
        raise Misconfigured(f"{path}: nested too deeply; give {SHAPE}") from None


def _number(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent beyond all bounds
        return Decimal("NaN")


def _price_list(sections: Mapping[str, dict[str, Any]]) -> PriceList:
    entries = []
    for key, raw in sections.items():
        provider = raw.get("litellm_provider")
        if key == "sample_spec" or not isinstance(provider, str):
            continue
        name = (
            "vertexai" if provider.startswith("vertex_ai") else _plain(provider)
        )  # it is `vertex_ai-llama_models` too
        first, separator, rest = key.partition("/")
        prefixed = bool(separator) and name.startswith(_plain(first))
        entries.append(CatalogueEntry(key, _plain(first) if prefixed else name, rest if prefixed else key, raw))
    return PriceList(entries)


def _plain(provider: str) -> str:
    """Return a provider's name without what the catalogue writes in several ways: `together_ai`, `togetherai`."""
    return re.sub("[^a-z0-9]", "", provider.casefold())


class Priced(msgspec.Struct, frozen=True):
    """The prices of an entry, and what a person must know of them. `cost` is None where `notes` say why there are none."""

    cost: Cost | None
    notes: tuple[str, ...] = ()

    @property
    def free(self) -> bool:
        """Return whether nothing costs anything, which is also what catalogues say of what they do not know."""
        cost = self.cost
        return cost is not None and not (cost.input or cost.output or cost.request)


def read(entry: CatalogueEntry) -> Priced:
    """Return the prices of an entry. Raises `ValueError` for a price that cannot be right; the text names it."""
    raw = entry.raw
    mode = raw.get("mode", "chat")
    if mode not in BY_TOKENS:
        return Priced(None, (f"it is a price of {_short(mode)}, not of tokens",))
    notes: list[str] = []
    tiers: dict[int, Rates] = {}
    for index, step in enumerate(_items(raw, "tiered_pricing")):
        border = _first_number(step, "range", f"tiered_pricing[{index}]")
        tiers[border] = _rates(step, PER_TOKEN, notes, f"tiered_pricing[{index}].")
    base = tiers.pop(0, {}) | _rates(raw, PER_TOKEN, notes)
    for name in raw:
        if (found := ABOVE.fullmatch(name)) and found[1] in PER_TOKEN:
            part = _rates({found[1]: raw[name]}, PER_TOKEN, notes, f"{name}: ")
            tiers.setdefault(int(found[2]) * 1000, {}).update(part)
    if "cached_input" not in base and "input_cost_per_token_cache_hit" in raw:
        base |= _rates(raw, {"input_cost_per_token_cache_hit": "cached_input"}, notes)
    if raw.get("input_cost_per_request") is not None:
        base["request"] = _rate(raw["input_cost_per_request"], "input_cost_per_request", Decimal(1), MOST_REQUEST)
    return _priced(base, tiers, notes)


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
    listed = Cost(**_without_zeros(base, notes, base["input"]), tiers=tuple(kept), service_tiers=None)
    return Priced(listed, tuple(dict.fromkeys(notes)))


def _without_zeros(rates: Rates, notes: list[str], full: Decimal) -> Rates:
    """Leave out cached and written tokens at 0: catalogues mean that there is no price of their own, not that they are free."""
    given = dict(rates)
    for name in ("cached_input", "cache_write"):
        if full and given.get(name) == 0:
            del given[name]
            notes.append(f"{name} is 0 there and was left out, so that these tokens cost what input costs")
    return given


def _rates(raw: Mapping[str, Any], names: Mapping[str, str], notes: list[str], place: str = "") -> Rates:
    rates = {}
    for name, ours in names.items():
        if name not in raw:
            continue
        if raw[name] is None:
            notes.append(f"{place}{name} is null there and was left out")
        else:
            rates[ours] = _rate(raw[name], f"{place}{name}")
    return rates


def _rate(value: object, name: str, factor: Decimal = MILLION, most: Decimal = MOST) -> Decimal:
    """Return a price of the catalogue in ours. Raises `ValueError` for one that cannot be right."""
    if not isinstance(value, Decimal):
        raise ValueError(f"{name} is {_short(value)}, not a number")
    if not value.is_finite():
        raise ValueError(f"{name} is {value}, not a finite number")
    if value < 0:
        raise ValueError(f"{name} is negative: {_short(value)}")
    if value and not LEAST / factor <= value <= most / factor:
        raise ValueError(f"{name} is {_short(value)}, which cannot be right")
    return round(value * factor, 6)


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

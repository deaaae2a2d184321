"""A public catalogue of prices: what models cost at their providers, read from a file.

Two shapes are known: LiteLLM's `model_prices_and_context_window.json`, with prices per token, and the `api.json` of models.dev,
with prices per million tokens. What a catalogue says is checked before it is used, since people write it by hand. All
arithmetic is decimal.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from gateway.errors import Misconfigured, cannot_use

MAX_FILE_BYTES: Final = 64 * 1024 * 1024
SHAPES: Final = "LiteLLM's model_prices_and_context_window.json or the api.json of models.dev"

PROVIDERS: Final[Mapping[str, tuple[str, ...]]] = {
    "api.openai.com": ("openai",),
    "openai.azure.com": ("azure",),
    "services.ai.azure.com": ("azure", "azureai"),
    "generativelanguage.googleapis.com": ("gemini", "google"),
    "aiplatform.googleapis.com": ("vertexai", "googlevertex"),
    "api.anthropic.com": ("anthropic",),
    "api.x.ai": ("xai",),
    "api.groq.com": ("groq",),
    "api.mistral.ai": ("mistral",),
    "api.deepseek.com": ("deepseek",),
    "openrouter.ai": ("openrouter",),
    "api.together.xyz": ("togetherai",),
    "api.together.ai": ("togetherai",),
    "api.moonshot.ai": ("moonshot", "moonshotai"),
    "api.moonshot.cn": ("moonshot", "moonshotaicn"),
    "api.fireworks.ai": ("fireworksai",),
    "api.perplexity.ai": ("perplexity",),
    "api.cerebras.ai": ("cerebras",),
    "api.deepinfra.com": ("deepinfra",),
    "dashscope-intl.aliyuncs.com": ("dashscope", "alibaba"),
    "dashscope.aliyuncs.com": ("dashscope", "alibabacn"),
}
"""What the catalogues call the provider behind a host, or behind the hosts below it: letters and digits alone."""


class Entry(msgspec.Struct, frozen=True):
    """What a catalogue says of one model of one provider. `key` is unique; `raw` is as it is in the file."""

    key: str
    provider: str
    model: str
    raw: Mapping[str, Any]
    per_token: bool
    """The prices are per token, by LiteLLM's names."""


class PriceList:
    """The entries of a catalogue, found by their key, by their model, or by the last part of its name. Case does not count."""

    def __init__(self, entries: list[Entry], hosts: Mapping[str, tuple[str, ...]]) -> None:
        self.entries = entries
        self._hosts = hosts
        self._keys, self._models, self._last_parts = (defaultdict[str, list[Entry]](list) for _ in range(3))
        for entry in entries:
            self._keys[entry.key.casefold()].append(entry)
            self._models[entry.model.casefold()].append(entry)
            self._last_parts[entry.model.casefold().rpartition("/")[2]].append(entry)

    def providers(self, base_url: str) -> frozenset[str]:
        """Return what the catalogue may call the provider at an address; empty where that is not known."""
        host = (urlsplit(base_url).hostname or "").casefold()
        return frozenset(
            name
            for known, names in (*PROVIDERS.items(), *self._hosts.items())
            if host == known or host.endswith(f".{known}") or host.endswith(f"-{known}")
            for name in names
        )

    def with_key(self, key: str) -> list[Entry]:
        """Return the entry with a key; several where they differ only in case."""
        return self._keys.get(key.casefold(), [])

    def of_provider(self, providers: frozenset[str], model: str) -> list[Entry]:
        """Return the entries of some providers for a model."""
        return [entry for entry in self._models.get(model.casefold(), []) if entry.provider in providers]

    def named(self, model: str) -> list[Entry]:
        """Return the entries with this key; where there are none, those of any provider for this model."""
        name = model.casefold()
        return self._keys.get(name) or self._models.get(name) or self._last_parts.get(name.rpartition("/")[2]) or []


def load(path: Path) -> PriceList:
    """Read a catalogue. Raises `Misconfigured`."""
    data = _parse(path)
    if not isinstance(data, dict):
        raise Misconfigured(f"{path}: not a catalogue of prices; give {SHAPES}")
    sections = {str(name): value for name, value in data.items() if isinstance(value, dict)}
    if any(isinstance(value.get("models"), dict) for value in sections.values()):
        return _models_dev(sections)
    if any("litellm_provider" in value for value in sections.values()):
        return _litellm(sections)
    raise Misconfigured(f"{path}: not a catalogue of prices; give {SHAPES}")


def _parse(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise cannot_use(str(path), error, cure=f"name a readable file: {SHAPES}") from None
    if len(raw) > MAX_FILE_BYTES:
        raise Misconfigured(f"{path}: larger than 64 MiB; give {SHAPES}")
    try:
        return json.loads(raw.decode("utf-8-sig"), parse_float=_number, parse_int=_number, parse_constant=_number)
    except UnicodeDecodeError:
        raise Misconfigured(f"{path}: not UTF-8; download it again") from None
    except json.JSONDecodeError as error:
        raise Misconfigured(f"{path}:{error.lineno}: not valid JSON: {error.msg}; download it again") from None
    except RecursionError:
        raise Misconfigured(f"{path}: nested too deeply; give {SHAPES}") from None


def _number(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent beyond all bounds
        return Decimal("NaN")


def _litellm(sections: Mapping[str, dict[str, Any]]) -> PriceList:
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
        entries.append(Entry(key, _plain(first) if prefixed else name, rest if prefixed else key, raw, True))
    return PriceList(entries, {})


def _models_dev(sections: Mapping[str, dict[str, Any]]) -> PriceList:
    entries, hosts = [], dict[str, tuple[str, ...]]()
    for provider, section in sections.items():
        address, models = section.get("api"), section.get("models")
        if isinstance(address, str) and (host := _host(address)):
            hosts[host] = (*hosts.get(host, ()), _plain(provider))
        for model, raw in models.items() if isinstance(models, dict) else ():
            if isinstance(raw, dict):
                entries.append(Entry(f"{provider}/{model}", _plain(provider), str(model), raw, False))
    return PriceList(entries, hosts)


def _host(address: str) -> str:
    try:
        return (urlsplit(address).hostname or "").casefold()
    except ValueError:
        return ""


def _plain(provider: str) -> str:
    """Return a provider's name without what the catalogues write differently: `together_ai`, `togetherai`."""
    return re.sub("[^a-z0-9]", "", provider.casefold())

"""Operations on what the file rules, where nothing is changed: the configuration, models, plugins and user groups as they are
served. The file itself, with its comments and secrets, is shown nowhere.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Literal

import msgspec

from gateway.admin.actions.action import Page, Scope, action
from gateway.admin.actions.local import LocalClient
from gateway.base.amounts import MICROS
from gateway.base.ids import utc
from gateway.chain import loading
from gateway.chain.plugin import Plugin
from gateway.config.decode import describe_type
from gateway.config.model import Cost, Model, Tier
from gateway.config.schema import Group, PluginEntry
from gateway.domain.catalogue import Catalogue
from gateway.domain.facts import NO_BUDGETS, NO_LIMITS, AccountLimits, Budgets
from gateway.domain.prices import unit_prices
from gateway.usage.gateways import gateways_of


class Refusal(msgspec.Struct, frozen=True):
    """Why the last change of the file was not taken up, and when."""

    reason: str
    at: str


class Served(msgspec.Struct, frozen=True):
    """The configuration that is served: its file, and where days begin, for budgets and for dates without a time.

    `generation` counts the configurations that the gateway has served since its start; null where no running gateway is asked.
    `refused` is null where the file is served as it is. `differing`: other gateways of the store by their names, with what
    they serve otherwise, such as `models`.
    """

    path: str
    time_zone: str
    generation: int | None
    refused: Refusal | None
    differing: dict[str, list[str]]


@action("GET", "/config", Scope.READ, name="config.read")
async def read_config(client: LocalClient) -> Served:
    """Return which configuration is served, and the last change of its file that was refused."""
    running, document = client.running, client.loaded.document
    refused = None
    if running is not None and running.refused is not None:
        refused = Refusal(document.hide(running.refused.reason), utc(round(running.refused.at * 1000)))
    generation = None if running is None else running.generation
    found = await gateways_of(client.store.client)
    own = next((each for each in found if each.installation == client.store.usage.installation), None)
    differing = {each.name: settings for each in found if (settings := each.differs(own))}
    return Served(str(document.path), client.config.time_zone, generation, refused, differing)


class Rates(msgspec.Struct, frozen=True):
    """Prices of tokens, in micros for a million of them; null for what is not given, so that the one of `input` counts."""

    input_micros: int | None
    output_micros: int | None
    cached_input_micros: int | None
    cache_write_micros: int | None


class TierRates(Rates, frozen=True, kw_only=True):
    """The prices of a request with more than `above` prompt tokens; null for those that are as below."""

    above: int


class Prices(Rates, frozen=True, kw_only=True):
    """All prices of a model, or costs of a channel. `request_micros`: for each request that was answered.

    `units`: the prices of a picture, also by its quality and size, of a second, and of a million characters, as in the file.
    """

    request_micros: int | None
    tiers: list[TierRates]
    units: dict[str, str] = {}


class ServedBy(msgspec.Struct, frozen=True):
    """A channel of a model, with the model's name there. A smaller `priority` is tried first. `cost`: null where not known."""

    channel: str
    model: str
    priority: int
    weight: int
    cost: Prices | None


class ModelServed(msgspec.Struct, frozen=True):
    """A model that callers may request. `price`: null for a free one. `groups`: those that may use it, with the ratio they pay.

    `aliases`: its other names. `fallback`: the models that serve where none of its channels is left.
    """

    name: str
    price: Prices | None
    max_output_tokens: int
    context_length: int | None
    channels: list[ServedBy]
    groups: dict[str, str]
    aliases: list[str]
    fallback: list[str]


@action("GET", "/models", Scope.READ, name="models.list")
async def list_models(client: LocalClient) -> Page[ModelServed]:
    """List the models with their prices, costs and channels, in the order of the file."""
    catalogue = Catalogue(client.config)
    return Page(
        [_described_model(catalogue, name, model, client.config.aliases) for name, model in catalogue.models.items()]
    )


def _described_model(catalogue: Catalogue, name: str, model: Model, aliases: Mapping[str, str]) -> ModelServed:
    return ModelServed(
        name,
        None if model.free else _prices(model),
        model.max_output_tokens,
        model.context_length,
        [
            ServedBy(
                each.use,
                each.model or name,
                each.priority,
                each.weight,
                None if each.cost is None else _prices(each.cost),
            )
            for each in model.servings
        ],
        {group: f"{each.ratio}" for group, each in catalogue.groups.items() if catalogue.serves(group, name)},
        [alias for alias, model_name in aliases.items() if model_name == name],
        list(model.fallback),
    )


def _prices(of: Model | Cost) -> Prices:
    tiers = [TierRates(*_rates(tier), above=tier.above) for tier in of.tiers]
    units = unit_prices(of) if isinstance(of, Model) else {}
    return Prices(
        *_rates(of), request_micros=_micros(of.request), tiers=tiers, units={name: f"{units[name]}" for name in units}
    )


def _rates(of: Model | Cost | Tier) -> tuple[int | None, ...]:
    return _micros(of.input), _micros(of.output), _micros(of.cached_input), _micros(of.cache_write)


def _micros(amount: Decimal | None) -> int | None:
    return None if amount is None else int(amount * MICROS)


class Setting(msgspec.Struct, frozen=True):
    """A setting that a plugin has. `default` is JSON; null where the setting must be given."""

    name: str
    type: str
    default: str | None


class PluginServed(msgspec.Struct, frozen=True):
    """A plugin of the chain. `about`: its first sentence. What it needs other plugins to know, and what it provides, are names of
    facts. `settings` are all that it has; what the file gives them is in the file. `error`: why nothing is known of it."""

    name: str
    use: str
    enabled: bool
    on_error: Literal["refuse", "ignore"]
    about: str = ""
    needs: list[str] = []
    provides: list[str] = []
    settings: list[Setting] = []
    error: str = ""


@action("GET", "/plugins", Scope.READ, name="plugins.list")
async def list_plugins(client: LocalClient) -> Page[PluginServed]:
    """List the plugins of the chain in its order, also those that are switched off."""
    return Page(await asyncio.to_thread(lambda: list(map(_described_plugin, client.config.plugins))))


def describe(name: str, kind: type[Plugin]) -> dict[str, Any]:
    """Return what an operator needs to know about a plugin. A setting without a default must be given."""
    about = (inspect.getdoc(kind) or "").partition("\n\n")[0]
    return {
        "name": name,
        "about": " ".join(about.split()),
        "needs": [fact.__name__ for fact in kind.requires],
        "provides": [fact.__name__ for fact in kind.provides],
        "settings": [
            {"name": field.encode_name, "type": describe_type(field.type), **_default(field)}
            for field in msgspec.structs.fields(kind)
        ],
    }


def _described_plugin(entry: PluginEntry) -> PluginServed:
    try:
        about = describe(entry.use, loading.plugin_class(entry.use))
    except ValueError as error:
        return PluginServed(entry.label, entry.use, entry.enabled, entry.on_error, error=str(error))
    settings = [Setting(each["name"], each["type"], _as_json(each)) for each in about["settings"]]
    said = about["about"], about["needs"], about["provides"], settings
    return PluginServed(entry.label, entry.use, entry.enabled, entry.on_error, *said)


def _as_json(setting: dict[str, Any]) -> str | None:
    return msgspec.json.encode(setting["default"], enc_hook=str).decode() if "default" in setting else None


def _default(field: msgspec.structs.FieldInfo) -> dict[str, object]:
    if field.required:
        return {}
    return {"default": field.default if field.default is not msgspec.NODEFAULT else field.default_factory()}


class GroupServed(msgspec.Struct, frozen=True):
    """A user group: what its accounts may use, and the ratio of their prices.

    `models` and `channels` are names and `*` patterns, as the file has them; `served` are the models that they come to. `budgets`
    and `limits` are for each account that has none of its own.
    """

    name: str
    enabled: bool
    ratio: str
    models: list[str]
    channels: list[str]
    served: list[str]
    budgets: Budgets
    limits: AccountLimits


@action("GET", "/groups", Scope.READ, name="groups.list")
async def list_groups(client: LocalClient) -> Page[GroupServed]:
    """List the user groups, in the order of the file."""
    catalogue = Catalogue(client.config)
    return Page([_described_group(catalogue, name, group) for name, group in catalogue.groups.items()])


def _described_group(catalogue: Catalogue, name: str, group: Group) -> GroupServed:
    return GroupServed(
        name,
        group.enabled,
        f"{group.ratio}",
        group.models,
        group.channels,
        [model for model in catalogue.models if catalogue.serves(name, model)],
        catalogue.budgets(name, NO_BUDGETS),
        catalogue.limits(name, NO_LIMITS),
    )

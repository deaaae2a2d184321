"""The operation on plugins: the chain that is served. The file rules: nothing is changed here."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, Literal

import msgspec

from gateway import loading
from gateway.config.decode import describe_type
from gateway.config.schema import Loaded, PluginEntry
from gateway.management.desk import LocalDesk
from gateway.management.operation import Scope, operation
from gateway.management.page import Page
from gateway.plugin import Plugin


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


@operation("GET", "/plugins", Scope.READ)
async def list_(desk: LocalDesk) -> Page[PluginServed]:
    """List the plugins of the chain in its order, also those that are switched off."""
    return Page(await asyncio.to_thread(_of_chain, desk.loaded))


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


def _of_chain(loaded: Loaded) -> list[PluginServed]:
    return [_described(entry) for entry in loaded.config.plugins]


def _described(entry: PluginEntry) -> PluginServed:
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

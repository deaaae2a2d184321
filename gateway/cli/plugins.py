"""`gateway plugins`: the installed plugins, with their settings, types, defaults and facts."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from gateway import loading
from gateway.cli.common import JsonOption, print_json
from gateway.config.decode import describe_type

if TYPE_CHECKING:
    from gateway.plugin import Plugin


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(plugins)


def plugins(as_json: JsonOption = False) -> None:
    """List the installed plugins: what each does, needs and provides, and its settings.

    Example: `gateway plugins --json`
    """
    for name in sorted(loading.installed()):
        described: dict[str, Any]
        try:
            described = describe(name, loading.plugin_class(name))
        except ValueError as error:
            described = {"name": name, "error": str(error)}
        if as_json:
            print_json(described)
        else:
            print(_in_words(described))


def describe(name: str, kind: type[Plugin]) -> dict[str, object]:
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


def _in_words(described: dict[str, Any]) -> str:
    lines = [f"{described['name']}: {described.get('about') or described.get('error')}"]
    for key in ("needs", "provides"):
        if names := described.get(key):
            lines.append(f"  {key} {', '.join(names)}")
    for setting in described.get("settings", ()):
        default = (
            msgspec.json.encode(setting["default"], enc_hook=str).decode() if "default" in setting else "must be given"
        )
        lines.append(f"  {setting['name']}: {setting['type']} ({default})")
    return "\n".join(lines) + "\n"


def _default(field: msgspec.structs.FieldInfo) -> dict[str, object]:
    if field.required:
        return {}
    return {"default": field.default if field.default is not msgspec.NODEFAULT else field.default_factory()}

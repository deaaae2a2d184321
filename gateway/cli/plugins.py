"""`gateway plugins`: what is installed, with settings, types, defaults, facts and the first lines of the docstrings."""

from __future__ import annotations

import inspect

import msgspec
import typer

from gateway import loading
from gateway.cli.common import JsonOption, console, print_json
from gateway.plugin import Plugin


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(plugins)


def plugins(as_json: JsonOption = False) -> None:
    """List the installed plugins: settings, what each needs and provides.

    Example: `gateway plugins --json`
    """
    for name in sorted(loading.installed()):
        try:
            described = describe(name, loading.plugin_class(name))
        except ValueError as error:
            described = {"name": name, "error": str(error)}
        if as_json:
            print_json(described)
        else:
            console().print(_for_people(described))


def describe(name: str, kind: type[Plugin]) -> dict[str, object]:
    """What an operator needs to know of a plugin."""
    return {
        "name": name,
        "about": (inspect.getdoc(kind) or "").partition("\n")[0],
        "needs": [fact.__name__ for fact in kind.requires],
        "provides": [fact.__name__ for fact in kind.provides],
        "settings": [
            {"name": field.encode_name, "type": _type_name(field.type), "default": _default(field)}
            for field in msgspec.structs.fields(kind)
        ],
    }


def _for_people(described: dict[str, object]) -> str:
    lines = [f"{described['name']}: {described.get('about') or described.get('error')}"]
    for key in ("needs", "provides"):
        names = described.get(key)
        if isinstance(names, list) and names:
            lines.append(f"  {key} {', '.join(names)}")
    settings = described.get("settings")
    for setting in settings if isinstance(settings, list) else ():
        lines.append(f"  {setting['name']}: {setting['type']} = {setting['default']}")
    return "\n".join(lines) + "\n"


def _type_name(kind: object) -> str:
    return (
        kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind).replace("typing.", "")
    )


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default is not msgspec.NODEFAULT:
        return "none" if field.default is None else str(field.default)
    if field.default_factory is not msgspec.NODEFAULT:
        return str(field.default_factory())
    return "(required)"

"""`gateway plugins`: the installed plugins, with their settings, types, defaults and facts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import typer

from gateway.admin.actions.served import describe
from gateway.chain import loading
from gateway.cli.common import JsonOption, print_json

if TYPE_CHECKING:
    pass


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

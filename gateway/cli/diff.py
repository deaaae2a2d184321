"""`gateway diff`: the changes that a new configuration file would make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from gateway import loading
from gateway.cli.common import ConfigOption, JsonOption, console, found, print_json
from gateway.config.relative import folder_of
from gateway.config.schema import Config, load
from gateway.runtime.reload import needs_restart


class Change(msgspec.Struct, frozen=True):
    """One difference. `takes`: whether a reload applies it, or only a restart."""

    place: str
    text: str
    takes: str = "reload"


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(diff)


def diff(
    new: Annotated[Path, typer.Argument(metavar="FILE", help="The new file, which would replace the present one.")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a new file would change, and which changes need a restart.

    The new file is checked first.

    Example: `gateway diff new.yaml --config gateway.yaml`
    """
    present = found(config)
    before = load(present).config
    loaded = load(new, folder=folder_of(present))
    loading.build(loaded)
    differences = list(changes(before, loaded.config))
    for change in differences:
        if as_json:
            print_json(change)
        else:
            restart = "" if change.takes == "reload" else "  (needs a restart)"
            console().print(f"{change.place}: {change.text}{restart}")
    if not differences and not as_json:
        console().print("nothing would change")


def changes(before: Config, after: Config) -> Iterator[Change]:
    """Yield every difference between two configurations. Values that may be secret are left out."""
    for name in needs_restart(before, after):
        yield Change(name, _in_words(name, getattr(before, name), getattr(after, name)), "restart")
    if before.time_zone != after.time_zone:
        yield Change("time_zone", _in_words("time_zone", before.time_zone, after.time_zone))
    if before.alerts != after.alerts:
        yield Change("alerts", "changes")
    for section in ("channels", "models", "groups"):
        yield from _entries(section, getattr(before, section), getattr(after, section))
    old = {entry.label: entry for entry in before.plugins if entry.enabled}
    new = {entry.label: entry for entry in after.plugins if entry.enabled}
    yield from _entries("plugins", old, new)
    stay = [label for label in old if label in new]
    if stay != [label for label in new if label in old]:
        yield Change("plugins", f"the order becomes {', '.join(new)}")


def _entries(section: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    for name in old.keys() - new.keys():
        yield Change(f"{section}.{name}", "is removed")
    for name, entry in new.items():
        if name not in old:
            yield Change(f"{section}.{name}", "is added")
        else:
            yield from _fields(f"{section}.{name}", old[name], entry)


def _fields(place: str, old: msgspec.Struct, new: msgspec.Struct) -> Iterator[Change]:
    for field in msgspec.structs.fields(new):
        was, becomes = getattr(old, field.name), getattr(new, field.name)
        here = f"{place}.{field.encode_name}"
        if isinstance(was, msgspec.Struct) and isinstance(becomes, msgspec.Struct):
            yield from _fields(here, was, becomes)
        elif was != becomes:
            yield Change(here, _in_words(field.name, was, becomes))


def _in_words(name: str, was: object, becomes: object) -> str:
    if name in ("redis", "with_") or name.startswith("api_key"):
        return "changes"
    return f"{_short(was)} becomes {_short(becomes)}"


def _short(value: object) -> str:
    text = str(msgspec.to_builtins(value)) if not isinstance(value, str) else value
    return text if len(text) <= 60 else f"{text[:57]}..."

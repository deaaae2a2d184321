"""`gateway diff`: the changes that a new configuration file would make."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from gateway.admin.actions.served import SECRET
from gateway.base.errors import GatewayError
from gateway.chain import loading
from gateway.cli.common import ConfigOption, JsonOption, found, print_json
from gateway.cli.locked_out import locked_out, may_lock_out, named
from gateway.config.channel import Fixed
from gateway.config.decode import Section
from gateway.config.document import folder_of
from gateway.config.schema import Config, load
from gateway.runtime.reload import needs_restart

LONGEST: Final = 60
"""Characters of a value that is shown."""


class ConfigChange(msgspec.Struct, frozen=True):
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

    The new file is checked first. Accounts and tokens that could use no model any more are counted, if the store answers.

    Example: `gateway diff new.yaml --config gateway.yaml`
    """
    present = found(config)
    before = load(present)
    loaded = load(new, folder=folder_of(present))
    loading.build(loaded)
    differences = [
        msgspec.structs.replace(change, text=before.document.hide(loaded.document.hide(change.text)))
        for change in (*changes(before.config, loaded.config), *_lockouts(before.config, loaded.config))
    ]
    for change in differences:
        if as_json:
            print_json(change)
        else:
            restart = "" if change.takes == "reload" else "  (needs a restart)"
            print(f"{change.place}: {change.text}{restart}")
    if not differences and not as_json:
        print("nothing would change")


def changes(before: Config, after: Config) -> Iterator[ConfigChange]:
    """Yield every difference between two configurations. Values that may be secret are left out."""
    restarts = needs_restart(before, after)
    for name in restarts:
        yield from _field(name, name, before, after, "restart")
    if "port" not in restarts:
        yield from _field("port.trusted_proxies", "trusted_proxies", before.port, after.port)
    if before.time_zone != after.time_zone:
        yield from _field("time_zone", "time_zone", before, after)
    yield from _field("alerts", "alerts", before, after)
    for section in ("channels", "models", "groups"):
        yield from _entries(section, getattr(before, section), getattr(after, section))
    old = {entry.label: entry for entry in before.plugins if entry.enabled}
    new = {entry.label: entry for entry in after.plugins if entry.enabled}
    yield from _entries("plugins", old, new)
    stay = [label for label in old if label in new]
    if stay != [label for label in new if label in old]:
        yield ConfigChange("plugins", f"the order becomes {', '.join(new)}")


def _entries(section: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[ConfigChange]:
    for name in old.keys() - new.keys():
        yield ConfigChange(f"{section}.{name}", "is removed")
    for name, entry in new.items():
        if name not in old:
            yield ConfigChange(f"{section}.{name}", "is added")
        else:
            yield from _fields(f"{section}.{name}", old[name], entry)


def _fields(place: str, old: Section, new: Section, takes: str = "reload") -> Iterator[ConfigChange]:
    for field in msgspec.structs.fields(new):
        yield from _field(f"{place}.{field.encode_name}", field.name, old, new, takes)


def _field(place: str, name: str, old: Section, new: Section, takes: str = "reload") -> Iterator[ConfigChange]:
    was, becomes = getattr(old, name), getattr(new, name)
    if isinstance(was, Section) and isinstance(becomes, Section):
        yield from _fields(place, was, becomes, takes)
    elif isinstance(was, Fixed) and isinstance(becomes, Fixed):
        yield from _fixed(place, was, becomes, takes)
    elif isinstance(was, dict) and isinstance(becomes, dict):
        yield from _settings(place, was, becomes, takes)
    elif was is None and isinstance(becomes, Section):
        yield ConfigChange(place, "is added", takes)
    elif becomes is None and isinstance(was, Section):
        yield ConfigChange(place, "is removed", takes)
    elif was != becomes:
        yield ConfigChange(place, "changes" if name in new.hidden else _values(was, becomes), takes)


def _settings(place: str, old: Mapping[str, Any], new: Mapping[str, Any], takes: str) -> Iterator[ConfigChange]:
    """Yield the differences between a plugin's settings. Only numbers and switches are shown: a text may be a secret."""
    for key in {**old, **new}:
        was, becomes = old.get(key), new.get(key)
        if isinstance(was, dict) and isinstance(becomes, dict):
            yield from _settings(f"{place}.{key}", was, becomes, takes)
        elif key not in new:
            yield ConfigChange(f"{place}.{key}", "is removed", takes)
        elif key not in old or was != becomes:
            open_ = not SECRET.search(key) and all(isinstance(value, int | float | None) for value in (was, becomes))
            text = "changes" if key in old else "is added"
            if open_:
                text = _values(was, becomes) if key in old else f"is set to {_short(becomes)}"
            yield ConfigChange(f"{place}.{key}", text, takes)


def _lockouts(before: Config, after: Config) -> Iterator[ConfigChange]:
    """Yield whom the change locks out, or that this is not known."""
    if not may_lock_out(before, after):
        return
    try:
        found = asyncio.run(locked_out(before, after))
    except GatewayError as error:
        yield ConfigChange("accounts", f"those that could use no model any more are not counted: {error}")
        return
    for group, ids in sorted(found.by_group.items()):
        yield ConfigChange(f"groups.{group}", f"{len(ids)} accounts in it would be refused with 403: {named(ids)}")
    if found.accounts:
        yield ConfigChange("accounts", f"{len(found.accounts)} could use no model any more: {named(found.accounts)}")
    if found.tokens:
        yield ConfigChange("tokens", f"{len(found.tokens)} could use no model any more: {named(found.tokens)}")


def _values(was: object, becomes: object) -> str:
    """Return what changes: of long lists, what is added and what is removed."""
    old, new = _short(was), _short(becomes)
    if isinstance(was, list | tuple) and isinstance(becomes, list | tuple) and len(old) + len(new) > LONGEST:
        added = [item for item in becomes if item not in was]
        removed = [item for item in was if item not in becomes]
        texts = [f"adds {_short(added)}" if added else "", f"removes {_short(removed)}" if removed else ""]
        return "; ".join(filter(None, texts)) or "its order changes"
    return f"{_short(was)} becomes {_short(becomes)}"


def _fixed(place: str, old: Fixed[Any], new: Fixed[Any], takes: str) -> Iterator[ConfigChange]:
    """Yield the names that differ: their values may be secret."""
    for name in dict.fromkeys((*old, *new)):
        if name not in new:
            yield ConfigChange(f"{place}.{name}", "is removed", takes)
        elif name not in old:
            yield ConfigChange(f"{place}.{name}", "is added", takes)
        elif Fixed({name: old[name]}) != Fixed({name: new[name]}):
            yield ConfigChange(f"{place}.{name}", "changes", takes)


def _short(value: object) -> str:
    text = (
        value
        if isinstance(value, str)
        else repr(value)
        if isinstance(value, Section)
        else str(msgspec.to_builtins(list(value) if isinstance(value, tuple) else value))
    )
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."

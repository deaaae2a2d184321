"""`use:` to a class, `with:` to an instance of it, the list to a chain. Nothing is started here."""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import EntryPoint, entry_points

from gateway.chain import Chain, Step
from gateway.config import Loaded, convert
from gateway.errors import Misconfigured
from gateway.plugin import Plugin

ENTRY_POINTS = "gateway.plugins"


def installed() -> dict[str, EntryPoint]:
    """The plugins that may be named shortly: what installed packages offer, the shipped five among them."""
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}


def plugin_class(use: str) -> type[Plugin]:
    """The class that `use` names: an installed name or `package.module:Class`. Raises `ValueError` with the cure."""
    if ":" not in use:
        offered = installed()
        if use not in offered:
            raise ValueError(
                f"there is no plugin `{use}`; installed: {', '.join(sorted(offered))}; or name module:Class"
            )
        use = offered[use].value
    module_name, _, class_name = use.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except ModuleNotFoundError as error:
        raise ValueError(f"cannot import `{error.name}`: put it beside the YAML file or on PYTHONPATH") from None
    except AttributeError:
        raise ValueError(f"`{module_name}` has no `{class_name}`") from None
    except Exception as error:
        raise ValueError(f"importing `{module_name}` failed: {type(error).__name__}: {error}") from None
    if not (isinstance(found, type) and issubclass(found, Plugin)):
        raise ValueError(f"`{use}` is not a gateway.Plugin")
    return found


def build(loaded: Loaded, *, generation: int = 1) -> Chain:
    """The chain of a configuration. Raises `Misconfigured` with the place in the file."""
    folder = str(loaded.document.path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    steps = []
    for index, entry in enumerate(loaded.config.plugins):
        if not entry.enabled:
            continue
        try:
            kind = plugin_class(entry.use)
        except ValueError as error:
            raise loaded.document.wrong(("plugins", index, "use"), str(error)) from None
        plugin = convert(loaded.document, ("plugins", index, "with"), entry.with_, kind)
        steps.append(Step(entry.label, plugin, entry.on_error))
    try:
        return Chain(steps, generation=generation)
    except Misconfigured as error:
        raise loaded.document.wrong(("plugins",), str(error)) from None

"""The chain of a configuration: `use:` names a class, `with:` makes an instance of it. Nothing is started here."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import EntryPoint, entry_points

from gateway.base.errors import Misconfigured
from gateway.base.log import log
from gateway.chain.chain import Chain
from gateway.chain.entry import Entry, api_of, describe_error, wrong_facts, wrong_hooks
from gateway.chain.plugin import PLUGIN_API, Plugin
from gateway.config.channel import auth_of
from gateway.config.decode import WrongSetting, convert
from gateway.config.schema import Loaded

ENTRY_POINTS = "gateway.plugins"
_found: dict[str, EntryPoint] = {}
"""The plugins with a short name, as last read. A reload need not read them again: a changed one needs a restart in any case."""


def installed() -> dict[str, EntryPoint]:
    """Return the plugins with short names of all installed packages, the shipped ones among them."""
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}


def plugin_class(use: str) -> type[Plugin]:
    """Return the class that `use` names, a short name or `package.module:Class`. Raises `ValueError` with the cure."""
    module_name, separator, class_name = use.partition(":")
    if not separator:
        if use not in _found:
            _found.update(installed())
        if use not in _found:
            known = ", ".join(sorted(_found)) or "none; install the package first"
            raise ValueError(f"there is no plugin `{use}`; installed: {known}; or name module:Class")
        module_name, class_name = _found[use].module, _found[use].attr
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if (
            error.name == module_name and not separator
        ):  # it is installed, so that something else has the name of its package
            hiding = getattr(sys.modules.get(module_name.partition(".")[0]), "__file__", None) or "another package"
            raise ValueError(
                f"cannot import `{error.name}`: `{hiding}` hides its package; give that another name"
            ) from None
        raise ValueError(f"cannot import `{error.name}`: put it beside the YAML file or on PYTHONPATH") from None
    except BaseException as error:
        raise ValueError(f"importing `{module_name}` failed: {describe_error(error)}") from None
    found = getattr(module, class_name, None)
    if found is None:
        raise ValueError(f"`{module_name}` has no `{class_name}`: name a class of it")
    if not (isinstance(found, type) and issubclass(found, Plugin)):
        raise ValueError(f"`{use}` is no plugin: derive it from gateway.Plugin")
    if (made_for := api_of(found)) not in (None, PLUGIN_API):
        cure = f"install a version of it for API {PLUGIN_API}, or a gateway with API {made_for}"
        raise ValueError(f"`{use}` is made for API {made_for} of plugins, and this gateway has {PLUGIN_API}: {cure}")
    return found


Note = Callable[[Callable[[str], Misconfigured], str], None]
"""Called before each plugin is imported, with the function that makes an error about it, and its name."""


def import_plugins(loaded: Loaded) -> None:
    """Import the modules of a configuration's plugins, so that processes that are forked later need not. Log a failure."""
    _find_beside(loaded)
    for entry in loaded.config.plugins:
        if entry.enabled:
            try:
                plugin_class(entry.use)
            except ValueError as error:
                log.warning("plugin_not_imported", plugin=entry.label, reason=str(error))


def _find_beside(loaded: Loaded) -> None:
    folder = str(loaded.document.path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)


def build(loaded: Loaded, *, generation: int = 1, note: Note = lambda wrong, name: None) -> Chain:
    """Return the chain of a configuration. Raises `Misconfigured` with the place in the file."""
    document = loaded.document
    _find_beside(loaded)
    entries = []
    for index, entry in enumerate(loaded.config.plugins):
        if entry.enabled:
            place = ("plugins", index)
            note(partial(document.wrong, place), entry.label)
            try:
                kind = plugin_class(entry.use)
                if wrong := [*wrong_hooks(kind), *wrong_facts(kind)]:
                    raise ValueError("; ".join(wrong))
            except ValueError as error:
                raise document.wrong((*place, "use"), str(error)) from None
            try:
                plugin = convert(document, (*place, "with"), entry.with_, kind)
            except Misconfigured:
                raise
            except BaseException as error:
                text = f"making `{entry.use}` failed: {describe_error(error)}"
                raise document.wrong((*place, "use"), text) from None
            entries.append(Entry(entry.label, plugin, entry.on_error, partial(document.wrong, place)))
    if not entries:
        raise document.wrong(("plugins",), "no plugin is enabled; begin with the list in config/gateway.yaml")
    chain = Chain(entries, generation=generation)
    _check_dialects(loaded, chain)
    return chain


def _check_dialects(loaded: Loaded, chain: Chain) -> None:
    for name, channel in loaded.config.channels.items():
        if channel.dialect is None:
            continue
        place = ("channels", name)
        if channel.dialect not in chain.dialects:
            known = ", ".join(chain.dialects) or "none yet"
            cure = "add the plugin that has it to `plugins`, as in `- use: anthropic`"
            text = f"no plugin provides the dialect `{channel.dialect}`; known: {known}; {cure}"
            raise loaded.document.wrong((*place, "dialect"), text)
        try:
            channel.check_auth(channel.auth_way(auth_of(chain.dialects[channel.dialect].auth)))
        except WrongSetting as error:
            raise loaded.document.wrong((*place, *error.key_path), str(error)) from None

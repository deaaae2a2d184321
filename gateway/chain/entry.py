"""An entry of the list `plugins`: the hooks of its class, and the description of its failures.

A class is read for the hooks that it defines, and for whether each is written as the gateway calls it. Exceptions of plugins are
contained, except a cancellation, and are described with the plugin, the hook, the file and the line.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from traceback import walk_tb
from types import CodeType, FrameType
from typing import Final, Literal

from gateway.base.errors import Misconfigured
from gateway.base.log import log, place_of
from gateway.chain.plugin import Plugin
from gateway.chain.services import Services
from gateway.domain.exchange import Exchange

_NAME: Final = "_name_in_chain"
"""Where a plugin keeps the name of its entry, so that an exception of any of its hooks can name it."""

HOOKS: Final = tuple(name for name, value in vars(Plugin).items() if inspect.isfunction(value) and name[0] != "_")

REQUEST_HOOKS: Final = ("on_request", "request_step", "prepare")
END_HOOKS: Final = ("on_end", "end_step", "prepare")
TWO_FORMS: Final = (("on_request", "request_step"), ("on_end", "end_step"))
"""Hooks of which a plugin defines one: the one that waits, or the one that plans a step."""

PLUGIN_ERRORS: Final = (Exception, SystemExit)
"""Exceptions of a plugin that do not end the process. `SystemExit` is among them: else `sys.exit()` would end the worker."""


def name_of(plugin: Plugin) -> str:
    """Return the name of a plugin in the chain, or of its class where it is in none."""
    return str(vars(plugin).get(_NAME, type(plugin).__name__))


class Entry:
    """A plugin and its place in the list.

    `wrong` makes an error about this entry; for an entry of a file it names the place there.
    """

    __slots__ = ("name", "on_error", "plans_end", "plans_request", "plugin", "services", "waits_at_end", "wrong")

    def __init__(
        self,
        name: str,
        plugin: Plugin,
        on_error: Literal["refuse", "ignore"] = "refuse",
        wrong: Callable[[str], Misconfigured] = Misconfigured,
    ) -> None:
        self.name: Final = name
        self.plugin: Final = plugin
        self.on_error: Final = on_error
        self.wrong: Final = wrong
        self.services: Services | None = None
        """The services that the plugin was started with, until it was stopped."""
        vars(plugin)[_NAME] = name
        by_parts = self.defines("prepare") and not self.defines("on_request")
        self.plans_request: Final = self.defines("request_step") or by_parts
        self.plans_end: Final = self.defines("end_step") or (by_parts and not self.defines("on_end"))
        self.waits_at_end: Final = self.defines("on_end")

    def defines(self, *hooks: str) -> bool:
        """Return whether the plugin defines one of `hooks`."""
        return any(getattr(type(self.plugin), hook) is not getattr(Plugin, hook) for hook in hooks)


def defined_hooks(kind: type[Plugin]) -> list[str]:
    """Return the names of the hooks that the plugin overrides."""
    return [hook for hook in HOOKS if getattr(kind, hook) is not getattr(Plugin, hook)]


def wrong_hooks(kind: type[Plugin]) -> Iterator[str]:
    """Yield the faults in the hooks of a class, each with its file and line."""
    for hook in defined_hooks(kind):
        method, expected = getattr(kind, hook), getattr(Plugin, hook)
        is_async = inspect.iscoroutinefunction(expected)
        if is_async != inspect.iscoroutinefunction(method):
            yield f"`{hook}` must be `{'async def' if is_async else 'def'}`{_place(method)}"
        try:
            inspect.signature(method).bind(*inspect.signature(expected).parameters)
        except TypeError:
            yield f"`{hook}` must take ({', '.join(inspect.signature(expected).parameters)}){_place(method)}"
    for waiting, planning in TWO_FORMS:
        if {waiting, planning} <= set(defined_hooks(kind)):
            yield f"`{waiting}` and `{planning}` are both defined: keep one of them{_place(getattr(kind, planning))}"
    if kind.edits and "on_request" not in defined_hooks(kind):
        yield "`edits = True` is declared, but there is no `on_request` that changes the request"
    for parent in parents(kind):
        for name, value in vars(parent).items():
            if (name.startswith("on_") or name.endswith("_step")) and inspect.isroutine(value) and name not in HOOKS:
                meant = get_close_matches(name, HOOKS, n=1)
                cure = f": did you mean `{meant[0]}`?" if meant else ": call it otherwise"
                yield f"`{name}` is not a hook and is never called{cure}{_place(value)}"


def wrong_facts(kind: type[Plugin]) -> Iterator[str]:
    """Yield a sentence for each error in `requires`, `provides` and `dialects` of a class."""
    for name in ("requires", "provides"):
        facts = getattr(kind, name)
        if not isinstance(facts, tuple) or not all(isinstance(fact, type) for fact in facts):
            yield f"`{name}` must be a tuple of types, such as `(Caller,)`"
    if not isinstance(kind.dialects, tuple) or not all(isinstance(each, type) for each in kind.dialects):
        yield "`dialects` must be a tuple of classes, such as `(Messages,)`"
    if kind.provides and not {*REQUEST_HOOKS} & set(defined_hooks(kind)):
        yield "`provides` names facts, but there is no `on_request`, `request_step` or `prepare` to set them"


def parents(kind: type[Plugin]) -> list[type[Plugin]]:
    """Return the class and its base classes up to `Plugin`."""
    return [parent for parent in kind.__mro__ if issubclass(parent, Plugin) and parent is not Plugin]


def api_of(kind: type[Plugin]) -> object:
    """Return the version of the contract that a plugin's class or its module names, or None."""
    return kind.API if kind.API is not None else getattr(sys.modules.get(kind.__module__), "API", None)


def may_answer(kind: type[Plugin]) -> bool:
    """Return whether the request hook seems to return a `Reply`: it says so, or names the class."""
    method = inspect.unwrap(kind.on_request)
    code = getattr(method, "__code__", None)
    returns = str(getattr(method, "__annotations__", {}).get("return", ""))
    return "on_request" in defined_hooks(kind) and (
        "Reply" in returns or (code is not None and "Reply" in code.co_names)
    )


def place_of_hook(kind: type[Plugin], hook: str) -> str:
    """Return the file and the line of a hook, in brackets; empty where it has none."""
    return _place(getattr(kind, hook))


def _place(method: object) -> str:
    code = getattr(inspect.unwrap(method), "__code__", None)  # type: ignore[arg-type]
    return "" if code is None else f" ({code.co_filename}, line {code.co_firstlineno})"


def describe_error(error: BaseException) -> str:
    """Return the type, the text and the place of an exception that a plugin did not mean for the operator."""
    at = origin_of(error).get("at")
    return f"{error_text(error)} ({at})" if at else error_text(error)


def origin_of(error: BaseException, plugin: str = "", hook: str = "") -> dict[str, str]:
    """Return where in a plugin an exception comes from, as fields of a log line: `plugin`, `hook` and `at`, a file and a line.

    `plugin` and `hook` are what is known of it. Of a library's exception, `at` is the line of the plugin that called the library.
    """
    file, failed = "", error.__cause__ if isinstance(error.__cause__, SystemExit) else error
    for frame, _ in walk_tb(failed.__traceback__):
        code = frame.f_code
        if code.co_name in HOOKS and (owner := _plugin_of(frame)) is not None:
            plugin, hook, file = plugin or name_of(owner), hook or code.co_name, _file_of(code, owner)
            break
        if code.co_name == "<module>":
            file = code.co_filename
    found = {"plugin": plugin, "hook": hook, "at": place_of(failed, file)}
    return {name: value for name, value in found.items() if value}


def note_failure(event: str, exchange: Exchange, error: BaseException) -> None:
    """Log a failure that ends an exchange, with where it comes from, and name its plugin in the record."""
    where = origin_of(error, exchange.refused_by)
    exchange.refused_by = where.get("plugin", "")
    log.error(event, **where, request_id=exchange.id, exc_info=error)


def _plugin_of(frame: FrameType) -> Plugin | None:
    """Return the plugin whose hook a frame runs, None where it is another function of that name."""
    code = frame.f_code
    first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    return first if isinstance(first, Plugin) else None


def _file_of(code: CodeType, owner: Plugin) -> str:
    """Return the file of a hook; of one that `Plugin` derives of a part, that of the plugin."""
    return inspect.getfile(type(owner)) if code.co_filename == inspect.getfile(Plugin) else code.co_filename


def error_text(error: BaseException) -> str:
    """Return the type and the text of an exception. A plugin's own exception may fail at giving its text."""
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:
        return type(error).__name__


def is_cancellation(error: BaseException) -> bool:
    """Return whether this task itself is cancelled, not only a future that a plugin waited for, or is being closed.

    A coroutine that is closed runs in no task, unlike a plugin that raises `GeneratorExit`.
    """
    try:
        task = asyncio.current_task()
    except RuntimeError:  # there is no event loop any more
        task = None
    if isinstance(error, GeneratorExit):
        return task is None
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0

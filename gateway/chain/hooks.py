"""The hooks of a plugin's class: which it defines, and whether each is written as the gateway calls it."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Final

from gateway.plugin import Plugin

HOOKS: Final = tuple(name for name, value in vars(Plugin).items() if inspect.isfunction(value) and name[0] != "_")

TWO_FORMS: Final = (("on_request", "request_step"), ("on_end", "end_step"))
"""Hooks of which a plugin defines one: the one that waits, or the one that plans a step."""


def defined_hooks(kind: type[Plugin]) -> list[str]:
    """Return the names of the hooks that the plugin overrides."""
    return [hook for hook in HOOKS if getattr(kind, hook) is not getattr(Plugin, hook)]


def wrong_hooks(kind: type[Plugin]) -> Iterator[str]:
    """Yield what is wrong with the hooks of a class, each with its file and line."""
    for hook in defined_hooks(kind):
        method, expected = getattr(kind, hook), getattr(Plugin, hook)
        is_async = inspect.iscoroutinefunction(expected)
        if is_async != inspect.iscoroutinefunction(method):
            yield f"`{hook}` must be `{'async def' if is_async else 'def'}`{_place(method)}"
        try:
            inspect.signature(method).bind(*inspect.signature(expected).parameters)
        except TypeError:
            yield f"`{hook}` must take {_parameters(expected)}{_place(method)}"
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
    """Yield what is wrong with what a class says of its facts."""
    for name in ("requires", "provides"):
        facts = getattr(kind, name)
        if not isinstance(facts, tuple) or not all(isinstance(fact, type) for fact in facts):
            yield f"`{name}` must be a tuple of types, such as `(Caller,)`{_assigned_at(kind, name)}"
    if not isinstance(kind.dialects, tuple) or not all(isinstance(each, type) for each in kind.dialects):
        yield f"`dialects` must be a tuple of classes, such as `(Messages,)`{_assigned_at(kind, 'dialects')}"
    if kind.provides and not {"on_request", "request_step"} & set(defined_hooks(kind)):
        yield "`provides` names facts, but there is no `on_request` or `request_step` to set them"


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


def _assigned_at(kind: type[Plugin], name: str) -> str:
    """Return the file and the line where a class or a class above it assigns an attribute; empty where that is not found."""
    for parent in parents(kind):
        try:
            lines, first = inspect.getsourcelines(parent)
        except (OSError, TypeError):
            continue
        for number, line in enumerate(lines, first):
            if re.match(rf"\s+{name}\b[^=]*=", line):
                return f" ({inspect.getfile(parent)}, line {number})"
    return ""


def _parameters(hook: object) -> str:
    return f"({', '.join(inspect.signature(hook).parameters)})"  # type: ignore[arg-type]


def place_of_hook(kind: type[Plugin], hook: str) -> str:
    """Return the file and the line of a hook, in brackets; empty where it has none."""
    return _place(getattr(kind, hook))


def _place(method: object) -> str:
    code = getattr(inspect.unwrap(method), "__code__", None)  # type: ignore[arg-type]
    return "" if code is None else f" ({code.co_filename}, line {code.co_firstlineno})"

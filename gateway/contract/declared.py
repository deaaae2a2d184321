"""Checks of a plugin's class before any of it runs: its documentation, its hooks, its facts."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Final

import msgspec

from gateway.contract.finding import Finding
from gateway.plugin import Plugin

HOOKS: Final = (
    "start",
    "stop",
    "on_request",
    "request_step",
    "explain",
    "on_failover",
    "on_response",
    "on_chunk",
    "on_end",
    "end_step",
)


def declared(kind: type[Plugin]) -> Iterator[Finding]:
    """Yield the findings on docstring, settings, hooks and facts."""
    yield _docstring(kind)
    yield Finding.of("settings", _undocumented_settings(kind), f"{len(msgspec.structs.fields(kind))}, all documented")
    yield Finding.of("hooks", _wrong_hooks(kind), ", ".join(defined_hooks(kind)) or "none")
    yield Finding.of("facts", _wrong_facts(kind), _facts_in_words(kind))


def defined_hooks(kind: type[Plugin]) -> list[str]:
    """Return the names of the hooks that the plugin overrides."""
    return [hook for hook in HOOKS if getattr(kind, hook) is not getattr(Plugin, hook)]


def _docstring(kind: type[Plugin]) -> Finding:
    text = inspect.cleandoc(vars(kind).get("__doc__") or "")
    if not text:
        return Finding("docstring", False, "say in one sentence what it does: operators read it in `gateway plugins`")
    return Finding("docstring", True, " ".join(text.partition("\n\n")[0].split()))


def _undocumented_settings(kind: type[Plugin]) -> list[str]:
    documented: set[str] = set()
    for parent in _parents(kind):
        try:
            documented |= _documented(textwrap.dedent(inspect.getsource(parent)))
        except (OSError, TypeError):
            return [f"the source of {parent.__name__} cannot be read"]
    return [
        f"`{field.name}` is not documented: put a docstring below it, or a comment above it"
        for field in msgspec.structs.fields(kind)
        if field.name not in documented
    ]


def _documented(source: str) -> set[str]:
    """Return the annotated names of a class that have a docstring below, or a comment beside or above them."""
    names = set()
    lines = source.splitlines()
    body = next(node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            below = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            beside = lines[(node.end_lineno or node.lineno) - 1].encode()[node.end_col_offset or 0 :].lstrip()
            above = lines[node.lineno - 2].lstrip()
            if below or any(len(text) > 2 for text in (beside, above) if text[:1] in (b"#", "#")):
                names.add(node.target.id)
    return names


def _wrong_hooks(kind: type[Plugin]) -> Iterator[str]:
    for hook in defined_hooks(kind):
        method, expected = getattr(kind, hook), getattr(Plugin, hook)
        is_async = inspect.iscoroutinefunction(expected)
        if is_async != inspect.iscoroutinefunction(method):
            yield f"`{hook}` must be `{'async def' if is_async else 'def'}`"
        try:
            inspect.signature(method).bind(*inspect.signature(expected).parameters)
        except TypeError:
            yield f"`{hook}` must take {inspect.signature(expected)}"
    for waiting, planning in (("on_request", "request_step"), ("on_end", "end_step")):
        if {waiting, planning} <= set(defined_hooks(kind)):
            yield f"`{waiting}` and `{planning}` are both defined: keep one of them"
    if kind.edits and "on_request" not in defined_hooks(kind):
        yield "`edits = True` is declared, but there is no `on_request` that changes the request"
    for parent in _parents(kind):
        for name, value in vars(parent).items():
            if (name.startswith("on_") or name.endswith("_step")) and inspect.isroutine(value) and name not in HOOKS:
                meant = get_close_matches(name, HOOKS, n=1)
                yield f"`{name}` is not a hook and is never called" + (f": did you mean `{meant[0]}`?" if meant else "")


def _wrong_facts(kind: type[Plugin]) -> Iterator[str]:
    for name in ("requires", "provides"):
        facts = getattr(kind, name)
        if not isinstance(facts, tuple) or not all(isinstance(fact, type) for fact in facts):
            yield f"`{name}` must be a tuple of types, such as `(Caller,)`"
    if kind.provides and not {"on_request", "request_step"} & set(defined_hooks(kind)):
        yield "`provides` names facts, but there is no `on_request` or `request_step` to set them"


def _facts_in_words(kind: type[Plugin]) -> str:
    named = [
        f"{name} {', '.join(getattr(fact, '__name__', str(fact)) for fact in facts)}"
        for name, facts in (("requires", kind.requires), ("provides", kind.provides))
        if facts
    ]
    return "; ".join(named) or "none"


def _parents(kind: type[Plugin]) -> list[type[Plugin]]:
    """Return the class and its base classes up to `Plugin`."""
    return [parent for parent in kind.__mro__ if issubclass(parent, Plugin) and parent is not Plugin]

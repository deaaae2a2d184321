"""Checks of a plugin's class before any of it runs: its documentation, its hooks, its facts."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator

import msgspec

from gateway.chain.entry import defined_hooks, parents, wrong_facts, wrong_hooks
from gateway.chain.plugin import Plugin
from gateway.plugin_kit.finding import Finding


def declared(kind: type[Plugin]) -> Iterator[Finding]:
    """Yield the findings on docstring, settings, hooks and facts."""
    yield _docstring(kind)
    yield Finding.of("settings", _undocumented_settings(kind), f"{len(msgspec.structs.fields(kind))}, all documented")
    yield Finding.of("hooks", wrong_hooks(kind), ", ".join(defined_hooks(kind)) or "none")
    yield Finding.of("facts", wrong_facts(kind), _facts_in_words(kind))


def _docstring(kind: type[Plugin]) -> Finding:
    text = inspect.cleandoc(vars(kind).get("__doc__") or "")
    if not text:
        return Finding("docstring", False, "say in one sentence what it does: operators read it in `gateway plugins`")
    return Finding("docstring", True, " ".join(text.partition("\n\n")[0].split()))


def _undocumented_settings(kind: type[Plugin]) -> list[str]:
    documented: set[str] = set()
    for parent in parents(kind):
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


def _facts_in_words(kind: type[Plugin]) -> str:
    named = [
        f"{name} {', '.join(getattr(fact, '__name__', str(fact)) for fact in facts)}"
        for name, facts in (("requires", kind.requires), ("provides", kind.provides))
        if facts and isinstance(facts, tuple)
    ]
    return "; ".join(named) or "none"

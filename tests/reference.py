"""The reference page of the plugin interface, made from the docstrings: `python -m tests.reference` writes it."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Final

import gateway
import gateway.plugin_kit
import gateway.testing

PAGE: Final = Path(__file__).parent.parent / "plugins" / "REFERENCE.md"
HEAD: Final = """# Reference of the plugin interface

Every name that a plugin may import, from its docstring. `python -m tests.reference` writes this page, and a test holds it to the
code. [README.md](README.md) leads through it; `gateway/chain/plugin.py` has what the gateway guarantees to a plugin.
"""
WIDTH: Final = 120


def page() -> str:
    """Return the whole page."""
    parts = [HEAD]
    for title, module, names in (
        ("gateway", "gateway", gateway.__all__),
        ("gateway.testing", "gateway.testing", gateway.testing.__all__),
        ("gateway.plugin_kit", "gateway.plugin_kit", gateway.plugin_kit.__all__),
    ):
        parts.append(f"\n## `{title}`\n")
        for name in sorted(names, key=str.lower):
            parts += [f"\n### `{name}`\n", *_described(module, name)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).rstrip() + "\n"


def _described(module: str, name: str) -> Iterator[str]:
    found = getattr(import_module(module), name)
    where = found.__module__ if inspect.isclass(found) or inspect.isfunction(found) else gateway._MODULES[name]
    file = PAGE.parents[1].joinpath(*where.split("."))  # Python does not know the source of a compiled module
    tree = ast.parse((file / "__init__.py" if file.is_dir() else file.with_suffix(".py")).read_text())
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef) and node.name == name:
            yield from _class(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            yield from _function(node, "")
        elif name in _names(node):
            yield f"\n```python\n{ast.unparse(node)}\n```\n"
            yield f"{_below(after)}\n"


def _class(node: ast.ClassDef) -> Iterator[str]:
    derived = f"({', '.join(map(ast.unparse, node.bases))})" if node.bases else ""
    yield f"\n```python\nclass {node.name}{derived}\n```\n"
    yield f"{ast.get_docstring(node) or ''}\n"
    for each, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(each, ast.AnnAssign) and not ast.unparse(each.target).startswith("_"):
            text = _below(after)
            yield f"- `{ast.unparse(each)}`" + (f": {' '.join(text.split())}" if text else "")
        elif isinstance(each, ast.Assign) and isinstance(each.value, ast.Constant):
            yield f"- `{ast.unparse(each)}`"
    yield from _methods(node, f"{node.name}.", "__init__")


def _methods(node: ast.ClassDef, owner: str, *more: str) -> Iterator[str]:
    for each in node.body:
        if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) or (
            each.name[0] == "_" and each.name not in more
        ):
            continue
        if not any(isinstance(decorator, ast.Attribute) for decorator in each.decorator_list):  # as of a setter
            yield from _function(each, owner)


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, owner: str) -> Iterator[str]:
    is_property = any(isinstance(each, ast.Name) and each.id == "property" for each in node.decorator_list)
    text = ast.get_docstring(node)
    word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "property" if is_property else "def"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    arguments = "" if is_property else f"({ast.unparse(node.args)})"
    yield f"\n```python\n{_wrapped(f'{word} {owner}{node.name}', arguments, returns)}\n```\n"
    if text:
        yield f"{text}\n"


def _wrapped(name: str, arguments: str, returns: str) -> str:
    """Return a signature, with one argument a line where it is long."""
    line = name + arguments + returns
    if len(line) <= WIDTH:
        return line
    parsed = ast.parse(f"def f{arguments}: ...").body[0]
    assert isinstance(parsed, ast.FunctionDef)
    given, lines = parsed.args, list[str]()
    defaults = [None] * (len(given.args) - len(given.defaults)) + list(given.defaults)
    lines += [_argument(each, value) for each, value in zip(given.args, defaults, strict=True)]
    if given.vararg or given.kwonlyargs:
        lines.append(f"*{ast.unparse(given.vararg)}" if given.vararg else "*")
    lines += [_argument(each, value) for each, value in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return "\n".join([f"{name}(", *(f"    {each}," for each in lines), f"){returns}"])


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(argument) + (f" = {ast.unparse(default)}" if default is not None else "")


def _names(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _below(node: ast.stmt | None) -> str:
    """Return the docstring that a statement is."""
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return inspect.cleandoc(node.value.value) if is_text else ""  # type: ignore[union-attr]


if __name__ == "__main__":
    PAGE.write_text(page())

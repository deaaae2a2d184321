"""What `helm template` makes of a chart whose templates keep to a small part of Helm's language.

That part: comments; `if`, `else`, `range` over a list or a mapping, `end`; fields of `.`, `$` and variables; numbers; `add`,
`quote`, `nindent`, `toYaml`, and pipes of them. Anything else is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

ACTION: Final = re.compile(r"(\s*)\{\{-\s*(.*?)\s*\}\}|\{\{\s*(.*?)\s*\}\}", re.DOTALL)
FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "add": lambda *terms: sum(terms),
    "quote": lambda value: f'"{value}"',
    "nindent": lambda width, text: "".join(f"\n{' ' * width}{line}" for line in text.splitlines()),
    "toYaml": lambda value: yaml.safe_dump(value).rstrip("\n"),
}

Scope = dict[str, Any]


def template(chart: Path, values: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Return the manifests of a release `sluicegate` in the namespace `default`. `values` replace those of the chart."""
    given = _merged(yaml.safe_load((chart / "values.yaml").read_text()), values or {})
    top = {"Values": given, "Release": {"Name": "sluicegate", "Namespace": "default"}}
    texts = [render(file.read_text(), top) for file in sorted((chart / "templates").iterdir())]
    return [each for text in texts for each in yaml.safe_load_all(text) if each is not None]


def _merged(values: Any, given: Any) -> Any:
    if not (isinstance(values, dict) and isinstance(given, Mapping)):
        return given
    return {
        name: _merged(values.get(name), given[name]) if name in given else values[name] for name in {**values, **given}
    }


def render(text: str, top: Mapping[str, Any]) -> str:
    """Return a template with its actions run."""
    tokens = list(_tokens(text))
    made, end = _run(tokens, 0, {"$": top, ".": top}, said=True)
    if end != len(tokens):
        raise SyntaxError(f"`{tokens[end][1]}` ends nothing")
    return made


def _tokens(text: str) -> Iterator[tuple[bool, str]]:
    """Yield each piece of text, and each action, marked."""
    at = 0
    for action in ACTION.finditer(text):
        yield False, text[at : action.start()]
        yield True, action[3] if action[2] is None else action[2]
        at = action.end()
    yield False, text[at:]


def _run(tokens: list[tuple[bool, str]], at: int, scope: Scope, *, said: bool) -> tuple[str, int]:
    """Return what the tokens make up to the `else` or `end` of the block, and where that is. Nothing is made where not `said`."""
    made = ""
    while at < len(tokens):
        is_action, text = tokens[at]
        word, _, rest = text.partition(" ")
        at += 1
        if not is_action:
            made += text if said else ""
        elif word in ("else", "end"):
            return made, at - 1
        elif word == "if":
            true = said and bool(_value(rest, scope))
            piece, at = _run(tokens, at, scope, said=true)
            other = ""
            if tokens[at][1] == "else":
                other, at = _run(tokens, at + 1, scope, said=said and not true)
            made, at = made + piece + other, at + 1
        elif word == "range":
            names, _, each = rest.rpartition(":=")
            begin = at
            _, at = _run(tokens, begin, scope, said=False)
            for inner in _scopes(names, _value(each.strip(), scope), scope) if said else ():
                made += _run(tokens, begin, inner, said=True)[0]
            at += 1
        elif not text.startswith("/*"):
            made += str(_value(text, scope)) if said else ""
    return made, at


def _scopes(names: str, value: Any, scope: Scope) -> Iterator[Scope]:
    pairs = sorted(value.items()) if isinstance(value, dict) else enumerate(value)
    for key, each in pairs:
        yield (
            scope | dict(zip([name.strip() for name in names.split(",")], (key, each), strict=True))
            if names
            else scope | {".": each}
        )


def _value(text: str, scope: Scope) -> Any:
    """Return the value of a pipe: each function gets what is before it as its last argument."""
    value: list[Any] = []
    for part in text.split(" | "):
        head, *terms = part.split()
        if head in FUNCTIONS:
            value = [FUNCTIONS[head](*[_term(term, scope) for term in terms], *value)]
        elif terms or value:
            raise SyntaxError(f"`{part}` is not in the part of the language that is used here")
        else:
            value = [_term(head, scope)]
    return value[0]


def _term(text: str, scope: Scope) -> Any:
    if text.isdigit():
        return int(text)
    if not re.fullmatch(r"(?:\$\w*|)(?:\.\w*)*", text):
        raise SyntaxError(f"`{text}` is not in the part of the language that is used here")
    first, *names = text.split(".")
    value = scope[first or "."]
    for name in filter(None, names):
        value = value[name]
    return value

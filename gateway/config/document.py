"""A YAML document as plain data, and the lines it came from.

1. What could be read in two ways is an error: `yes`, `0x10`, `1_000`, a key given twice, an alias, a tag.
2. What came from the environment is never shown: an error names the variable in its place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from yaml.reader import Reader

from gateway.errors import Misconfigured

LARGEST: Final = 1024 * 1024
DEEPEST: Final = 32
LONGEST_ERROR: Final = 1000
SHORTEST_SECRET: Final = 4
"""Shorter values of the environment are not hidden: hiding them would make every text unreadable."""

VARIABLE: Final = re.compile(r"\$\{([^}]*)\}?")
NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
INTEGER: Final = re.compile(r"[-+]?(0|[1-9][0-9]{0,14})")
DECIMAL: Final = re.compile(r"(?=[^0-9]*([0-9]\.?){1,15}$)[-+]?[0-9]*\.[0-9]+")
"""Up to fifteen digits: so many survive as a binary float."""

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Place = tuple[str | int, ...]


class Document:
    """Names the line of every place in a file. `lines` holds them, counted from 1."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: dict[Place, int] = {}
        self._variables: dict[str, str] = {}

    def wrong(self, place: Place, text: str) -> Misconfigured:
        """The error for a place, on one line: `file:line: key: what is wrong`."""
        at = place
        while at not in self.lines and at:
            at = at[:-1]
        key = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place).lstrip(".")
        return self.wrong_at(self.lines.get(at, 1), f"{key}: {text}" if key else text)

    def wrong_at(self, line: int, text: str) -> Misconfigured:
        """The error for a line."""
        for value in sorted(self._variables, key=len, reverse=True):
            text = text.replace(value, f"${{{self._variables[value]}}}")
        printable = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text[:LONGEST_ERROR])
        return Misconfigured(f"{self.path}:{line}: {printable}")

    def resolve(self, place: Place, text: str, environment: Mapping[str, str]) -> str:
        """`text` with its variables replaced. Raises `Misconfigured` for one that is not set."""

        def value_of(match: re.Match[str]) -> str:
            name = match[1]
            if match[0][-1] != "}" or not NAME.fullmatch(name):
                raise self.wrong(place, "write a variable as ${NAME}, of letters, digits and _")
            if name not in environment:
                raise self.wrong(place, f"the environment variable {name} is not set; export it or write a value")
            value = environment[name]
            if len(value) >= SHORTEST_SECRET:
                self._variables[value] = name
            return value

        return VARIABLE.sub(value_of, text)

    def __repr__(self) -> str:
        return f"<Document {self.path}>"


def read(path: Path, environment: Mapping[str, str]) -> tuple[Any, Document]:
    """The data of a file, in dicts, lists and scalars, and its lines. Raises `Misconfigured` with file, line and cure."""
    document = Document(path)
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST + 1)
    except OSError as error:
        raise Misconfigured(f"{path}: {error.strerror}; name a readable file with --config") from None
    if len(raw) > LARGEST:
        raise Misconfigured(f"{path}: larger than 1 MiB; a configuration is a few kilobytes")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise document.wrong_at(line, "not UTF-8; save the file as UTF-8") from None
    if strange := Reader.NON_PRINTABLE.search(text):
        line = text.count("\n", 0, strange.start()) + 1
        raise document.wrong_at(line, f"the control character {strange[0]!r} is not allowed; remove it")
    try:
        _refuse_shortcuts(document, text)
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise _malformed(document, text, error) from None
    return None if root is None else _plain(document, root, (), environment), document


def _malformed(document: Document, text: str, error: yaml.MarkedYAMLError) -> Misconfigured:
    mark = error.problem_mark
    if mark is not None and text[mark.index : mark.index + 1] == "\t":
        return document.wrong_at(mark.line + 1, "a tab cannot indent; use spaces")
    line = mark.line + 1 if mark is not None else 1
    what = " ".join(filter(None, (error.context, error.problem)))
    return document.wrong_at(line, f"not valid YAML: {what}; check quotes, colons and indentation there")


def _refuse_shortcuts(document: Document, text: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise document.wrong_at(line, "anchors and aliases are not allowed; write the value out")
        if tag := getattr(event, "tag", None):
            shown = tag.replace("tag:yaml.org,2002:", "!!")
            raise document.wrong_at(line, f"tags such as `{shown}` are not allowed; write plain values")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise document.wrong_at(line, f"nested deeper than {DEEPEST}; no setting is")


def _plain(document: Document, node: yaml.Node, place: Place, environment: Mapping[str, str]) -> Any:
    document.lines.setdefault(place, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        return _mapping(document, node, place, environment)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(document, item, (*place, index), environment) for index, item in enumerate(node.value)]
    return _scalar(document, node, place, environment)


def _mapping(
    document: Document, node: yaml.MappingNode, place: Place, environment: Mapping[str, str]
) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag.endswith((":null", ":merge")):
            raise document.wrong_at(line, "every key must be plain text; quote it if it is meant")
        key = key_node.value
        if key in result:
            raise document.wrong_at(line, f"the key `{key}` is given twice; keep one")
        document.lines[(*place, key)] = line
        result[key] = _plain(document, value_node, (*place, key), environment)
    return result


def _scalar(document: Document, node: yaml.Node, place: Place, environment: Mapping[str, str]) -> Any:
    kind, text = node.tag.rpartition(":")[2], node.value
    if kind == "null":
        return None
    if kind == "bool" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind == "int" and INTEGER.fullmatch(text):
        return int(text)
    if kind == "float" and DECIMAL.fullmatch(text):
        return float(text)
    if kind == "bool":
        raise document.wrong(place, f"write true or false, or put `{text}` in quotes if it is a name")
    if kind in ("int", "float"):
        raise document.wrong(place, f"write `{text}` in plain digits (at most 15), or in quotes if it is a name")
    return document.resolve(place, text, environment)

"""A YAML document as plain data that remembers its lines. Strict: what could be read in two ways is an error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from gateway.errors import Misconfigured

LARGEST: Final = 1024 * 1024
VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Place = tuple[str | int, ...]


class Document(msgspec.Struct, frozen=True):
    """`data` is dicts, lists and scalars; `lines` the line (from 1) of every place in it."""

    path: Path
    data: Any
    lines: dict[Place, int]

    def wrong(self, place: Place, text: str) -> Misconfigured:
        """The error for a place: `file:line: key: what is wrong`."""
        at = place
        while at not in self.lines and at:
            at = at[:-1]
        key = ".".join(str(step) for step in place)
        return Misconfigured(f"{self.path}:{self.lines.get(at, 1)}: {key + ': ' if key else ''}{text}")


def read(path: Path, environment: Mapping[str, str]) -> Document:
    """Parse a file. Raises `Misconfigured` with file, line and cure."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise Misconfigured(f"{path}: {error.strerror}; name a readable file with --config") from None
    if len(raw) > LARGEST:
        raise Misconfigured(f"{path}: larger than 1 MiB; a configuration is a few kilobytes")
    try:
        text = raw.decode("utf-8")
        _refuse_shortcuts(path, text)
        root = yaml.compose(text, Loader=_Loader)
    except UnicodeDecodeError:
        raise Misconfigured(f"{path}: not UTF-8; save the file as UTF-8") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise Misconfigured(f"{path}:{mark.line + 1 if mark else 1}: {error.problem or 'not valid YAML'}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise Misconfigured(f"{path}: not valid YAML ({type(error).__name__})") from None
    document = Document(path, None, {})
    data = None if root is None else _plain(document, root, (), environment)
    return Document(path, data, document.lines)


def _refuse_shortcuts(path: Path, text: str) -> None:
    for event in yaml.parse(text, Loader=_Loader):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise Misconfigured(f"{path}:{line}: anchors and aliases are not allowed; write the value out")
        if tag := getattr(event, "tag", None):
            raise Misconfigured(f"{path}:{line}: tags such as {tag} are not allowed; write plain values")


def _plain(document: Document, node: yaml.Node, place: Place, environment: Mapping[str, str]) -> Any:
    document.lines[place] = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        return _mapping(document, node, place, environment)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(document, item, (*place, index), environment) for index, item in enumerate(node.value)]
    assert isinstance(node, yaml.ScalarNode)  # noqa: S101 - the third and last kind of node
    return _scalar(document, node, place, environment)


def _mapping(
    document: Document, node: yaml.MappingNode, place: Place, environment: Mapping[str, str]
) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = key_node.value
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag.endswith((":null", ":merge")):
            raise Misconfigured(f"{document.path}:{line}: every key must be plain text")
        if key in result:
            raise Misconfigured(f"{document.path}:{line}: the key `{key}` is given twice; keep one")
        result[key] = _plain(document, value_node, (*place, key), environment)
        document.lines[(*place, key)] = line
    return result


def _scalar(document: Document, node: yaml.ScalarNode, place: Place, environment: Mapping[str, str]) -> Any:
    kind = node.tag.rpartition(":")[2]
    if kind == "null":
        return None
    if kind == "bool":
        return node.value.lower() in ("true", "yes", "on")
    if kind == "int" and re.fullmatch(r"[-+]?(0|[1-9][0-9]*)", node.value):
        return int(node.value)
    if kind == "float" and re.fullmatch(r"[-+]?[0-9]+\.[0-9]*|[-+]?\.[0-9]+", node.value):
        return float(node.value)
    if kind in ("int", "float"):
        raise document.wrong(place, f"write the number plainly or in quotes, not as {node.value}")

    def resolve(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in environment:
            raise document.wrong(place, f"the environment variable {name} is not set; export it or write a value")
        return environment[name]

    return VARIABLE.sub(resolve, node.value)


def split_path(message: str) -> tuple[str, Place]:
    """msgspec's `text - at `$.a[0].b`` in its parts."""
    text, _, path = message.partition(" - at `$")
    steps: list[str | int] = []
    for name, index in re.findall(r"\.([^.\[\]`]+)|\[(\d+)\]", path):
        steps.append(name or int(index))
    return text[:1].lower() + text[1:] if not text.startswith("Object contains") else text, tuple(steps)

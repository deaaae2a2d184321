"""A YAML document as plain data, with the line number of every setting, and the places of configuration files.

1. An ambiguous value is an error: `yes`, `0x10`, `1_000`, a duplicate key, an alias, a tag.
2. The value of an environment variable or of a secret's file is never shown: an error shows `${NAME}` instead.
3. A relative path in a file starts at the file's own folder, wherever a command runs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

import yaml
from yaml.reader import Reader

from gateway.base.errors import Misconfigured
from gateway.base.text import printable
from gateway.config.secrets import PREFIX, SecretFiles

MAX_FILE_BYTES: Final = 1024 * 1024
MAX_DEPTH: Final = 32
MAX_ERROR_LENGTH: Final = 1000
MIN_SECRET_LENGTH: Final = 4
"""Shorter values of environment variables are not hidden: replacing them would make every message unreadable."""

VARIABLE: Final = re.compile(r"\$\{([^}]*)\}?")
NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
INTEGER: Final = re.compile(r"[-+]?(0|[1-9][0-9]{0,14})")
DECIMAL: Final = re.compile(r"(?=[^0-9]*([0-9]\.?){1,15}$)[-+]?[0-9]*\.[0-9]+")
"""Up to 15 digits, which survive the conversion to a binary float and back."""

UNUSABLE: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
"""Control characters, and half characters that cannot be written anywhere, as escapes or environment variables bring them."""

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

KeyPath = tuple[str | int, ...]
"""The keys and list indices that lead to a setting, from the top of the file."""

KEYS: Final = (("api_key",), ("api_keys",))
"""The settings of a channel that are credentials, as parts of key paths."""
UNSET: Final = "unset"
"""Stands for a credential where none is needed."""
SHIPPED: Final = Path(__file__).parents[1] / "shipped"
"""The folder of the example files in an installed package."""
IN_URL: Final = re.compile(r"(?<=[?&])(ssl_ca_certs|ssl_certfile|ssl_keyfile)=([^&]+)")


class Document:
    """The line of every key path in a file. `lines` holds them, counted from 1."""

    def __init__(
        self,
        path: Path,
        raw: bytes = b"",
        secrets: Mapping[str, str] | None = None,
        folder: Path | None = None,
        *,
        keys: bool = True,
    ) -> None:
        """Take secrets from their files, or from `secrets` if they were read before. `folder`: base of the files' paths.

        `keys`: whether credentials of channels are needed; without, `UNSET` stands for one that is not there.
        """
        self.path = path
        self._keys = keys
        self.folder = folder or folder_of(path)
        self.files = SecretFiles(folder or path.parent, secrets)
        self.raw = raw
        """The bytes of the file."""
        self.lines: dict[KeyPath, int] = {}
        self._variables: dict[str, str] = {}
        self._places: list[tuple[KeyPath, str]] = []

    def wrong(self, key_path: KeyPath, text: str) -> Misconfigured:
        """Return the error for a key path, on one line: `file:line: key: what is wrong`."""
        known = key_path
        while known not in self.lines and known:
            known = known[:-1]
        key = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in key_path).lstrip(".")
        return self.wrong_at(self.lines.get(known, 1), f"{key}: {text}" if key else text)

    def wrong_at(self, line: int, text: str) -> Misconfigured:
        """Return the error for a line of the file, with the values of variables hidden."""
        return Misconfigured(f"{self.path}:{line}: {printable(self.hide(text)[:MAX_ERROR_LENGTH])}")

    def hide(self, text: str) -> str:
        """Return a text with `${NAME}` or `${file:PATH}` in place of each value that came from a variable or a file."""
        for value in sorted(self._variables, key=len, reverse=True):
            text = text.replace(value, f"${{{self._variables[value]}}}")
        return text

    def variables_at(self, key_path: KeyPath, names: Collection[str]) -> list[str]:
        """Return the values of the variables in the settings of these names below a key path."""
        depth = len(key_path)
        return [text for at, text in self._places if at[:depth] == key_path and at[depth : depth + 1][0] in names]

    def resolve(self, key_path: KeyPath, text: str, environment: Mapping[str, str]) -> str:
        """Replace the variables in `text`. Raises `Misconfigured` for one that is not set, and for a file without a secret."""

        def value_of(match: re.Match[str]) -> str:
            name = match[1]
            in_file = name.startswith(PREFIX)
            if match[0][-1] != "}" or not (in_file or NAME.fullmatch(name)):
                raise self.wrong(key_path, "write a variable as ${NAME}, of letters, digits and _, or as ${file:PATH}")
            try:
                value = self.files.get(name.removeprefix(PREFIX)) if in_file else environment[name]
            except (KeyError, ValueError) as error:
                if not self._keys and key_path[0] == "channels" and key_path[2:3] in KEYS:
                    return UNSET
                unset = f"the environment variable {name} is not set; export it or write a value"
                raise self.wrong(key_path, str(error) if in_file else unset) from None
            if len(value) >= MIN_SECRET_LENGTH:
                self._variables[value] = name
                self._places.append((key_path, value))
            return value

        return VARIABLE.sub(value_of, text)


def read(path: Path) -> bytes:
    """Return the bytes of a file. Raises `Misconfigured`."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise Misconfigured(f"{path}: {error.strerror}; name a readable file with --config") from None
    if len(raw) > MAX_FILE_BYTES:
        raise Misconfigured(f"{path}: larger than 1 MiB; a configuration is a few kilobytes")
    return raw


def parse(
    path: Path,
    raw: bytes,
    environment: Mapping[str, str],
    secrets: Mapping[str, str] | None = None,
    folder: Path | None = None,
    *,
    keys: bool = True,
) -> tuple[Any, Document]:
    """Return the data of a file as dicts, lists and scalars, and its lines. `secrets`: those of its files, if they are known;
    `folder`: where the paths of these files start, if not beside it; `keys`: as for `Document`.

    Raises `Misconfigured`, which names file, line and remedy.
    """
    document = Document(path, raw, secrets, folder, keys=keys)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise document.wrong_at(line, "not UTF-8; save the file as UTF-8") from None
    if control := Reader.NON_PRINTABLE.search(text):
        line = text.count("\n", 0, control.start()) + 1
        raise document.wrong_at(line, f"the control character {control[0]!r} is not allowed; remove it")
    try:
        _reject_yaml_features(document, text)
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(document, text, error) from None
    return None if root is None else _to_plain(document, root, (), environment), document


def _syntax_error(document: Document, text: str, error: yaml.MarkedYAMLError) -> Misconfigured:
    mark = error.problem_mark
    if mark is not None and text[mark.index : mark.index + 1] == "\t":
        return document.wrong_at(mark.line + 1, "a tab cannot indent; use spaces")
    line = mark.line + 1 if mark is not None else 1
    what = " ".join(filter(None, (error.context, error.problem)))
    return document.wrong_at(line, f"not valid YAML: {what}; check quotes, colons and indentation there")


def _reject_yaml_features(document: Document, text: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise document.wrong_at(line, "anchors and aliases are not allowed; write the value out")
        if tag := getattr(event, "tag", None):
            shown = tag.replace("tag:yaml.org,2002:", "!!")
            raise document.wrong_at(line, f"tags such as `{shown}` are not allowed; write plain values")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise document.wrong_at(line, f"nested deeper than {MAX_DEPTH}; no setting is")


def _to_plain(document: Document, node: yaml.Node, key_path: KeyPath, environment: Mapping[str, str]) -> Any:
    document.lines.setdefault(key_path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        return _mapping(document, node, key_path, environment)
    if isinstance(node, yaml.SequenceNode):
        return [_to_plain(document, item, (*key_path, index), environment) for index, item in enumerate(node.value)]
    return _scalar(document, node, key_path, environment)


def _mapping(
    document: Document, node: yaml.MappingNode, key_path: KeyPath, environment: Mapping[str, str]
) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag.endswith((":null", ":merge")):
            raise document.wrong_at(line, "every key must be plain text; quote it if it is meant")
        key = key_node.value
        _check_characters(document, line, key)
        if key in result:
            raise document.wrong_at(line, f"the key `{key}` is given twice; keep one")
        document.lines[(*key_path, key)] = line
        result[key] = _to_plain(document, value_node, (*key_path, key), environment)
    return result


def _scalar(document: Document, node: yaml.Node, key_path: KeyPath, environment: Mapping[str, str]) -> Any:
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
        raise document.wrong(key_path, f"write true or false, or put `{text}` in quotes if it is a name")
    if kind in ("int", "float"):
        raise document.wrong(key_path, f"write `{text}` in plain digits (at most 15), or in quotes if it is a name")
    resolved = document.resolve(key_path, text, environment)
    _check_characters(document, document.lines[key_path], resolved)
    return resolved


def _check_characters(document: Document, line: int, text: str) -> None:
    if unusable := UNUSABLE.search(text):
        raise document.wrong_at(line, f"the character {unusable[0]!r} is not allowed; remove it")


def folder_of(path: Path) -> Path:
    """Return the base of the relative paths in a file: its folder, or `./config` for a file of the installed package."""
    folder = path.absolute().parent
    return Path("config").absolute() if folder == SHIPPED else folder


def make_absolute(folder: Path, data: dict[str, Any]) -> None:
    """Make the relative paths of a file in `folder` absolute, in its plain data. What is no path is left to be refused."""
    data.setdefault("data", "./data")
    channels = data.get("channels")
    places = [(data, "data"), (data.get("tls"), "certificate"), (data.get("tls"), "key")]
    places += [(each, "ca_file") for each in (channels.values() if isinstance(channels, Mapping) else ())]
    for section, name in places:
        if isinstance(section, dict) and isinstance(path := section.get(name), str) and (path or section is data):
            section[name] = absolute(folder, path)
    if isinstance(data.get("redis"), str):
        data["redis"] = IN_URL.sub(
            lambda match: f"{match[1]}={quote(absolute(folder, unquote(match[2])))}", data["redis"]
        )


def absolute(folder: Path, path: str) -> str:
    """Return a path that starts at a folder, unless it starts at the root or at the home of a user."""
    return os.path.abspath(folder / Path(path).expanduser())  # noqa: PTH100 - links stay as they are named


def find(explicit: Path | None, environment: Mapping[str, str] | None = None) -> Path:
    """Return the path of the file to use: `explicit`, `$GATEWAY_CONFIG`, `./gateway.yaml`, or the demo's."""
    return named(explicit, environment) or shipped("demo.yaml")


def named(explicit: Path | None, environment: Mapping[str, str] | None = None) -> Path | None:
    """Return what `find` does, and None for the demo's."""
    given = (os.environ if environment is None else environment).get("GATEWAY_CONFIG")
    if explicit is not None or given:
        return explicit or Path(str(given))
    here = Path("gateway.yaml")
    return here if here.exists() else None


def shipped(name: str) -> Path:
    """Return the path of a file of config/, in the installed package or in a checkout."""
    for folder in (SHIPPED, SHIPPED.parents[1] / "config"):
        if (folder / name).exists():
            return folder / name
    raise Misconfigured(f"the installation lacks {name}: install the package again")

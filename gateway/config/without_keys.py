"""The configuration without the credentials of channels: for commands that call no upstream, and to compare gateways by."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from gateway.base.errors import Misconfigured
from gateway.config import document
from gateway.config.schema import Config, Loaded, load
from gateway.config.secrets import PREFIX, SecretFiles

KEYS: Final = ("api_key", "api_keys")
UNSET: Final = "unset"
COMPARED: Final = ("channels", "models", "aliases", "groups", "plugins", "time_zone", "currency", "session_headers")
_VARIABLE: Final = re.compile(rf"\$\{{({PREFIX}[^}}\r\n]+|{document.NAME.pattern})\}}")


def load_without_keys(path: Path, environment: Mapping[str, str] | None = None) -> Loaded:
    """Do as `load`, but take `UNSET` for a variable that is not set, or whose file cannot be read, if only credentials need it."""
    given = os.environ if environment is None else environment
    raw = document.read(path)
    try:
        return load(path, given, raw=raw)
    except Misconfigured as error:
        alone, others = _variables_of(raw)
        files = SecretFiles(path.parent)
        secrets: dict[str, str] = {}
        for name in sorted(alone | others):
            if name.startswith(PREFIX):
                file = name.removeprefix(PREFIX)
                try:
                    secrets[file] = files.get(file)
                except ValueError:
                    if name in others:
                        raise error from None
                    secrets[file] = UNSET
        return load(path, dict.fromkeys(alone, UNSET) | dict(given), raw=raw, secrets=secrets)


def digests(config: Config) -> dict[str, str]:
    """Return a digest of each setting that the gateways of a store should have alike; of channels without their credentials."""
    found = {name: msgspec.to_builtins(getattr(config, name), enc_hook=str) for name in COMPARED}
    for channel in found["channels"].values():
        for key in KEYS:
            channel.pop(key)
    encoded = {name: msgspec.json.encode(value, order="deterministic") for name, value in found.items()}
    return {name: sha256(each).hexdigest()[:16] for name, each in encoded.items()}


def _variables_of(raw: bytes) -> tuple[set[str], set[str]]:
    """Return the variables that are in credentials of channels and nowhere else, and all others; none where the file is wrong."""
    try:
        data = yaml.safe_load(raw)
    except (yaml.YAMLError, ValueError, RecursionError):
        return set(), set()  # `load` says what is wrong
    if not isinstance(data, dict) or not isinstance(channels := data.pop("channels", None), dict):
        return set(), set()
    keys = [channel.pop(key, "") for channel in channels.values() if isinstance(channel, dict) for key in KEYS]
    others = set(_variables([data, channels]))
    return set(_variables(keys)) - others, others


def _variables(value: Any) -> Iterator[str]:
    """Yield the names of the variables in all texts of a value."""
    if isinstance(value, str):
        yield from _VARIABLE.findall(value)
    elif isinstance(value, dict):
        for part in value.values():
            yield from _variables(part)
    elif isinstance(value, list):
        for part in value:
            yield from _variables(part)

"""The dialects that the plugins of a chain provide for its channels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from gateway.chain.entry import Entry
from gateway.chat.dialect import Dialect
from gateway.config.channel_request import auth_of, check_headers
from gateway.config.section import WrongSetting

_PROVIDER: Final = "_provided_by"
"""Where a dialect keeps the name of its plugin, so that a failure of any of its methods can name it."""


def provider_of(dialect: Dialect) -> str:
    """Return the name of the plugin that provides a dialect, or of the dialect's class where it is in no chain."""
    return str(vars(dialect).get(_PROVIDER, type(dialect).__name__))


def wrong_attribute(dialect: Dialect) -> str:
    """Return what is wrong with the attributes of a dialect, by which its requests are addressed, or nothing."""
    name, path, headers = dialect.name, getattr(dialect, "path", None), dialect.headers
    if not isinstance(name, str) or not name:
        return "`name` must be a text, which channels have under `dialect:`"
    if not isinstance(path, str) or not path.startswith("/") or not path.isascii() or not path.isprintable():
        return "`path` must be a text that begins with /, as in `/messages`"
    if not isinstance(headers, Mapping):
        return "`headers` must be a mapping of names to values"
    if not all(isinstance(text, str) for pair in headers.items() for text in pair):
        return "`headers` must have texts alone"
    try:
        check_headers(headers, auth_of(str(dialect.auth)), has_credentials=True)
    except WrongSetting as error:
        return f"`{'.'.join(map(str, error.key_path))}` is wrong: {error}"
    return ""


def dialects_of(entries: Iterable[Entry]) -> Mapping[str, Dialect]:
    """Return the dialects by name. Raises `Misconfigured` for one that two plugins provide, or that cannot be used."""
    found: dict[str, Dialect] = {}
    for entry in entries:
        for kind in entry.plugin.dialects:
            try:
                dialect = kind()
                name = dialect.name
            except Exception as error:
                raise entry.wrong(f"'{entry.name}' has a dialect that cannot be made: {type(error).__name__}") from None
            if wrong := wrong_attribute(dialect):
                raise entry.wrong(f"'{entry.name}' has the dialect `{type(dialect).__name__}`, whose {wrong}")
            if name in found:
                raise entry.wrong(f"'{entry.name}' provides the dialect `{name}`, as a plugin above does: keep one")
            vars(dialect)[_PROVIDER] = entry.name
            found[name] = dialect
    return found

"""The dialects that the plugins of a chain provide for its channels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from gateway.chain.entry import Entry
from gateway.chat.dialect import Dialect

_PROVIDER: Final = "_provided_by"
"""Where a dialect keeps the name of its plugin, so that a failure of any of its methods can name it."""


def provider_of(dialect: Dialect) -> str:
    """Return the name of the plugin that provides a dialect, or of the dialect's class where it is in no chain."""
    return str(vars(dialect).get(_PROVIDER, type(dialect).__name__))


def dialects_of(entries: Iterable[Entry]) -> Mapping[str, Dialect]:
    """Return the dialects by name. Raises `Misconfigured` for one that two plugins provide, or that cannot be made."""
    found: dict[str, Dialect] = {}
    for entry in entries:
        for kind in entry.plugin.dialects:
            try:
                dialect = kind()
                name = dialect.name
            except Exception as error:
                raise entry.wrong(f"'{entry.name}' has a dialect that cannot be made: {type(error).__name__}") from None
            if name in found:
                raise entry.wrong(f"'{entry.name}' provides the dialect `{name}`, as a plugin above does: keep one")
            vars(dialect)[_PROVIDER] = entry.name
            found[name] = dialect
    return found

"""The installed plugins that provide the facts which a plugin requires."""

from __future__ import annotations

from contextlib import suppress

from gateway.loading import installed, plugin_class
from gateway.plugin import Plugin


def providers_for(kind: type[Plugin]) -> list[type[Plugin]]:
    """Return the plugins that must be above `kind`, in the order of the chain.

    Raises `ValueError` if no installed plugin provides a required fact.
    """
    chosen: list[type[Plugin]] = []
    _add_providers(kind, chosen)
    return chosen


def _add_providers(kind: type[Plugin], chosen: list[type[Plugin]]) -> None:
    provided = {fact for other in chosen for fact in other.provides}
    for fact in kind.requires:
        if fact in provided:
            continue
        for name in sorted(installed()):
            with suppress(ValueError):
                other = plugin_class(name)
                if fact in other.provides and other is not kind:
                    _add_providers(other, chosen)
                    chosen.append(other)
                    break
        else:
            raise ValueError(
                f"it requires {fact.__name__}, which no installed plugin provides: install the one that does"
            )

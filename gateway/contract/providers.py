"""What must stand above a plugin: installed ones that provide what it requires."""

from __future__ import annotations

from contextlib import suppress

from gateway.loading import installed, plugin_class
from gateway.plugin import Plugin


def above(kind: type[Plugin]) -> list[type[Plugin]]:
    """Plugins in the order in which they must stand. Raises `ValueError` for a fact that none provides."""
    chosen: list[type[Plugin]] = []
    _require(kind, chosen)
    return chosen


def _require(kind: type[Plugin], chosen: list[type[Plugin]]) -> None:
    provided = {fact for other in chosen for fact in other.provides}
    for fact in kind.requires:
        if fact in provided:
            continue
        for name in sorted(installed()):
            with suppress(ValueError):
                other = plugin_class(name)
                if fact in other.provides and other is not kind:
                    _require(other, chosen)
                    chosen.append(other)
                    break
        else:
            raise ValueError(
                f"it requires {fact.__name__}, which no installed plugin provides: install the one that does"
            )

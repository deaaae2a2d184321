"""An entry of the list `plugins`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from gateway.errors import Misconfigured
from gateway.plugin import Plugin


class Entry(msgspec.Struct, frozen=True):
    """A plugin and its place in the list."""

    name: str
    plugin: Plugin
    on_error: Literal["refuse", "ignore"] = "refuse"
    wrong: Callable[[str], Misconfigured] = Misconfigured
    """Makes an error about this entry. For an entry of a file it names the place there."""

    def defines(self, *hooks: str) -> bool:
        """Return whether the plugin defines one of `hooks`."""
        return any(getattr(type(self.plugin), hook) is not getattr(Plugin, hook) for hook in hooks)

"""An entry of the list `plugins`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from gateway.errors import Misconfigured
from gateway.plugin import Plugin
from gateway.services import Services

_NAME: Final = "_name_in_chain"
"""Where a plugin keeps the name of its entry, so that an exception of any of its hooks can name it."""


def name_of(plugin: Plugin) -> str:
    """Return the name of a plugin in the chain, or of its class where it is in none."""
    return str(vars(plugin).get(_NAME, type(plugin).__name__))


class Entry:
    """A plugin and its place in the list.

    `wrong` makes an error about this entry; for an entry of a file it names the place there.
    """

    __slots__ = ("name", "on_error", "plans_end", "plans_request", "plugin", "services", "waits_at_end", "wrong")

    def __init__(
        self,
        name: str,
        plugin: Plugin,
        on_error: Literal["refuse", "ignore"] = "refuse",
        wrong: Callable[[str], Misconfigured] = Misconfigured,
    ) -> None:
        self.name: Final = name
        self.plugin: Final = plugin
        self.on_error: Final = on_error
        self.wrong: Final = wrong
        self.services: Services | None = None
        """What the plugin was started with, until it was stopped."""
        vars(plugin)[_NAME] = name
        self.plans_request: Final = self.defines("request_step")
        self.plans_end: Final = self.defines("end_step")
        self.waits_at_end: Final = self.defines("on_end")

    def defines(self, *hooks: str) -> bool:
        """Return whether the plugin defines one of `hooks`."""
        return any(getattr(type(self.plugin), hook) is not getattr(Plugin, hook) for hook in hooks)

    def __repr__(self) -> str:
        return f"<Entry {self.name}>"

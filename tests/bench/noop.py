"""A plugin that does nothing at the begin and at the end of a request."""

from __future__ import annotations

from gateway import Exchange, Plugin


class Noop(Plugin):
    """A plugin for measuring the cost of a plugin in the chain."""

    async def on_request(self, exchange: Exchange) -> None:
        """Do nothing."""

    async def on_end(self, exchange: Exchange) -> None:
        """Do nothing."""

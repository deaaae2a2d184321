"""Plugins that do nothing, for measuring what a plugin costs. A gateway finds this file beside its configuration."""

from __future__ import annotations

from gateway import Exchange, Plugin


class Noop(Plugin):
    """A plugin that does nothing at the begin and at the end of a request."""

    async def on_request(self, exchange: Exchange) -> None:
        """Do nothing."""

    async def on_end(self, exchange: Exchange) -> None:
        """Do nothing."""


class Watch(Plugin):
    """A plugin that gets every event and does nothing with it."""

    def on_chunk(self, exchange: Exchange, chunk: bytes) -> None:
        """Do nothing."""

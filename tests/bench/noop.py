"""A plugin whose `on_request` and `on_end` do nothing."""

from __future__ import annotations

from gateway import Exchange, Plugin


class Noop(Plugin):
    """Measures what a place in the chain costs."""

    async def on_request(self, exchange: Exchange) -> None:
        """Nothing."""

    async def on_end(self, exchange: Exchange) -> None:
        """Nothing."""

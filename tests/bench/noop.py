"""A plugin that is asked at both ends of a request and does nothing."""

from __future__ import annotations

from gateway import Exchange, Plugin


class Noop(Plugin):
    """What being in the chain costs."""

    async def on_request(self, exchange: Exchange) -> None:
        """Nothing."""

    async def on_end(self, exchange: Exchange) -> None:
        """Nothing."""

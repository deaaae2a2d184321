"""Plugins with a bug."""

from gateway import Exchange, Plugin


class Broken(Plugin):
    """A plugin that fails on every request."""

    async def on_request(self, exchange: Exchange) -> None:
        raise RuntimeError("boom")


class Fragile(Plugin):
    """A plugin that fails on requests with the header `x-break`."""

    async def on_request(self, exchange: Exchange) -> None:
        if "x-break" in exchange.request.headers:
            raise RuntimeError("boom")

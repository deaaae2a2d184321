"""A plugin with a bug."""

from gateway import Exchange, Plugin


class Broken(Plugin):
    """Fails on every request."""

    async def on_request(self, exchange: Exchange) -> None:
        raise RuntimeError("boom")


class Fragile(Plugin):
    """Fails on requests that ask for it."""

    async def on_request(self, exchange: Exchange) -> None:
        if "x-break" in exchange.request.headers:
            raise RuntimeError("boom")

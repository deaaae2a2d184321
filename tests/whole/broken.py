"""A plugin with a bug."""

from gateway import Exchange, Plugin


class Broken(Plugin):
    """Fails on every request."""

    async def on_request(self, exchange: Exchange) -> None:
        raise RuntimeError("boom")

"""A subscription to channels of a store, on a connection of its own.

A message is lost where the connection breaks, or where its server is cut off from the one that takes the commands. Nothing in
the protocol tells: so a subscriber publishes messages to itself, which make `listen` end where they do not arrive.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisClusterException, RedisError

from gateway.base.errors import StoreAway
from gateway.store.client.client import Client
from gateway.store.client.connection import translated


class Subscription:
    """The messages of `channels`. Those of every server of a store arrive, whatever its topology."""

    def __init__(self, client: Client, channels: Sequence[str], on_message: Callable[[str, bytes], None]) -> None:
        self._client = client
        self._channels = channels
        self._on_message = on_message

    async def listen(self, on_subscribed: Callable[[], None], silent_s: float = math.inf) -> None:
        """Call `on_subscribed`, then `on_message` with the channel and the text of each message.

        Raises `StoreAway` when the connection is lost, and where nothing arrives for `silent_s`.
        """
        try:
            async with asyncio.timeout(self._client.timeout_s):
                link = await self._client.new_link()
        except (RedisError, RedisClusterException, OSError) as error:
            raise translated(error) from None
        try:
            async with asyncio.timeout(self._client.timeout_s):
                await link.connect()  # type: ignore[no-untyped-call, unused-ignore]
                await link.send_command("SUBSCRIBE", *self._channels)
                for _ in self._channels:
                    await _read(link, math.inf)
            on_subscribed()
            while (push := await _read(link, silent_s)) is not None:
                if push[0] == b"message":
                    self._on_message(push[1].decode(), push[2])
            raise StoreAway("no message arrives")
        except (RedisError, OSError) as error:
            raise translated(error) from None
        finally:
            await link.disconnect(nowait=True)


async def _read(link: AbstractConnection, timeout_s: float) -> list[bytes] | None:
    """Return the next push of the server, None where there is none in time."""
    push: list[bytes] | None = await link.read_response(timeout=timeout_s, disconnect_on_error=False, push_request=True)
    return push

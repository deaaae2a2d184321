"""One store, whatever its shape: the commands of one loop tick share one write.

Rules that hold here and nowhere else:

1. **Nothing is sent twice.** redis-py re-sends up to ten times by default; here the retry is off, and whoever may repeat
   a call (it carries its own idempotency key) repeats it himself.
2. **Nobody waits longer than `timeout_s`**, whether the store is frozen, slow or gone: then `StoreAway`.
3. **A caller that gives up leaves nothing behind.** Connections are owned by the client, never by the task that asked, so a
   cancelled task cannot leave a reply on a connection for the next one to read. What was not sent yet is not sent at all.

redis-py opens every connection: URLs, TLS, Sentinel, passwords. It does all for a cluster. To other stores commands are sent
without it, since its pipeline costs more than all else that a request does.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

from redis.asyncio import RedisCluster
from redis.exceptions import RedisError

from gateway.errors import StoreAway
from gateway.store.client.connection import Argument, Shape
from gateway.store.client.topology import Topology, from_url

__all__ = ["Argument", "Client", "Script"]

_PAGE: Final = 500


class Script:
    """A Lua script, called by its digest and sent whole when the store does not know it."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    @classmethod
    def load(cls, *files: Path) -> Script:
        """Return the script that `files` make up in this order, named like the last of them."""
        return cls(files[-1].stem, "\n".join(file.read_text(encoding="utf-8") for file in files))

    def __repr__(self) -> str:
        return f"Script({self.name!r}, {self.digest[:8]})"


class Client:
    """A store that coalesces. `submit` sends with the rest of the tick, `call` waits for the reply.

    Replies are as redis-py gives them for RESP3, with bytes where it has them.
    """

    def __init__(self, servers: Topology, *, timeout_s: float = 0.5) -> None:
        self._servers = servers
        self.redis = servers.redis
        """redis-py's client of the same store, for what is asked of every master of a cluster."""
        self.timeout_s = timeout_s
        self._shapes: dict[Any, Shape] = dict(servers.redis.response_callbacks)

    @classmethod
    def connect(cls, url: str, *, timeout_s: float = 0.5, connections: int = 4) -> Client:
        """A client for `redis://`, `rediss://`, `unix://`, `sentinel://host:port,host:port/NAME` or `cluster://host:port`.

        Nothing is sent yet. `connections` bounds those to each node of a cluster; any other store has one. Raises
        `Misconfigured` for a URL of another kind; its text never holds the URL.
        """
        return cls(from_url(url, timeout_s, connections), timeout_s=timeout_s)

    def submit(self, *command: Argument) -> asyncio.Future[Any]:
        """Send a command with the others of this tick. The future gets the reply, `StoreAway` or `StoreError`."""
        return self._servers.submit(command, self._shapes.get(command[0]))

    async def call(self, *command: Argument) -> Any:
        """The reply to one command. Raises `StoreAway` or `StoreError`."""
        return await self.submit(*command)

    def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Argument] = ()) -> asyncio.Future[Any]:
        """The reply of a script, as `submit` gives one. All its keys are of one account, so in one slot of a cluster."""
        rest = (len(keys), *keys, *arguments)
        return self._servers.submit(("EVALSHA", script.digest, *rest), None, ("EVAL", script.text, *rest))

    async def keys(self, pattern: str) -> AsyncIterator[str]:
        """Every key that matches, in no order and perhaps more than once. Raises `StoreAway` or `StoreError`."""
        if isinstance(self.redis, RedisCluster):  # which knows how to ask all masters
            try:
                async for key in self.redis.scan_iter(match=pattern, count=_PAGE):
                    yield key.decode()
            except (RedisError, OSError) as error:
                raise StoreAway(f"the store cannot serve: {type(error).__name__}") from None
            return
        cursor = None
        while cursor != 0:
            cursor, page = await self.call("SCAN", cursor or 0, "MATCH", pattern, "COUNT", _PAGE)
            for key in page:
                yield key.decode()

    async def follow(self) -> None:
        """Go on with the server that has taken over. A primary that Sentinel has replaced may answer for seconds yet."""
        await self._servers.follow()

    async def close(self) -> None:
        """Wait for the replies that are due, then close the connections."""
        await self._servers.close()
        await self.redis.aclose()  # type: ignore[no-untyped-call, unused-ignore]

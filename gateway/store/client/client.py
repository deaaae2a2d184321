"""A client of one store, whatever its topology. The commands of one event loop tick are pipelined in one write.

1. **No command is sent twice.** redis-py retries up to ten times by default; here retries are off. A caller retries a call
   itself if the call has an idempotency key.
2. **No call takes longer than `timeout_s`**, whether the store is frozen, slow or gone: then it raises `StoreAway`.
3. **A cancelled call leaves nothing behind.** The client owns the connections, not the calling task, so a cancelled task
   cannot leave a reply on a connection for the next one to read. A command that was not sent yet is not sent.

redis-py opens every connection (URLs, TLS, Sentinel, passwords), and sends all commands to a cluster. Commands to other
stores bypass it, since its pipeline costs more than everything else that a request does.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gateway.base.errors import StoreAway
from gateway.store.client.protocol import Argument

if TYPE_CHECKING:  # redis-py takes as long to import as most commands to run: see `connect`
    from gateway.store.client.connection import Convert
    from gateway.store.client.topology import Topology

__all__ = ["Argument", "Client", "Script"]

_PAGE: Final = 500


class Script:
    """A Lua script, called by its digest (EVALSHA), and sent as text (EVAL) if the store does not know it."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    @classmethod
    def load(cls, *files: Path) -> Script:
        """Return the script whose text is that of `files` in this order, named after the last of them."""
        return cls(files[-1].stem, "\n".join(file.read_text(encoding="utf-8") for file in files))

    def __repr__(self) -> str:
        return f"Script({self.name!r}, {self.digest[:8]})"


class Client:
    """A pipelining client. `submit` sends a command with the others of the tick, `call` waits for its reply.

    Replies have the types that redis-py returns for RESP3, with bytes for strings.
    """

    def __init__(self, topology: Topology, *, timeout_s: float = 0.5) -> None:
        self._topology = topology
        self.redis = topology.redis
        """redis-py's client of the same store, for commands to every master of a cluster."""
        self.sharded = topology.sharded
        """Whether keys are spread over several servers, so that a script may use keys of one hash slot only."""
        self.timeout_s = timeout_s
        self._converters: dict[Any, Convert] = dict(topology.redis.response_callbacks)

    @classmethod
    def connect(cls, url: str, *, timeout_s: float = 0.5, connections: int = 4) -> Client:
        """Return a client for `redis://`, `rediss://`, `unix://`, `sentinel://host:port,host:port/NAME` or `cluster://host:port`.

        Nothing is sent yet. `connections` limits those to each node of a cluster; any other store has one. Raises
        `Misconfigured` for another kind of URL; its text never contains the URL.
        """
        from gateway.store.client.topology import from_url

        return cls(from_url(url, timeout_s, connections), timeout_s=timeout_s)

    def submit(self, *command: Argument) -> asyncio.Future[Any]:
        """Send a command with the others of this tick. The future gets the reply, `StoreAway` or `StoreError`."""
        return self._topology.submit(command, self._converters.get(command[0]))

    async def call(self, *command: Argument) -> Any:
        """Return the reply to a command. Raises `StoreAway` or `StoreError`."""
        return await self.submit(*command)

    def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Argument] = ()) -> asyncio.Future[Any]:
        """Run a script and return the future of its reply, as `submit` does. Its keys must be in one hash slot."""
        return self._topology.submit(("EVALSHA", script.digest, len(keys), *keys, *arguments), None, script.text)

    def send(self, command: bytes, script: Script) -> asyncio.Future[Any]:
        """Do as `run` with a command that is packed already. Not for a store whose keys are `sharded`."""
        return self._topology.send(command, None, script.text)

    async def keys(self, pattern: str) -> AsyncIterator[str]:
        """Yield every key that matches, in no order, possibly more than once. Raises `StoreAway` or `StoreError`."""
        if self.sharded:  # redis-py scans all masters
            from redis.exceptions import RedisError

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
        """Switch to the new primary if Sentinel has replaced it; the old one may still respond for seconds."""
        await self._topology.follow()

    async def close(self) -> None:
        """Wait for the pending replies, then close the connections."""
        await self._topology.close()
        await self.redis.aclose()  # type: ignore[no-untyped-call, unused-ignore]

"""One store, whatever its shape: the commands of one loop tick share one pipeline.

Rules that hold here and nowhere else:

1. **Nothing is sent twice.** redis-py re-sends up to ten times by default; here the retry is off, and whoever may repeat
   a call (it carries its own idempotency key) repeats it himself.
2. **Nobody waits longer than `timeout_s`**, whether the store is frozen, slow or gone: then `StoreAway`.
3. **A caller that gives up leaves nothing behind.** Batches are owned by the client, never by the task that asked, so a
   cancelled task cannot leave a reply on a connection for the next one to read. What was not sent yet is not sent at all.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from redis.asyncio import BlockingConnectionPool, Redis, RedisCluster, Sentinel
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    ClusterDownError,
    MovedError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import (
    ConnectionError as RedisConnectionError,
)
from redis.exceptions import (
    TimeoutError as RedisTimeoutError,
)
from redis.maint_notifications import MaintNotificationsConfig

from gateway.errors import Misconfigured, StoreAway, StoreError

Argument = str | bytes | int

MOMENTARY: Final = (
    RedisConnectionError,
    RedisTimeoutError,
    ReadOnlyError,
    OutOfMemoryError,
    ClusterDownError,
    MovedError,
    TryAgainError,
    OSError,
    asyncio.TimeoutError,
)
"""What a store says or does when it cannot serve just now (LOADING and MASTERDOWN are connection errors to redis-py)."""

MOMENTARY_WORDS: Final = (
    "LOADING",
    "MASTERDOWN",
    "READONLY",
    "OOM",
    "CLUSTERDOWN",
    "NOREPLICAS",
    "BUSY ",
    "TRYAGAIN",
    "MISCONF",
)


class Script:
    """A Lua script, called by its digest and sent whole when the store does not know it."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    @classmethod
    def load(cls, name: str) -> Script:
        """The script `gateway/store/NAME.lua`."""
        return cls(name, Path(__file__).with_name(f"{name}.lua").read_text(encoding="utf-8"))

    def __repr__(self) -> str:
        return f"Script({self.name!r}, {self.digest[:8]})"


class Client:
    """A connection to the store that coalesces. `submit` sends with the rest of the tick, `call` waits for the reply.

    `connections` batches may be under way at once; what comes while all are busy waits and goes out as one batch.
    """

    def __init__(self, redis: Redis | RedisCluster, *, timeout_s: float = 0.5, connections: int = 4) -> None:
        self.redis = redis
        self.timeout_s = timeout_s
        self._places = connections
        self._batch: _Batch | None = None
        self._waiting: list[_Batch] = []
        self._under_way: set[asyncio.Task[None]] = set()

    @classmethod
    def connect(cls, url: str, *, timeout_s: float = 0.5, connections: int = 4) -> Client:
        """A client for `redis://`, `rediss://`, `unix://`, `sentinel://host:port,host:port/NAME` or `cluster://host:port`.

        Nothing is sent yet. Raises `Misconfigured` for a URL of another kind; its text never holds the URL.
        """
        return cls(_open(url, timeout_s, connections), timeout_s=timeout_s, connections=connections)

    def submit(self, *command: Argument) -> asyncio.Future[Any]:
        """Put a command on this tick's batch. The future gets the reply, `StoreAway` or `StoreError`."""
        batch = self._batch
        if batch is None:
            batch = self._batch = _Batch()
            loop = asyncio.get_running_loop()
            batch.timer = loop.call_later(self.timeout_s, batch.fail, StoreAway("the store did not answer in time"))
            loop.call_soon(self._dispatch, batch)
        return batch.add(command)

    async def call(self, *command: Argument) -> Any:
        """The reply to one command. Raises `StoreAway` or `StoreError`."""
        return await self.submit(*command)

    async def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Argument] = ()) -> Any:
        """The reply of a script. All its keys are of one account, so they live in one slot of a cluster."""
        try:
            return await self.submit("EVALSHA", script.digest, len(keys), *keys, *arguments)
        except _UnknownScript:
            return await self.submit("EVAL", script.text, len(keys), *keys, *arguments)

    async def close(self) -> None:
        """Wait for the batches under way, then close the connections."""
        while self._under_way:
            await asyncio.wait(self._under_way)
        await self.redis.aclose()  # type: ignore[no-untyped-call, unused-ignore]

    def _dispatch(self, batch: _Batch) -> None:
        if self._batch is batch:
            self._batch = None
        if self._places == 0:
            self._waiting.append(batch)
            return
        self._places -= 1
        task = asyncio.get_running_loop().create_task(self._send(batch))
        self._under_way.add(task)
        task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._places += 1
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            merged = waiting[0]
            for batch in waiting[1:]:
                merged.take(batch)
            self._dispatch(merged)

    async def _send(self, batch: _Batch) -> None:
        commands, futures = batch.live()
        if not commands:
            return
        try:
            pipeline = self.redis.pipeline(transaction=False)
            for command in commands:
                pipeline.execute_command(*command)
            replies = await pipeline.execute(raise_on_error=False)
        except (TimeoutError, RedisError, OSError) as error:
            replies = [error] * len(futures)
        finally:
            batch.cancel_timer()
        for future, reply in zip(futures, replies, strict=True):
            if future.done():
                continue
            if isinstance(reply, Exception):
                future.set_exception(_translated(reply))
            else:
                future.set_result(reply)


class _Batch:
    """The commands of one tick and who waits for their replies."""

    def __init__(self) -> None:
        self.commands: list[tuple[Argument, ...]] = []
        self.futures: list[asyncio.Future[Any]] = []
        self.timer: asyncio.TimerHandle | None = None
        self.taken: list[_Batch] = []

    def add(self, command: tuple[Argument, ...]) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.commands.append(command)
        self.futures.append(future)
        return future

    def take(self, other: _Batch) -> None:
        """Send `other` with this one; each keeps the moment at which it gives up."""
        self.taken.append(other)

    def live(self) -> tuple[list[tuple[Argument, ...]], list[asyncio.Future[Any]]]:
        """What somebody still waits for: a command whose caller gave up is not sent."""
        pairs = [
            (command, future)
            for batch in (self, *self.taken)
            for command, future in zip(batch.commands, batch.futures, strict=True)
            if not future.done()
        ]
        return [command for command, _ in pairs], [future for _, future in pairs]

    def fail(self, error: Exception) -> None:
        for future in self.futures:
            if not future.done():
                future.set_exception(error)

    def cancel_timer(self) -> None:
        for batch in (self, *self.taken):
            if batch.timer is not None:
                batch.timer.cancel()


class _UnknownScript(StoreError):
    """The store does not know the script's digest: it restarted, or its cache was flushed."""


def _translated(error: Exception) -> Exception:
    if isinstance(error, NoScriptError):
        return _UnknownScript("NOSCRIPT")
    if isinstance(error, MOMENTARY) or str(error).startswith(MOMENTARY_WORDS):
        return StoreAway(f"the store cannot serve: {type(error).__name__}")
    if isinstance(error, ResponseError):
        return StoreError(str(error)[:200])
    return StoreAway(f"the store cannot serve: {type(error).__name__}")


def _open(url: str, timeout_s: float, connections: int) -> Redis | RedisCluster:
    parts = urlsplit(url)
    options: dict[str, Any] = {
        "protocol": 3,
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }
    if parts.scheme in ("redis", "rediss", "unix"):
        pool = BlockingConnectionPool.from_url(url, max_connections=connections, timeout=timeout_s, **options)
        return Redis.from_pool(pool)  # so that closing the client closes the connections
    if parts.username:
        options["username"] = unquote(parts.username)
    if parts.password:
        options["password"] = unquote(parts.password)
    if parts.scheme in ("sentinel", "cluster"):
        hosts = [_host_port(item) for item in parts.netloc.rpartition("@")[2].split(",")]
        if parts.scheme == "sentinel":
            name = parts.path.strip("/") or "mymaster"
            sentinel = Sentinel(hosts, sentinel_kwargs={"socket_timeout": timeout_s}, **options)  # type: ignore[no-untyped-call, unused-ignore]
            return sentinel.master_for(name, max_connections=connections)  # type: ignore[no-untyped-call, no-any-return, unused-ignore]
        from redis.asyncio.cluster import ClusterNode

        if parse_qs(parts.query).get("ssl") == ["true"]:
            options["ssl"] = True
        return RedisCluster(startup_nodes=[ClusterNode(host, port) for host, port in hosts], **options)  # type: ignore[abstract, unused-ignore]
    raise Misconfigured(
        "redis: must be `embedded` or begin with redis://, rediss://, unix://, sentinel:// or cluster://"
    )


def _host_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    try:
        return host, int(port)
    except ValueError:
        raise Misconfigured(
            "redis: every host needs its port, as in sentinel://10.0.0.1:26379,10.0.0.2:26379/mymaster"
        ) from None

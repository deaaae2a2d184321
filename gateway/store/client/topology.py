"""The topologies of a store, by its URL: one server, the primary that Sentinel names, or a cluster."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qs, unquote, urlsplit

from redis.asyncio import Redis, RedisCluster, Sentinel
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError
from redis.maint_notifications import MaintNotificationsConfig

from gateway.base.errors import Misconfigured, StoreAway
from gateway.store.client.connection import CALLS, Convert, SingleServer, translated
from gateway.store.client.protocol import Command

TRIES: Final = 2
"""A command may follow one redirection. While its slot migrates, it must not block others by further attempts."""


def from_url(url: str, timeout_s: float, connections: int) -> Topology:
    """Return the topology that a URL names; nothing is sent. Raises `Misconfigured`, whose text never contains the URL."""
    try:
        return _from_url(url, timeout_s, connections)
    except (ValueError, TypeError):
        # The texts of these errors may contain a piece of the password.
        raise Misconfigured(
            "redis: this URL cannot be used. It is like redis://:PASSWORD@host:6379/0; in the password write / as %2F, "
            "# as %23, ? as %3F and @ as %40; options after the ? are those of redis-py for this kind of URL"
        ) from None


def place_of(url: str) -> str:
    """Return where the store of a URL is, which `from_url` accepts: its hosts and ports, or its socket; never a password."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return parts.path
    hosts = parts.netloc.rpartition("@")[2] or "localhost"
    return hosts if re.search(r":[0-9]+$", hosts) else f"{hosts}:6379"


@contextmanager
def naming_the_store(url: str) -> Iterator[None]:
    """Say in errors of a store that does not answer where it is."""
    try:
        yield
    except StoreAway as error:
        place = f" (it is at {place_of(url)})" if str(error).startswith("the store") else ""
        raise StoreAway(f"{error}{place}") from None


def _from_url(url: str, timeout_s: float, connections: int) -> Topology:
    parts = urlsplit(url)
    options: dict[str, Any] = {
        "protocol": 3,
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
        "driver_info": None,  # saves a round trip at each connection
    }
    if parts.scheme in ("redis", "rediss", "unix"):
        if parts.scheme != "unix" and not re.fullmatch(r"/*[0-9]*/*", parts.path):
            raise ValueError  # redis-py would ignore a database that is not a number
        redis = Redis.from_url(url, **options)
        redis.connection_pool.make_connection()  # type: ignore[no-untyped-call, unused-ignore]
        return SingleServer(
            redis, timeout_s
        )  # an option that redis-py does not know is refused above, not at the first call
    if parts.scheme not in ("sentinel", "cluster"):
        raise Misconfigured(
            "redis: must be `embedded` or begin with redis://, rediss://, unix://, sentinel:// or cluster://"
        )
    if parts.username:
        options["username"] = unquote(parts.username)
    if parts.password:
        options["password"] = unquote(parts.password)
    query = parse_qs(parts.query)
    encrypted: dict[str, Any] = {"ssl": True} if query.get("ssl") == ["true"] else {}
    if encrypted and "ssl_ca_certs" in query:
        encrypted["ssl_ca_certs"] = query["ssl_ca_certs"][0]
    options |= encrypted
    hosts = [_host_port(item) for item in parts.netloc.rpartition("@")[2].split(",")]
    if parts.scheme == "sentinel":
        sentinel = Sentinel(hosts, sentinel_kwargs={"socket_timeout": timeout_s, **encrypted}, **options)  # type: ignore[no-untyped-call, unused-ignore]
        return SingleServer(sentinel.master_for(parts.path.strip("/") or "mymaster"), timeout_s)  # type: ignore[no-untyped-call, unused-ignore]
    nodes = [ClusterNode(host, port) for host, port in hosts]
    spared = 2 * connections  # half of them are for calls outside `submit`: SCAN and INFO
    return Cluster(RedisCluster(startup_nodes=nodes, max_connections=spared, **options), timeout_s, connections)  # type: ignore[abstract, unused-ignore]


class Cluster:
    """redis-py's client of a cluster, with a task for each command and a limit of concurrent ones.

    The limit is here since redis-py does not wait for a free connection: if all to a node are busy, it fails. Its methods are
    those of `SingleServer`.
    """

    sharded = True

    def __init__(self, redis: RedisCluster, timeout_s: float, at_once: int) -> None:
        redis.RedisClusterRequestTTL = TRIES
        self.redis: Redis | RedisCluster = redis
        self._cluster = redis
        self._timeout_s = timeout_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(at_once)

    def submit(self, command: Command, convert: Convert | None, script: str | None = None) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        task = loop.create_task(self._ask(command, script, future))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return future

    def send(self, packed: bytes, convert: Convert | None, script: str | None) -> asyncio.Future[Any]:
        raise NotImplementedError("redis-py chooses the node of a command by its keys")

    async def follow(self) -> None:
        """Do nothing: redis-py follows the redirections of the nodes."""

    async def close(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _ask(self, command: Command, script: str | None, future: asyncio.Future[Any]) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        overdue = loop.call_later(self._timeout_s, _fail, future, StoreAway("the store did not answer in time"))
        try:
            async with self._places:
                if future.done():
                    return
                try:
                    reply = await self.redis.execute_command(*command)  # type: ignore[no-untyped-call, unused-ignore]
                except NoScriptError:
                    text = command if script is None else ("EVAL", script, *command[2:])
                    reply = await self.redis.execute_command(*text)  # type: ignore[no-untyped-call, unused-ignore]
        except Exception as error:
            meant = translated(error)
            CALLS.failed(meant)
            _fail(future, meant)
        else:
            CALLS.answered(loop.time() - began, 1)
            if not future.done():
                future.set_result(reply)
        finally:
            overdue.cancel()


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # mark it as retrieved, so that asyncio never logs it


def _host_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    try:
        return host, int(port)
    except ValueError:
        raise Misconfigured(
            "redis: every host needs its port, as in sentinel://10.0.0.1:26379,10.0.0.2:26379/mymaster"
        ) from None


Topology: TypeAlias = SingleServer | Cluster
"""A destination for commands."""

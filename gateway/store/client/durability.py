"""Durability of the store: checks that it is safe for balances, and sends recent writes again to a new master.

A safe store keeps acknowledged writes over a restart, and evicts no key. A new master may lack writes that the old one
acknowledged, so they are buffered and sent again.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from itertools import chain
from typing import Any, Final

from gateway.base.errors import Misconfigured, StoreAway
from gateway.config.document import Document
from gateway.store.client.client import Client
from gateway.store.client.protocol import REFUSED

MIN_MAJOR_VERSION = 7

RETENTION_S: Final = 60
"""How long a line is kept at least, unless the buffer is full: twice the time after which Sentinel, by default, considers a
primary down.
"""

SEGMENT_BYTES: Final = 32 * 1024
"""Bytes of a segment, since an object for each line would take many times the memory of a short one."""

SEGMENT_S: Final = 10
"""The maximum time between the first and the last line of a segment, since they are dropped together."""


async def check_store(client: Client, accept_loss: bool) -> list[str]:
    """Return the weaknesses of the store, one line each; empty if there are none. Checks every master of a cluster.

    Raises `Misconfigured` with all weaknesses unless `accept_loss`, and `StoreAway`.
    """
    weak = list(dict.fromkeys(line for info in await info_of_masters(client) for line in _weaknesses(info)))
    if weak and not accept_loss:
        raise Misconfigured(f"redis: the store is not safe for money: {'; '.join(weak)}; or set `accept_loss: true`")
    return weak


async def info_of_masters(client: Client, *sections: str) -> list[dict[str, Any]]:
    """Return the reply to INFO, with these sections, of each master of the store. Raises `StoreAway`."""
    if not client.sharded:
        return [await client.call("INFO", *sections)]
    from redis.asyncio import RedisCluster
    from redis.exceptions import RedisClusterException, RedisError

    redis = client.redis
    assert isinstance(redis, RedisCluster)  # noqa: S101 - its keys are spread over servers
    try:
        async with asyncio.timeout(client.timeout_s):
            await redis.initialize()  # type: ignore[no-untyped-call, unused-ignore]
            masters = redis.get_primaries()
            return [await redis.execute_command("INFO", *sections, target_nodes=master) for master in masters]  # type: ignore[no-untyped-call, unused-ignore]
    except (RedisError, RedisClusterException, OSError) as error:
        raise StoreAway(f"the store cannot serve: {type(error).__name__}") from None


def _weaknesses(info: dict[str, Any]) -> list[str]:
    weak = []
    if info.get("aof_enabled") != 1:
        weak.append("its append-only file is off, so a restart loses money: set `appendonly yes`")
    if info.get("maxmemory_policy") != "noeviction":
        weak.append("it evicts keys when memory is full: set `maxmemory-policy noeviction`")
    if int(str(info.get("redis_version", "0")).split(".")[0]) < MIN_MAJOR_VERSION:
        weak.append(f"it is older than version {MIN_MAJOR_VERSION}")
    return weak


class Masters:
    """Detects a failover: compares the present masters of the store with the masters at the previous check."""

    def __init__(self, *clients: Client) -> None:
        self._clients = clients
        self._masters: frozenset[str] | None = None

    async def replay_after_failover(self, *repeats: Callable[[], Awaitable[int]]) -> list[int]:
        """Call each of `repeats` if a master may have changed; return their results, 0 for each that was not called.

        Call it at start and every few seconds. Raises `StoreAway`; the next call then calls all of them.
        """
        for client in self._clients:
            await client.follow()
        previous, self._masters = self._masters, frozenset()  # if this fails, a master may change before the next check
        infos = await info_of_masters(self._clients[-1], "server", "replication")
        # A master that was replaced and promoted again is the same process with another replication history.
        masters = frozenset(f"{info['run_id']} {info['master_replid']}" for info in infos)
        changed = previous is not None and not masters <= previous
        results = [await repeat() if changed else 0 for repeat in repeats]
        self._masters = masters
        return results


class ReplayBuffer:
    """Recently acknowledged lines, oldest first, in at most `max_bytes`.

    Lines are stored in segments, each with when its last line came, in monotonic seconds. Nothing is compressed: that took more
    time than all else that a request does with the buffer, for a failover that seldom comes.
    """

    def __init__(self, max_bytes: int = sys.maxsize) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._segments: deque[tuple[int, bytes]] = deque()
        self._open: list[bytes] = []
        self._size = 0
        """The bytes of the open segment."""
        self._began = 0

    def add(self, line: bytes) -> None:
        """Add a line, which must not contain a line feed, and drop the oldest lines beyond the time and the bytes that are kept."""
        now = time.monotonic()
        if not self._open:
            self._began = int(now)
        elif self._size + len(line) >= SEGMENT_BYTES or now >= self._began + SEGMENT_S:
            self._close(int(now))
        self._open.append(line)
        self._size += len(line) + 1

    def _close(self, now: int) -> None:
        lines = b"\n".join(self._open) + b"\n"
        self._open, self._size = [], 0
        self._segments.append((min(now, self._began + SEGMENT_S), lines))
        self._began = now
        self._bytes += len(lines)
        self._drop_old(now)

    def _drop_old(self, now: int) -> None:
        segments = self._segments
        while segments and (segments[0][0] < now - RETENTION_S or self._bytes > self._max_bytes):
            self._bytes -= len(segments.popleft()[1])

    def __iter__(self) -> Iterator[bytes]:
        now = int(time.monotonic())
        self._drop_old(now)
        if self._began + SEGMENT_S < now - RETENTION_S:
            self._open, self._size = [], 0
        closed = [lines for _, lines in self._segments]
        return chain(chain.from_iterable(lines.split(b"\n")[:-1] for lines in closed), self._open.copy())


def refuse_database(document: Document, error: StoreAway) -> None:
    """Raise `Misconfigured` where the store has no database of the number in `redis:`, or refuses its password."""
    if text := next((each for each in REFUSED.values() if each in str(error)), ""):
        raise document.wrong(("redis",), text) from None
    if "DB index is out of range" in str(error):
        text = (
            "the store has no database of this number; use a smaller one, or raise `databases` in the store's settings"
        )
        raise document.wrong(("redis",), text) from None

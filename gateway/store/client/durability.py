"""Whether a store may keep money: what it acknowledged survives its restart, and nothing is evicted."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.asyncio import RedisCluster
from redis.exceptions import RedisError

from gateway.errors import Misconfigured, StoreAway
from gateway.store.client.client import Client

OLDEST_MAJOR = 7


async def check_store(client: Client, accept_loss: bool) -> list[str]:
    """What is weak about this store, one line each; empty where nothing is. Of a cluster every master is looked at.

    Raises `Misconfigured` with all of them unless `accept_loss`, and `StoreAway`.
    """
    weak = list(dict.fromkeys(line for told in await told_by_masters(client) for line in _weaknesses(told)))
    if weak and not accept_loss:
        raise Misconfigured(f"redis: the store is not safe for money: {'; '.join(weak)}; or set `accept_loss: true`")
    return weak


async def told_by_masters(client: Client, *sections: str) -> list[dict[str, Any]]:
    """What INFO tells, in these sections, of every master of the store: one, or those of a cluster. Raises `StoreAway`."""
    redis = client.redis
    if not isinstance(redis, RedisCluster):
        return [await client.call("INFO", *sections)]
    try:
        async with asyncio.timeout(client.timeout_s):
            await redis.initialize()  # type: ignore[no-untyped-call, unused-ignore]
            masters = redis.get_primaries()
            return [await redis.execute_command("INFO", *sections, target_nodes=master) for master in masters]  # type: ignore[no-untyped-call, unused-ignore]
    except (RedisError, OSError) as error:
        raise StoreAway(f"the store cannot serve: {type(error).__name__}") from None


def _weaknesses(told: dict[str, Any]) -> list[str]:
    weak = []
    if told.get("aof_enabled") != 1:
        weak.append("its append-only file is off, so a restart loses money: set `appendonly yes`")
    if told.get("maxmemory_policy") != "noeviction":
        weak.append("it evicts keys when memory is full: set `maxmemory-policy noeviction`")
    if int(str(told.get("redis_version", "0")).split(".")[0]) < OLDEST_MAJOR:
        weak.append(f"it is older than version {OLDEST_MAJOR}")
    return weak

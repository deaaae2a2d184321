"""The check that a store is safe for balances: acknowledged writes survive a restart, and no key is evicted."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.errors import Misconfigured, StoreAway
from gateway.store.client.client import Client

MIN_MAJOR_VERSION = 7


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

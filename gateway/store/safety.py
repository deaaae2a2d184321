"""Whether a store may keep money: what it acknowledged survives its restart, and nothing is evicted."""

from __future__ import annotations

from gateway.errors import Misconfigured
from gateway.store.client import Client

OLDEST_MAJOR = 7


async def check_store(client: Client, accept_loss: bool) -> list[str]:
    """What is weak about this store, one line each; empty where nothing is.

    Raises `Misconfigured` with all of them unless `accept_loss`, and `StoreAway`.
    """
    told = await client.call("INFO")
    weak = []
    if told.get("aof_enabled") != 1:
        weak.append("its append-only file is off, so a restart loses money: set `appendonly yes`")
    if told.get("maxmemory_policy") != "noeviction":
        weak.append("it evicts keys when memory is full: set `maxmemory-policy noeviction`")
    if int(str(told.get("redis_version", "0")).split(".")[0]) < OLDEST_MAJOR:
        weak.append(f"it is older than version {OLDEST_MAJOR}")
    if weak and not accept_loss:
        raise Misconfigured(f"redis: the store is not safe for money: {'; '.join(weak)}; or set `accept_loss: true`")
    return weak

"""Detection of failovers. A new master may lack writes that the old one acknowledged, so they are sent again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gateway.store.client.client import Client
from gateway.store.client.durability import info_of_masters


class Masters:
    """Compares the masters of a store, which these clients use, with those of the previous check."""

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

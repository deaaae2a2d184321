"""Which masters of the store answer. One that took over may have forgotten what another acknowledged: it is told again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gateway.store.client.client import Client
from gateway.store.client.durability import told_by_masters


class Masters:
    """Looks whether the masters of a store, which these clients use, are those of the last look."""

    def __init__(self, *clients: Client) -> None:
        self._clients = clients
        self._masters: frozenset[str] | None = None

    async def replay_after_failover(self, *repeats: Callable[[], Awaitable[int]]) -> list[int]:
        """Do each of `repeats` where a master may not be the one before; what each returned, 0 where it was not done.

        Call it at start and every few seconds. Raises `StoreAway`; then the next call does them in any case.
        """
        for client in self._clients:
            await client.follow()
        known, self._masters = self._masters, frozenset()  # where nobody answers now, there may be another meanwhile
        told = await told_by_masters(self._clients[-1], "server", "replication")
        # One that was replaced and took over again is the same process, with another history.
        masters = frozenset(f"{each['run_id']} {each['master_replid']}" for each in told)
        forgetful = known is not None and not masters <= known
        repeated = [await repeat() if forgetful else 0 for repeat in repeats]
        self._masters = masters
        return repeated

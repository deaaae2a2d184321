"""Which masters of the store answer. One that took over may have forgotten what another acknowledged: it is told again."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from itertools import chain
from typing import Final

from gateway.store.client import Client
from gateway.store.safety import told_by_masters

RECENT_S: Final = 120
"""How long what was acknowledged is remembered."""


class Recent:
    """Lines that were acknowledged lately, at most `most` bytes of them.

    Those of one second are one piece of memory: an object for each of them would take several times as much.
    """

    def __init__(self, most: int = sys.maxsize) -> None:
        self._most = most
        self._bytes = 0
        self._pieces: deque[tuple[int, bytearray]] = deque()

    def add(self, line: bytes) -> None:
        """Remember one more, which holds no line feed, and forget what is too old or too much."""
        second, pieces = int(time.monotonic()), self._pieces
        if not pieces or pieces[-1][0] != second:
            pieces.append((second, bytearray()))
        pieces[-1][1].extend(line + b"\n")
        self._bytes += len(line) + 1
        while pieces[0][0] < second - RECENT_S or (self._bytes > self._most and len(pieces) > 1):
            self._bytes -= len(pieces.popleft()[1])

    def __iter__(self) -> Iterator[bytes]:
        return chain.from_iterable([bytes(piece).splitlines() for _, piece in self._pieces])


class Incarnation:
    """Looks whether the masters of a store, which these clients use, are those of the last look."""

    def __init__(self, *clients: Client) -> None:
        self._clients = clients
        self._masters: frozenset[str] | None = None

    async def heal(self, *repeats: Callable[[], Awaitable[int]]) -> list[int]:
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

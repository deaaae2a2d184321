"""An exchange that notes how a plugin ends streams."""

from __future__ import annotations

from gateway.errors import Refused
from gateway.exchange import Exchange


class Stops:
    """How a plugin ended streams in the scenarios so far."""

    count = 0
    twice = False
    outside = False


class WatchedExchange(Exchange):
    """An exchange that notes how it is stopped. `chunk` is the size of the one that `on_chunk` sees."""

    __slots__ = ()

    def stop(self, error: Refused, *, keep: int = 0) -> None:
        stops = self[Stops]
        stops.count += self.stopped is None
        stops.twice |= self.stopped is not None
        stops.outside |= not 0 <= keep <= self[ChunkSize]
        super().stop(error, keep=keep)


class ChunkSize(int):
    """How long the chunk is that `on_chunk` sees; 0 in other hooks."""

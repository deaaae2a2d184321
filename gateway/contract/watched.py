"""An exchange that notes how a plugin ends streams, and where it sets headers."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

from gateway.errors import Refused
from gateway.exchange import Exchange
from gateway.proxy.head import InvalidHeader, render_head


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


class WatchedHeaders(dict[str, str]):
    """Headers that know where each was set."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        super().__init__(headers)
        self._places: dict[str, str] = {}

    def __setitem__(self, name: str, value: str) -> None:
        frame = sys._getframe(1)
        self._places[name] = f" ({frame.f_code.co_filename}, line {frame.f_lineno})"
        super().__setitem__(name, value)

    def place_of(self, name: str) -> str:
        """Return the file and the line where a header was set, in brackets; empty where that is not known."""
        return self._places.get(name, "")


def unsendable(headers: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with each header that cannot be sent, with its place."""
    for name, value in headers.items():
        place = headers.place_of(name) if isinstance(headers, WatchedHeaders) else ""
        if not (isinstance(name, str) and isinstance(value, str)):
            yield f"the response header {name!r} is not text: {value!r}{place}"
            continue
        try:
            render_head(200, {name: value}, "")
        except InvalidHeader as error:
            yield f"{error}{place}"

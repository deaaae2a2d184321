"""An exchange that notes how a plugin ends streams, where it sets headers, and what it assigns that is not its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Final

from gateway.contract.endings import MODEL
from gateway.errors import Refused
from gateway.exchange import Exchange
from gateway.proxy.head import InvalidHeader, render_head
from gateway.reply import Reply

PLUGINS_OWN: Final = frozenset({"account", "group", "response_headers", "token_id"})
"""Fields of an exchange that a plugin may assign."""
MOST_HEADERS: Final = 64
"""Of a plugin. Some clients refuse an answer with more than 100, and the gateway sends some of its own."""
MOST_HEADER_BYTES: Final = 64 * 1024


class Stops:
    """How a plugin ended streams in the scenarios so far."""

    count = 0
    twice = False
    outside = False


class Assigned(list[str]):
    """What a plugin assigned that only the gateway may, in words."""


class WatchedExchange(Exchange):
    """An exchange that notes how it is stopped. `chunk` is the size of the one that `on_chunk` sees."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        frame = sys._getframe(1)
        by_gateway = str(frame.f_globals.get("__name__", "")).partition(".")[0] == "gateway"
        if not (by_gateway or name in PLUGINS_OWN) and (assigned := self.get(Assigned)) is not None:
            place = f"({frame.f_code.co_filename}, line {frame.f_lineno})"
            assigned.append(f"`{frame.f_code.co_name}` assigns `exchange.{name}`, which only the gateway may {place}")

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
    if not isinstance(headers, Mapping):
        yield f"`response_headers` is no mapping, but {headers!r}"
        return
    place = ""
    for name, value in headers.items():
        place = headers.place_of(name) if isinstance(headers, WatchedHeaders) else ""
        if not (isinstance(name, str) and isinstance(value, str)):
            yield f"the response header {name!r} is not text: {value!r}{place}"
            continue
        try:
            render_head(200, {name: value}, "")
        except InvalidHeader as error:
            yield f"{error}{place}"
    size = sum(len(str(name)) + len(str(value)) for name, value in headers.items())
    if len(headers) > MOST_HEADERS or size > MOST_HEADER_BYTES:
        yield (
            f"sends {len(headers)} response headers of {size >> 10} KiB together, where callers may refuse more than "
            f"{MOST_HEADERS} or {MOST_HEADER_BYTES >> 10} KiB{place}"
        )


def shown(exchange: Exchange, hook: str, reply: Reply | None = None) -> list[str]:
    """Return what is wrong with what the caller gets to see of a hook: its headers, its answer, its error."""
    error = exchange.error
    headers = [exchange.response_headers, reply.headers if reply else {}, error.extra_headers if error else {}]
    problems = [problem for each in headers for problem in unsendable(each)]
    texts = [*headers, reply.body if reply else "", error.message if error else ""]
    if any(MODEL in str(text) for text in texts):
        problems.append(
            f"`{hook}` shows the caller how an upstream calls the model: show `exchange.model`, as the caller named it"
        )
    return problems

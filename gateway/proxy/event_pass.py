"""The compiled path for plain events, which the transport of an upstream's connection calls first, where there is one.

The compiled path (`_pass.pyx`) takes a read that is whole HTTP chunks, each of one event with nothing but text, and passes it
on as `UpstreamConnection` and `Relay` would, with the same bytes written and the same values in the same attributes. It leaves
every other read to them: a first or a last event, usage, errors, anything cut or long, and all reads of a relay whose plugins
have `on_chunk`. So it knows the states of a call (`UpstreamState`).

It is optional, see `gateway.base.compiled`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from gateway.base import compiled

BUFFER: Final = memoryview(bytearray(16 * 1024))
"""Every read of every upstream goes into this buffer. The parser has copied the data when the read returns, so that one is
enough. Its size bounds what a stream holds, and the time of a read.
"""
SMALL_READ: Final = 4 * 1024
"""A longer read is counted, and passed on at once only while there are few of them: a whole short answer arrives so. Else the
connection waits for its turn and is not read meanwhile, as after a read that has filled the buffer, so that more may follow.
"""
SOURCE: Final = Path(__file__).with_name("_pass.pyx")


class InvalidResponse(Exception):
    """The upstream does not speak HTTP/1.1, or not as requested."""


class UpstreamState(Enum):
    """The state of a call. Data after one of the last four states belongs to no request."""

    WAITING = "nothing was received"
    HEAD = "part of the response was received, and its head is not complete"
    BODY = "the head is complete, and the body is not"
    REUSABLE = "the response is complete, and the connection may carry another request"
    COMPLETE = "the response is complete, and the connection must be closed"
    FAILED = "the response broke off, or is invalid"
    LOST = "the connection was closed before anything was received"


class PurePass(ABC):
    """The same calls without a compiled path: every read is received in Python."""

    __slots__ = ()

    @abstractmethod
    def receive(self, nbytes: int) -> None:
        """Receive the first `nbytes` of `BUFFER`, which a read has filled."""

    def begin_pass(self, relay: Any) -> None:  # noqa: B027 - nothing is passed here
        """Pass the plain events of a relay on from now on, if nothing else must see them."""

    def end_pass(self) -> None:  # noqa: B027
        """Pass nothing on any more."""

    def get_buffer(self, sizehint: int) -> memoryview:
        return BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        self.receive(nbytes)


def load() -> tuple[ModuleType | None, str]:
    """Return the compiled module, or None and why it is not used."""
    module, why_not = compiled.load("gateway.proxy._pass", SOURCE)
    if module is not None:
        module.use(BUFFER, SMALL_READ, UpstreamState.BODY)
    return module, why_not


_compiled, WHY_PURE = load()


if TYPE_CHECKING:
    EventPass = PurePass
else:
    EventPass = _compiled.EventPass if _compiled else PurePass

"""A connection to an upstream that waits in aiohttp's pool.

aiohttp's own protocol reads in another way than `UpstreamConnection`, and a transport asks how to read only when reading begins:
to give it to the one and back would cost four system calls a request. So a protocol that reads in the same way stands in
front of aiohttp's, and passes on what happens.
"""

from __future__ import annotations

import asyncio
from typing import Final

_BUFFER: Final = bytearray(1024)
"""Bytes that arrive while no request waits for an answer: usually a few before the upstream closes, or none."""


class IdleConnection(asyncio.BufferedProtocol):
    """The protocol of a connection while it is in the pool, in front of aiohttp's."""

    __slots__ = ("_pooled",)

    def __init__(self, pooled: asyncio.Protocol) -> None:
        self._pooled = pooled

    def get_buffer(self, sizehint: int) -> bytearray:
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        self._pooled.data_received(bytes(_BUFFER[:nbytes]))

    def eof_received(self) -> bool | None:
        return self._pooled.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._pooled.connection_lost(exc)


def take(transport: asyncio.Transport, protocol: asyncio.BufferedProtocol) -> None:
    """Give the transport of a connection from the pool to `protocol`, which has a buffer."""
    if isinstance(transport.get_protocol(), IdleConnection):
        transport.set_protocol(protocol)
    else:
        transport.pause_reading()
        transport.set_protocol(protocol)
        transport.resume_reading()

"""A proxy between a gateway and its store that causes network faults."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum
from urllib.parse import unquote, urlsplit

from tests.tcp import TcpServer


class Fault(StrEnum):
    """A fault that hits the commands of one read from a client's socket."""

    CUT_BEFORE = "the connection is cut before the store sees them"
    CUT_REQUEST = "the connection is cut in the middle of them"
    DROP_REPLY = "they are executed and their reply is dropped with the connection"
    CUT_REPLY = "they are executed and the connection is cut in the middle of the reply"
    DELAY = "they are executed and the reply comes after the client's timeout"
    SILENCE = "they are executed and no reply is sent on that connection any more"


class StoreProxy(TcpServer):
    """A proxy that listens at `url` and forwards to the unix socket of a store.

    `fault` is called for each read from a client's socket that contains a script call, and returns the fault to cause.
    """

    def __init__(self, store_url: str, *, delay_s: float = 0.7) -> None:
        super().__init__()
        self._path = unquote(urlsplit(store_url).path)
        self._delay_s = delay_s
        self.fault: Callable[[], Fault | None] = lambda: None
        self.done = dict.fromkeys(Fault, 0)
        """How often each fault was caused."""

    @property
    def url(self) -> str:
        """The URL at which a gateway reaches the store through this proxy."""
        return f"redis://127.0.0.1:{self.port}"

    def once(self, fault: Fault) -> None:
        """Cause the fault for the next script call only."""
        left = [fault]
        self.fault = lambda: left.pop() if left else None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            store_reader, store_writer = await asyncio.open_unix_connection(self._path)
        except OSError:
            writer.transport.abort()
            return
        self.open.add(store_writer)
        link = _Link(self, writer, store_writer)
        replies = asyncio.create_task(link.pump_replies(store_reader, self._delay_s))
        try:
            await link.pump_commands(reader)
        finally:
            writer.transport.abort()
            store_writer.transport.abort()
            self.open.discard(store_writer)
            replies.cancel()
            await asyncio.gather(replies, return_exceptions=True)


class _Link:
    """A client's connection and the connection to the store that belongs to it."""

    def __init__(self, proxy: StoreProxy, client: asyncio.StreamWriter, store: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._client = client
        self._store = store
        self._pending: Fault | None = None
        self._silent = False

    async def pump_commands(self, reader: asyncio.StreamReader) -> None:
        while data := await _read(reader):
            fault = self._proxy.fault() if b"EVAL" in data else None
            if fault is not None:
                self._proxy.done[fault] += 1
            if fault is Fault.CUT_BEFORE:
                return
            if fault is Fault.CUT_REQUEST:
                self._store.write(data[: len(data) // 2])
                return
            if self._pending is not Fault.SILENCE:
                self._pending = fault or self._pending
            self._store.write(data)

    async def pump_replies(self, reader: asyncio.StreamReader, delay_s: float) -> None:
        while data := await _read(reader):
            fault, self._pending = self._pending, None
            if fault is Fault.SILENCE:
                self._silent = True
            if self._silent:
                continue  # for the rest of the connection: a network cannot drop bytes of a TCP stream and go on
            if fault is Fault.DELAY:
                await asyncio.sleep(delay_s)
            if fault is Fault.CUT_REPLY:
                self._client.write(data[: len(data) // 2])
            if fault in (Fault.DROP_REPLY, Fault.CUT_REPLY):
                self._client.close()
                return
            self._client.write(data)


async def _read(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(65536)
    except OSError:
        return b""

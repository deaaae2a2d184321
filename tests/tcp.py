"""A TCP server on loopback: the base of upstreams, receivers and networks that behave badly."""

from __future__ import annotations

import asyncio
import ssl
from types import TracebackType
from typing import Self


class TcpServer:
    """Listens within its context, at the end of which its connections are reset. `open` has the writers of those that are open."""

    def __init__(self, *, tls: ssl.SSLContext | None = None, limit: int = 1 << 16) -> None:
        self.open: set[asyncio.StreamWriter] = set()
        self.port = 0
        self._tls = tls
        self._limit = limit
        """The bytes of the longest head that is read at once."""
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen at `port`, at a free one the first time."""
        self._server = await asyncio.start_server(
            self._accept, "127.0.0.1", self.port, ssl=self._tls, limit=self._limit, backlog=4096
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Listen no more, and reset all connections."""
        assert self._server is not None
        self._server.close()
        self.abort()
        await self._server.wait_closed()
        while self.open:
            await asyncio.sleep(0)

    def abort(self) -> None:
        """Reset all connections."""
        for writer in list(self.open):
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, which is closed afterwards."""
        raise NotImplementedError

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open.add(writer)
        try:
            await self.serve(reader, writer)
        except (asyncio.IncompleteReadError, OSError):  # the other end has gone
            pass
        finally:
            self.open.discard(writer)
            writer.close()


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Return the head of an HTTP request and its body of `Content-Length` bytes. Raises `IncompleteReadError`."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    return head, await reader.readexactly(length)

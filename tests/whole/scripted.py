"""An upstream that sends exactly the bytes it was given, cut exactly where it was told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


class Fin:
    """Close the connection properly."""


class Reset:
    """Reset the connection."""


class Hold:
    """Say nothing more, until the gateway closes."""


Step = bytes | float | type[Fin] | type[Reset] | type[Hold]
"""Bytes to send at once, seconds to wait, or an end."""


def chunk(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Scripted:
    """Each connection's each request is answered by `script`; `gone` is set when the gateway closes a connection."""

    def __init__(self, script: Sequence[Step]) -> None:
        self.script = script
        self.requests: list[bytes] = []
        self.arrived = asyncio.Event()
        self.gone = asyncio.Event()
        self.connections = 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def base_url(self) -> str:
        """Ends in /v1."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._open):
            writer.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
                )
                self.requests.append(head + await reader.readexactly(length))
                self.arrived.set()
                await self._play(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.gone.set()
        finally:
            self._open.discard(writer)
            writer.close()

    async def _play(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for step in self.script:
            if isinstance(step, bytes):
                writer.write(step)
                await writer.drain()
            elif isinstance(step, float):
                await asyncio.sleep(step)
            elif step is Hold:
                await reader.read()
                raise ConnectionResetError
            else:
                if step is Reset:
                    writer.transport.abort()
                raise ConnectionResetError

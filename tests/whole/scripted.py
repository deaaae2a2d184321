"""An upstream that plays scripts: bytes to send, each step a write of its own, pauses, and ways to end the connection."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence

from tests.tcp import TcpServer, read_request

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


class Fin:
    """A step that closes the connection."""


class Reset:
    """A step that resets the connection."""


class Hold:
    """A step that sends nothing until the gateway closes the connection."""


class Forever:
    """A step that sends the same bytes repeatedly, until `until` returns true or the gateway closes the connection."""

    def __init__(self, data: bytes, pace_s: float = 0.0, until: Callable[[], bool] = lambda: False) -> None:
        self.data = data
        self.pace_s = pace_s
        self.until = until


Step = bytes | float | type[Fin] | type[Reset] | type[Hold] | Forever
"""Bytes to send at once, seconds to wait, or an end."""


def chunk(data: bytes) -> bytes:
    """Return data as one HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Scripted(TcpServer):
    """An upstream that plays the first of `scripts` for the first request, and so on; the last one for all later requests.

    `arrived` is set when a request has come, `gone` when the gateway closes a connection.
    """

    def __init__(self, *scripts: Sequence[Step], tls: ssl.SSLContext | None = None) -> None:
        super().__init__(tls=tls)
        self.scripts: Sequence[Sequence[Step]] = scripts
        self.requests: list[bytes] = []
        self.arrived = asyncio.Event()
        self.gone = asyncio.Event()
        self.connections = 0
        self.sent = 0

    @property
    def base_url(self) -> str:
        """The base URL for a channel, which ends in /v1."""
        scheme = "https" if self._tls else "http"
        host = "localhost" if self._tls else "127.0.0.1"
        return f"{scheme}://{host}:{self.port}/v1"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                self.requests.append(b"".join(await read_request(reader)))
                self.arrived.set()
                script = self.scripts[min(len(self.requests), len(self.scripts)) - 1]
                for step in script:
                    await self._play(step, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            self.gone.set()

    async def _play(self, step: Step, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if isinstance(step, bytes):
            writer.write(step)
            await writer.drain()
            self.sent += len(step)
        elif isinstance(step, float):
            await asyncio.sleep(step)
        elif isinstance(step, Forever):
            while not step.until():
                await self._play(step.data, reader, writer)
                await asyncio.sleep(step.pace_s)
        elif step is Hold:
            await reader.read()
            raise ConnectionResetError
        else:
            if step is Reset:
                writer.transport.abort()
            raise ConnectionResetError


class Gated(Scripted):
    """An upstream whose first response pauses between `before` and `after` until `gate` is set; all others are sent at once."""

    def __init__(self, before: bytes, after: bytes) -> None:
        self.gate = asyncio.Event()
        held: list[Step] = [CHUNKED + chunk(before), Forever(b"", 0.01, until=self.gate.is_set), chunk(after) + LAST]
        super().__init__(held, [CHUNKED + chunk(before + after) + LAST])

"""The listening socket: accepts many waiting connections in each turn of the event loop.

libuv accepts one per turn. Where thousands of streams make a turn long, new connections would wait for seconds, and the kernel
would drop those that its queue cannot hold.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final

BACKLOG: Final = 4096
"""Connections that may wait in the kernel's queue."""
MAX_PER_TURN: Final = 64
"""Connections accepted in one turn, so that a burst of connections does not delay open streams."""
SEND_BUFFER: Final = 128 * 1024
"""Bytes that the kernel keeps of what a caller has not read; it doubles them. Its own limit, some MiB, is shared by all."""
PAUSE_S: Final = 1.0
"""How long to wait before accepting again when the process is out of file descriptors."""


class Listener:
    """Accepts the connections of a bound socket, each with a new protocol, until `stop`."""

    def __init__(
        self,
        bound: socket.socket,
        protocol: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None = None,
        handshake_s: float | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = bound
        self._protocol = protocol
        self._tls = tls
        self._handshake_s = handshake_s if tls else None
        self._opening: set[asyncio.Task[None]] = set()
        self._resume: asyncio.TimerHandle | None = None
        bound.setblocking(False)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # accepted sockets inherit it
        bound.listen(BACKLOG)
        self._start()

    def stop(self) -> None:
        """Stop accepting and close the socket. May be called again."""
        if self._resume is not None:
            self._resume.cancel()
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()

    def _start(self) -> None:
        self._resume = None
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(MAX_PER_TURN):
            try:
                connection, _ = self._socket.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue  # it was closed while it waited
            except OSError:
                self._loop.remove_reader(self._socket)
                self._resume = self._loop.call_later(PAUSE_S, self._start)
                return
            connection.setblocking(False)
            task = self._loop.create_task(self._open(connection))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._protocol, connection, ssl=self._tls, ssl_handshake_timeout=self._handshake_s
            )
        except (OSError, TimeoutError):  # also a handshake that failed
            connection.close()

"""The listening socket: accepts many waiting connections in each turn of the event loop.

libuv accepts one per turn. Where thousands of streams make a turn long, new connections would wait for seconds, and the kernel
would drop those that its queue cannot hold.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from gateway.server.connections import Connections, Slot

BACKLOG: Final = 4096
"""Connections that may wait in the kernel's queue."""
MAX_PER_TURN: Final = 64
"""Connections accepted in one turn, so that a burst of connections does not delay open streams."""
PAUSE_S: Final = 1.0
"""How long to wait before accepting again when the process is out of file descriptors."""


class Listener:
    """Accepts the connections of a bound socket, each with a new protocol, until `stop`."""

    def __init__(
        self,
        bound: socket.socket,
        connections: Connections,
        protocol: Callable[[Slot], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None = None,
        handshake_s: float | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = bound
        self._connections = connections
        self._protocol = protocol
        self._tls = tls
        self._handshake_s = handshake_s if tls else None
        self._opening: set[asyncio.Task[None]] = set()
        self._resume: asyncio.TimerHandle | None = None
        bound.setblocking(False)
        bound.listen(BACKLOG)
        self._start()

    def stop(self) -> None:
        """Stop accepting and close the socket. May be called again.

        The parent holds the socket, too: a caller that connects later would wait for as long as the parent runs. It is
        refused at once where the socket shares its port, as those of the workers do. A socket that a service manager passed
        does not: its queue waits for the next start.
        """
        if self._resume is not None:
            self._resume.cancel()
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            if self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT):
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()

    def _start(self) -> None:
        self._resume = None
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(MAX_PER_TURN):
            try:
                connection, address = self._socket.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue  # it was closed while it waited
            except OSError:
                self._loop.remove_reader(self._socket)
                self._resume = self._loop.call_later(PAUSE_S, self._start)
                return
            slot = self._connections.take(address[0] if isinstance(address, tuple) else "")
            if slot is None:
                connection.close()
                continue
            connection.setblocking(False)
            task = self._loop.create_task(self._open(connection, slot))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
            slot.close = task.cancel

    async def _open(self, connection: socket.socket, slot: Slot) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._protocol(slot), connection, ssl=self._tls, ssl_handshake_timeout=self._handshake_s
            )
        except (OSError, TimeoutError):  # also a handshake that failed
            connection.close()
            self._connections.leave(slot)
        except asyncio.CancelledError:
            connection.close()
            self._connections.leave(slot)
            raise

"""The listening socket: accepts many waiting connections in each turn of the event loop.

1. libuv accepts one per turn. Where thousands of streams make a turn long, new connections would wait for seconds, and the kernel
   would drop those that its queue cannot hold.
2. To accept a connection costs a hundredth of opening it, which makes its protocol and its task. So all are accepted soon, and
   the addresses take turns to have theirs opened. Those that were closed meanwhile are not opened.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from gateway.server.connections import Connections, Slot
from gateway.server.fair_queue import FairQueue

BACKLOG: Final = 4096
"""Connections that may wait in the kernel's queue."""
MAX_ACCEPTED: Final = 256
"""Connections accepted in one turn."""
MAX_PER_TURN: Final = 32
"""Connections opened in one turn, so that a burst of connections does not delay open streams."""
SEND_BUFFER: Final = 128 * 1024
"""Bytes that the kernel keeps of what a caller has not read; it doubles them. Its own limit, some MiB, is shared by all."""
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
        self._waiting = FairQueue[tuple[socket.socket, Slot]]()
        self._next: asyncio.Handle | None = None
        self._opening: set[asyncio.Task[None]] = set()
        self._resume: asyncio.TimerHandle | None = None
        bound.setblocking(False)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # accepted sockets inherit it
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
        while self._waiting:
            connection, slot = self._waiting.take()
            connection.close()
            self._connections.leave(slot)

    def _start(self) -> None:
        self._resume = None
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(MAX_ACCEPTED):
            try:
                connection, address = self._socket.accept()
            except BlockingIOError:
                break
            except ConnectionAbortedError:
                continue  # it was closed while it waited
            except OSError:
                self._loop.remove_reader(self._socket)
                self._resume = self._loop.call_later(PAUSE_S, self._start)
                break
            slot = self._connections.take(address[0] if isinstance(address, tuple) else "")
            if slot is None:
                connection.close()
                continue
            connection.setblocking(False)
            slot.close = partial(_close, connection)
            self._waiting.put(slot.address, (connection, slot))
        if self._next is None:
            self._open_some()

    def _open_some(self) -> None:
        self._next = None
        opened = 0
        while self._waiting and opened < MAX_PER_TURN:
            connection, slot = self._waiting.take()
            if slot.left:  # closed to make room for others
                continue
            if _is_closed(connection):
                connection.close()
                self._connections.leave(slot)
                continue
            opened += 1
            task = self._loop.create_task(self._open(connection, slot))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
            slot.close = task.cancel
        if self._waiting:
            self._next = self._loop.call_soon(self._open_some)

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


def _close(connection: socket.socket) -> bool:
    connection.close()
    return True


def _is_closed(connection: socket.socket) -> bool:
    """Return whether the caller closed the connection before it sent anything."""
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True

"""The listening socket: accepts many waiting connections in each turn of the event loop.

1. libuv accepts one per turn. Where thousands of streams make a turn long, new connections would wait for seconds, and the kernel
   would drop those that its queue cannot hold. So a fifth of the time may go into accepting.
2. To accept a connection costs a tenth of opening it, which makes its protocol and its task. So all are accepted soon, and an
   address that has many opened waits for its turns. Those that were closed meanwhile are not opened.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from gateway.proxy.scheduler import SHARE, TURN_S, AddressTurns
from gateway.server.connections import Connections, Slot

BACKLOG: Final = 4096
"""Connections that may wait in the kernel's queue."""
SEND_BUFFER: Final = 128 * 1024
"""Bytes that the kernel keeps of what a caller has not read; it doubles them. Its own limit, some MiB, is shared by all."""
OPEN_S: Final = 0.0002
"""Seconds of the event loop to open a connection, most of them spent after the call that begins it."""
PAUSE_S: Final = 1.0
"""How long to wait before accepting again when the process is out of file descriptors."""


class Listener:
    """Accepts the connections of a bound socket, each with a new protocol, until `stop`."""

    def __init__(
        self,
        bound: socket.socket,
        connections: Connections,
        protocol: Callable[[Slot], asyncio.BaseProtocol],
        turns: AddressTurns,
        tls: ssl.SSLContext | None = None,
        handshake_s: float | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = bound
        self._connections = connections
        self._protocol = protocol
        self._turns = turns
        self._tls = tls
        self._handshake_s = handshake_s if tls else None
        self._accepted_at = 0.0
        self._waiting: dict[Slot, socket.socket] = {}
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
            slot, connection = self._waiting.popitem()
            connection.close()
            self._connections.leave(slot)

    def _start(self) -> None:
        self._resume = None
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        began = time.thread_time()
        ends = began + max(TURN_S, (began - self._accepted_at) / SHARE)
        while time.thread_time() < ends:
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
            if self._turns.admit(_key(slot)):
                self._open(connection, slot)
            else:
                self._waiting[slot] = connection
                self._turns.wait(partial(self._open_waiting, slot), _key(slot))
        self._accepted_at = time.thread_time()

    def _open_waiting(self, slot: Slot) -> None:
        connection = self._waiting.pop(slot, None)
        if connection is None or slot.left:  # closed by `stop`, or to make room for others
            return
        if _is_closed(connection):
            connection.close()
            self._connections.leave(slot)
        else:
            self._open(connection, slot)

    def _open(self, connection: socket.socket, slot: Slot) -> None:
        self._turns.spend(_key(slot), time.thread_time(), OPEN_S)
        task = self._loop.create_task(self._connect(connection, slot))
        self._opening.add(task)
        task.add_done_callback(partial(self._on_opened, connection, slot))
        slot.close = task.cancel

    async def _connect(self, connection: socket.socket, slot: Slot) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._protocol(slot), connection, ssl=self._tls, ssl_handshake_timeout=self._handshake_s
            )
        except (OSError, TimeoutError):  # also a handshake that failed
            connection.close()
            self._connections.leave(slot)

    def _on_opened(self, connection: socket.socket, slot: Slot, task: asyncio.Task[None]) -> None:
        self._opening.discard(task)
        if task.cancelled():  # maybe before its first step
            connection.close()
            self._connections.leave(slot)


def _key(slot: Slot) -> str:
    """Return the scheduler's key for new connections of an address. Data on its open connections has a key of its own."""
    return f"open {slot.address}"


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

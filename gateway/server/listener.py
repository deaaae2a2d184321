"""Connections are taken from the listening socket as they wait, many in each turn of the event loop.

libuv takes one a turn. Where thousands of streams make a turn long, whoever arrives would wait for seconds, and the kernel
would turn away those behind him.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final

BACKLOG: Final = 4096
"""Connections that may wait in the kernel."""
AT_ONCE: Final = 64
"""Connections that are taken in one turn, so that open streams wait for no crowd either."""
FULL_S: Final = 1.0
"""How long nobody is taken where the process can have no more file descriptors."""


class Listener:
    """Serves each connection of a bound socket with a protocol of its own, until `stop`."""

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None = None,
        handshake_s: float | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._protocol = protocol
        self._tls = tls
        self._handshake_s = handshake_s if tls else None
        self._opening: set[asyncio.Task[None]] = set()
        self._again: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        listener.listen(BACKLOG)
        self._begin()

    def stop(self) -> None:
        """Take nobody any more, and close the socket; once more it does nothing."""
        if self._again is not None:
            self._again.cancel()
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)
            self._listener.close()

    def _begin(self) -> None:
        self._again = None
        self._loop.add_reader(self._listener, self._take)

    def _take(self) -> None:
        for _ in range(AT_ONCE):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue  # he left while he waited
            except OSError:
                self._loop.remove_reader(self._listener)
                self._again = self._loop.call_later(FULL_S, self._begin)
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
        except (OSError, TimeoutError):  # a handshake that failed, too
            connection.close()

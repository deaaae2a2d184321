"""What a service manager is told, and the socket it may have opened for us: systemd's sd_notify and LISTEN_FDS.

Both are environment variables and plain sockets, and nothing happens where nobody set them.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import MutableMapping
from typing import Final

import structlog

from gateway.errors import Misconfigured

FIRST_DESCRIPTOR: Final = 3

log = structlog.get_logger("gateway.runtime.systemd")


class ServiceManager:
    """The manager's side. The variables are taken away, so that no child speaks in our name."""

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        self._address = environment.pop("NOTIFY_SOCKET", "")
        every_us, owner = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
        watched = every_us.isdigit() and owner in ("", str(os.getpid()))
        self._every_s = int(every_us) / 2_000_000 if watched else None
        self._told_at = 0.0

    def ready(self) -> None:
        """Requests are accepted."""
        self._tell("READY=1\nSTATUS=serving")

    def stopping(self) -> None:
        """No more are; open streams are let finish."""
        self._tell("STOPPING=1\nSTATUS=draining")

    def alive(self) -> None:
        """Feed the watchdog, twice in its time and no more often."""
        now = time.monotonic()
        if self._every_s is not None and now - self._told_at >= self._every_s:
            self._told_at = now
            self._tell("WATCHDOG=1")

    def _tell(self, state: str) -> None:
        if not self._address:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
                manager.settimeout(1)
                manager.sendto(state.encode(), address)
        except OSError as error:
            log.warning("service_manager_not_told", state=state.partition("\n")[0], reason=error.strerror)


def inherited(count: int, environment: MutableMapping[str, str] = os.environ) -> list[socket.socket]:
    """The public port's socket if a manager passed one, once for each of `count` workers; else nothing.

    Raises `Misconfigured` unless it is exactly one socket, and one that listens.
    """
    owner, given = environment.pop("LISTEN_PID", ""), environment.pop("LISTEN_FDS", "")
    environment.pop("LISTEN_FDNAMES", None)
    if owner != str(os.getpid()) or not given.isdigit() or given == "0":
        return []
    if given != "1":
        raise Misconfigured(f"the service manager passed {given} sockets; the gateway takes one: its public port")
    try:
        first = socket.socket(fileno=FIRST_DESCRIPTOR)
        listens = first.type == socket.SOCK_STREAM and first.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise Misconfigured(f"what the service manager passed is no socket: {error.strerror}") from None
    if not listens or first.family not in (socket.AF_INET, socket.AF_INET6):
        raise Misconfigured("the service manager must pass a listening TCP socket: use ListenStream=HOST:PORT")
    first.setblocking(False)
    first.set_inheritable(False)
    return [first, *(first.dup() for _ in range(count - 1))]

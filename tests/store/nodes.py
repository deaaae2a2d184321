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

from gateway.store.embedded import find_server
from tests.cli.processes import free_port

SETTINGS: Final = ("--appendonly", "yes", "--save", "", "--bind", "127.0.0.1")


class Node:
    """One server on free ports, which ends with `ends`. `file` is added to its configuration."""

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
        """Start the server, also again after it has ended; return whether it responds."""
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        self._ends.callback(self.process.wait)
        self._ends.callback(self.process.kill)
        until(lambda: self.process.poll() is not None or self.answers())
        return self.process.poll() is None

    def call(self, *command: str | int) -> Any:
        """Return the reply to a command."""
        return self._client.execute_command(*command)

    def answers(self) -> bool:
        """Return whether it responds."""
        try:
            return bool(self.call("PING"))
        except RedisError:
            return False


def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds, for a minute at most: after a delay, a Sentinel pauses for half a minute."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "the servers did not reach the condition"
        time.sleep(0.02)

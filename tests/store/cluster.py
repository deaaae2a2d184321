"""A cluster of three masters on loopback, for as long as a test needs it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from gateway.store.embedded import find_server
from tests.cli.processes import free_port

SLOTS = 16384
SETTINGS = ("--cluster-enabled", "yes", "--appendonly", "yes", "--save", "", "--cluster-node-timeout", "2000")


class Node:
    """One server, on ports that nobody else took first."""

    def __init__(self, folder: Path, ends: ExitStack) -> None:
        while not self._started(folder, ends):
            pass

    def _started(self, folder: Path, ends: ExitStack) -> bool:
        self.port, self.bus = free_port(), free_port()
        own = folder / str(self.port)
        own.mkdir(exist_ok=True)
        places = ("--port", str(self.port), "--cluster-port", str(self.bus), "--bind", "127.0.0.1", "--dir", str(own))
        process = subprocess.Popen([find_server(), *SETTINGS, *places], stdout=subprocess.DEVNULL)
        ends.callback(process.wait)
        ends.callback(process.kill)
        self._client = ends.enter_context(Redis(port=self.port, protocol=3, decode_responses=True))
        _until(lambda: process.poll() is not None or self.answers())
        return process.poll() is None

    def call(self, *command: str | int) -> Any:
        """The reply to a command."""
        return self._client.execute_command(*command)

    def answers(self) -> bool:
        """Whether it has started."""
        try:
            return bool(self.call("PING"))
        except RedisError:
            return False

    def knows_all(self) -> bool:
        """Whether it sees the cluster whole."""
        told = self.call("CLUSTER INFO")
        return (told["cluster_state"], told["cluster_known_nodes"]) == ("ok", "3")


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """Its URL, once every node knows that all is well."""
    with ExitStack() as ends:
        nodes = [Node(folder, ends) for _ in range(3)]
        for number, node in enumerate(nodes):
            node.call("CLUSTER", "ADDSLOTSRANGE", SLOTS * number // 3, SLOTS * (number + 1) // 3 - 1)
            node.call("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for other in nodes[1:]:
            nodes[0].call("CLUSTER", "MEET", "127.0.0.1", other.port, other.bus)
        for node in nodes:
            _until(node.knows_all)
        yield f"cluster://{','.join(f'127.0.0.1:{node.port}' for node in nodes)}"


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline, "the cluster does not come up"
        time.sleep(0.02)

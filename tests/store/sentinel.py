"""A primary, its replica, and a Sentinel that watches them, for as long as a test needs them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, Literal

from redis.exceptions import ResponseError

from tests.store.nodes import Node, until

SETTINGS: Final = ("--repl-diskless-sync-delay", "0")
WATCH: Final = """
bind 127.0.0.1
sentinel monitor mymaster 127.0.0.1 {port} 1
sentinel down-after-milliseconds mymaster 300
sentinel failover-timeout mymaster 1000
"""

How = Literal["killed", "frozen", "ordered"]
"""Why the primary is replaced. After an `ordered` failover the old one still responds as a primary for seconds."""


class Watched:
    """A primary, its replica and their Sentinel. `url` is the store's URL for a gateway."""

    def __init__(self, nodes: tuple[Node, Node], sentinel: Node) -> None:
        self._nodes = nodes
        self._sentinel = sentinel
        self.url = f"sentinel://127.0.0.1:{sentinel.port}/mymaster"

    def primary(self) -> Node:
        """Return the primary that Sentinel reports."""
        port = int(self._sentinel.call("SENTINEL", "MASTER", "mymaster")["port"])
        return next(node for node in self._nodes if node.port == port)

    def fail_over(self, how: How) -> None:
        """Cause a failover and wait until the replica is the primary."""
        old = self.primary()
        new = self._other(old)
        if how == "killed":
            old.process.kill()
        elif how == "frozen":
            old.process.send_signal(signal.SIGSTOP)

        def over() -> bool:
            if how == "ordered" and self.primary() is old:
                with suppress(ResponseError):  # a failover is in progress; one that timed out was aborted
                    self._sentinel.call("SENTINEL", "FAILOVER", "mymaster")
            return self.primary() is new and new.call("ROLE")[0] == "master"

        until(over)
        old.process.send_signal(signal.SIGCONT)

    def mend(self) -> None:
        """Start the replaced server as a replica and wait until it is ready."""
        old = self._other(self.primary())
        if old.process.poll() is not None:
            old.start()
        until(old.answers)
        old.call(
            "REPLICAOF", "127.0.0.1", self.primary().port
        )  # Sentinel orders it too, but on a busy machine it may be late
        until(self.ready)

    def ready(self) -> bool:
        """Return whether Sentinel reports a replica that can take over."""
        (replica,) = self._sentinel.call("SENTINEL", "REPLICAS", "mymaster")
        return (replica["flags"], replica["master-link-status"]) == ("slave", "ok")

    def _other(self, node: Node) -> Node:
        return next(other for other in self._nodes if other is not node)


@contextmanager
def watched(folder: Path) -> Iterator[Watched]:
    """Start all three and wait until each knows the others."""
    with ExitStack() as ends:
        primary = Node(folder, ends, *SETTINGS)
        replica = Node(folder, ends, *SETTINGS)
        replica.call("REPLICAOF", "127.0.0.1", primary.port)
        until(lambda: replica.call("ROLE")[3] == "connected")
        sentinel = Node(folder, ends, "--sentinel", file=WATCH.format(port=primary.port))
        sentinel.call(
            "SENTINEL", "DEBUG", "INFO-PERIOD", 100, "PUBLISH-PERIOD", 500
        )  # ten times as often as by default
        until(lambda: len(sentinel.call("SENTINEL", "REPLICAS", "mymaster")) == 1)
        servers = Watched((primary, replica), sentinel)
        until(servers.ready)
        yield servers

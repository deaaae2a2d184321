"""A cluster of three masters on loopback, for as long as a test needs it; and the fixtures of tests on one."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from gateway.store.client.client import Client
from tests.patience import PATIENCE_S
from tests.store.nodes import Node, until

SLOTS = 16384
SETTINGS = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000")


class Cluster:
    """Three masters. `url` is the store's URL for a gateway."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.url = f"cluster://{','.join(f'127.0.0.1:{node.port}' for node in nodes)}"

    def owner(self, slot: int) -> Node:
        """Return the node that serves a slot, which must have keys."""
        return next(node for node in self.nodes if node.call("CLUSTER", "COUNTKEYSINSLOT", slot))

    def kill(self, node: Node, *, away_s: float) -> None:
        """Kill a node and start it again with its data; wait until the cluster is complete."""
        node.process.kill()
        node.process.wait()
        time.sleep(away_s)
        assert node.start()
        for each in self.nodes:
            until(partial(knows_all, each))

    def migrate(self, key: str, *, pause_s: float) -> None:
        """Move the slot of a key to another node, with a pause in the middle."""
        with self.half_moved(key):
            time.sleep(pause_s)

    def migrate_at_once(self, key: str) -> None:
        """Move the slot of a key to another node by the servers' own command, CLUSTER MIGRATESLOTS."""
        slot = self.nodes[0].call("CLUSTER", "KEYSLOT", key)
        source = self.owner(slot)
        target = self.nodes[self.nodes.index(source) - 1]
        source.call("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", target.call("CLUSTER", "MYID"))
        until(lambda: not source.call("CLUSTER", "COUNTKEYSINSLOT", slot))

    @contextmanager
    def half_moved(self, key: str) -> Iterator[None]:
        """Keep half of the keys in the slot of `key` on another node; at the end, move all there."""
        slot = self.nodes[0].call("CLUSTER", "KEYSLOT", key)
        source = self.owner(slot)
        target = self.nodes[self.nodes.index(source) - 1]

        def move(limit: int) -> int:
            if keys := source.call("CLUSTER", "GETKEYSINSLOT", slot, limit):
                source.call("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
            return len(keys)

        target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", source.call("CLUSTER", "MYID"))
        source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", target.call("CLUSTER", "MYID"))
        move(source.call("CLUSTER", "COUNTKEYSINSLOT", slot) // 2)
        yield
        while move(100):
            pass
        for node in (target, source, *self.nodes):
            node.call("CLUSTER", "SETSLOT", slot, "NODE", target.call("CLUSTER", "MYID"))


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Start a cluster and wait until every node reports that it is complete."""
    with ExitStack() as ends:
        nodes = [Node(folder, ends, *SETTINGS) for _ in range(3)]
        for number, node in enumerate(nodes):
            node.call("CLUSTER", "ADDSLOTSRANGE", SLOTS * number // 3, SLOTS * (number + 1) // 3 - 1)
            node.call("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for other in nodes[1:]:
            nodes[0].call("CLUSTER", "MEET", "127.0.0.1", other.port, other.bus)
        for node in nodes:
            until(partial(knows_all, node))
        yield Cluster(nodes)


def knows_all(node: Node) -> bool:
    """Return whether the node reports a complete cluster, with a link to and from each other node.

    A node may know all slots before it knows which node a link comes from. Until then it drops what is published there.
    """
    info = node.call("CLUSTER INFO")
    links = {(link["node"], link["direction"]) for link in node.call("CLUSTER LINKS")}
    return (info["cluster_state"], info["cluster_known_nodes"], len(links)) == ("ok", "3", 4)


@pytest.fixture(scope="module")
def masters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield one cluster for a file of tests."""
    with cluster(tmp_path_factory.mktemp("cluster")) as masters:
        yield masters


@pytest.fixture
async def client(masters: Cluster) -> AsyncIterator[Client]:
    """Yield a client of the cluster, whose data is deleted."""
    client = Client.connect(masters.url, timeout_s=PATIENCE_S)
    await client.call("FLUSHALL")
    yield client
    await client.close()

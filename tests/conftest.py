"""What every test may ask for: a real store of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from redis import Redis

from gateway.store.client.client import Client
from gateway.store.client.embedded import EmbeddedStore
from tests.patience import PATIENCE_S


@pytest.fixture(scope="session")
def store_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStore]:
    """One real server for the whole session (for each worker of pytest-xdist)."""
    store = EmbeddedStore.start(tmp_path_factory.mktemp("store"))
    yield store
    store.stop()


@pytest.fixture
def store_url(store_server: EmbeddedStore) -> str:
    """Where that server is, emptied: which test came before is a matter of the machine's speed."""
    with Redis.from_url(store_server.url) as redis:
        redis.flushall()
    return store_server.url


@pytest.fixture
async def client(store_url: str) -> AsyncIterator[Client]:
    """A client of that server, connected."""
    client = Client.connect(store_url, timeout_s=PATIENCE_S)
    await client.call("PING")
    yield client
    await client.close()

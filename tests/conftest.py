"""What every test may ask for: a real store of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from gateway.store.client import Client
from gateway.store.embedded import EmbeddedStore
from tests.patience import PATIENCE_S


@pytest.fixture(scope="session")
def store_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One real server for the whole session (for each worker of pytest-xdist)."""
    store = EmbeddedStore.start(tmp_path_factory.mktemp("store"))
    yield store.url
    store.stop()


@pytest.fixture
async def client(store_url: str) -> AsyncIterator[Client]:
    """A client of that server, emptied."""
    client = Client.connect(store_url, timeout_s=PATIENCE_S)
    await client.call("FLUSHALL")
    yield client
    await client.close()

"""Fixtures for every test: a real store server, emptied before each test, and a client of it."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator

import pytest
from hypothesis import settings
from redis import Redis

from gateway.store.client.client import Client
from gateway.store.client.embedded import EmbeddedStore
from tests.patience import PATIENCE_S

for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)  # pytest-xdist gives its workers the size of a terminal

# A shell that starts a command in the background lets it ignore these, and with it the processes that tests start and interrupt.
for ignorable in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(ignorable) == signal.SIG_IGN:
        signal.signal(ignorable, signal.default_int_handler if ignorable == signal.SIGINT else signal.SIG_DFL)

# The same examples on every machine and in every run. By itself Hypothesis draws others in each run, and only where `CI` is set
# the same: what failed there could not be seen to fail anywhere else. `--hypothesis-profile=default` draws others.
settings.load_profile("ci")


@pytest.fixture(scope="session")
def store_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStore]:
    """Start one real server for the whole session (one for each process of tests.parallel)."""
    store = EmbeddedStore.start(tmp_path_factory.mktemp("store"))
    yield store
    store.stop()


@pytest.fixture
def store_url(store_server: EmbeddedStore) -> str:
    """Empty the server and return its URL. The order of the tests depends on timing, so nothing may be left from another."""
    with Redis.from_url(store_server.url) as redis:
        redis.flushall()
    return store_server.url


@pytest.fixture
async def client(store_url: str) -> AsyncIterator[Client]:
    """Yield a connected client of that server."""
    client = Client.connect(store_url, timeout_s=PATIENCE_S)
    await client.call("PING")
    yield client
    await client.close()

"""What every test begins with: the same surroundings everywhere, a real store server, emptied, and a client of it."""

from __future__ import annotations

import functools
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import structlog
import typer.main
from hypothesis import settings

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

# Errors that are logged in the tests' own processes: to print one with its local variables takes a third of a second.
structlog.dev.ConsoleRenderer.get_active().exception_formatter = structlog.dev.plain_traceback

# A command line looks at the parameters of all its commands once in a process. Here each test has one.
commands: Any = typer.main
commands.get_params_from_function = functools.cache(commands.get_params_from_function)


@pytest.fixture(scope="session")
def store_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStore]:
    """Start one real server for the whole session (one for each process of tests.parallel)."""
    store = EmbeddedStore.start(tmp_path_factory.mktemp("store"))
    yield store
    store.stop()


@pytest.fixture
def store_url(store_server: EmbeddedStore) -> str:
    """Empty the server and return its URL. The order of the tests depends on timing, so nothing may be left from another."""
    with socket.socket(socket.AF_UNIX) as connection:  # a tenth of the cost of a client
        connection.connect(urlsplit(store_server.url).path)
        connection.sendall(b"FLUSHALL\r\n")
        assert connection.recv(64) == b"+OK\r\n"
    return store_server.url


@pytest.fixture
async def client(store_url: str) -> AsyncIterator[Client]:
    """Yield a connected client of that server."""
    client = Client.connect(store_url, timeout_s=PATIENCE_S)
    await client.call("PING")
    yield client
    await client.close()

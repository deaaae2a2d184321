"""What every test begins with: the same surroundings everywhere, a real store server, emptied, and a client of it."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pytest
import structlog
import typer.main
from hypothesis import settings

from gateway.store.client.client import Client
from gateway.store.embedded import EmbeddedStore
from gateway.usage.database import UsageFiles
from gateway.usage.home import DATABASES, Home, postgres
from tests.patience import PATIENCE_S
from tests.place import Place
from tests.postgres import WHY_NOT, PostgresServer, binary
from tests.records import OPENED

OF_THE_SUITE: Final = (
    "GATEWAY_PURE",
    "GATEWAY_TEST_BROWSER",
    "GATEWAY_ONE_LOG_REQUESTS",
    "GATEWAY_STORE_AWAY_S",
    "GATEWAY_KILLS",
)
"""Variables of the gateway's that choose what is tested."""
OF_OTHERS: Final = ("GATEWAY_", "LISTEN_", "NOTIFY_", "WATCHDOG_", "OPENAI_", "ANTHROPIC_", "OTEL_", "XDG_")
"""Prefixes of variables that a gateway, a client or a command of a test would read."""
OF_TERMINALS: Final = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "SUDO_USER")
MOST_OF_TEMP: Final = 32
LONGEST_S: Final = 600
"""Seconds that a test may take: the longest takes two minutes, and a busy machine is no reason to fail."""
PROXIES: Final = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")

for name in tuple(os.environ):
    if name not in OF_THE_SUITE and (name.startswith(OF_OTHERS) or name in OF_TERMINALS + PROXIES):
        del os.environ[name]
os.umask(0o022)

# No path of a socket is longer than 107 bytes, and no library that is loaded first has a space in its path.
if len(tempfile.gettempdir()) > MOST_OF_TEMP or " " in tempfile.gettempdir():
    tempfile.tempdir = os.environ["TMPDIR"] = "/tmp"

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


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Close the usage logs that the test has opened."""
    while OPENED:
        OPENED.pop().close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Fail a test whose fixtures wait for ever."""
    with ended_in_time(item.nodeid):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test that waits for ever: without it, the run would not end."""
    with ended_in_time(item.nodeid):
        return (yield)


@contextlib.contextmanager
def ended_in_time(name: str) -> Iterator[None]:
    """Raise in the main thread where the body takes longer than any test may. A forked process has no such timer."""

    def fail(*_: object) -> None:
        pytest.fail(f"{name} did not end within {LONGEST_S} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, LONGEST_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session", autouse=True)
def empty_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Run all tests in an empty folder: none meets what lies in the checkout, such as the data of `make serve`, or writes there."""
    folder = tmp_path_factory.mktemp("empty")
    with contextlib.chdir(folder):
        yield
    assert not os.listdir(folder), "a test wrote into the current folder"  # noqa: PTH208


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
        connection.connect(unquote(urlsplit(store_server.url).path))
        connection.sendall(b"FLUSHALL\r\n")
        assert connection.recv(64) == b"+OK\r\n"
    return store_server.url


@pytest.fixture
def place(tmp_path: Path, store_url: str) -> Place:
    """Return where a gateway of the test is."""
    return tmp_path, store_url


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """Start one PostgreSQL server for the whole session."""
    if binary("initdb") is None:
        pytest.skip(WHY_NOT)
    server = PostgresServer()
    yield server
    server.stop()


@pytest.fixture
def database_url(postgres_server: PostgresServer) -> Iterator[str]:
    """Drop what the database has, and return its URL."""
    postgres_server.empty()
    yield postgres_server.url
    while DATABASES:
        DATABASES.popitem()[1].close()


@pytest.fixture(params=["sqlite", "postgresql"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    """Return a home of the usage log: one of each kind, for all tests of the log."""
    folder = tmp_path / "usage"
    return (
        UsageFiles(folder) if request.param == "sqlite" else postgres(request.getfixturevalue("database_url"), folder)
    )


@pytest.fixture
async def client(store_url: str) -> AsyncIterator[Client]:
    """Yield a connected client of that server."""
    client = Client.connect(store_url, timeout_s=PATIENCE_S)
    await client.call("PING")
    yield client
    await client.close()

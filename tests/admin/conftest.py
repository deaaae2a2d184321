"""The admin port's application on a test server, in front of a usage log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import ClientTimeout, web
from aiohttp.test_utils import TestClient
from pytest_aiohttp import AiohttpClient

from gateway.admin.app import Admin
from gateway.admin.callers import Callers
from gateway.metrics.exporter import Exporter
from gateway.store.client.client import Client as StoreClient
from gateway.store.management_tokens import ManagementTokens
from gateway.usage.database import UsageDatabase
from tests.patience import PATIENCE_S

TOKEN: Final = "an-admin-token-of-31-characters"

Client = TestClient[Any, Any]
ClientWith = Callable[[str], Awaitable[Client]]


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[UsageDatabase]:
    database = UsageDatabase(tmp_path)
    yield database
    database.close()


@pytest.fixture
async def tokens(store_url: str) -> AsyncIterator[ManagementTokens]:
    """The management tokens of a store."""
    store = StoreClient.connect(store_url, timeout_s=PATIENCE_S)
    yield ManagementTokens(store)
    await store.close()


@pytest.fixture
def callers(tokens: ManagementTokens) -> Callers:
    """Who may call: the holder of `TOKEN`, and those of management tokens."""
    return Callers(lambda: TOKEN, tokens)


@pytest.fixture
def application(rows: UsageDatabase, callers: Callers) -> web.Application:
    return Admin(rows.folder, callers, Exporter({})).application()


@pytest.fixture
def client_with(aiohttp_client: AiohttpClient, application: web.Application) -> ClientWith:
    """A function that returns a client which sends a token."""

    async def client_with(token: str) -> Client:
        headers = {"Authorization": f"Bearer {token}"}
        return await aiohttp_client(application, headers=headers, timeout=ClientTimeout(PATIENCE_S))

    return client_with


@pytest.fixture
async def client(client_with: ClientWith) -> Client:
    """A client with the right token."""
    return await client_with(TOKEN)

"""The admin port's application on a test server, in front of a usage log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import ClientTimeout, web
from aiohttp.test_utils import TestClient
from pytest_aiohttp import AiohttpClient

from gateway.admin.app import Admin
from gateway.metrics.exporter import Exporter
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
def application(rows: UsageDatabase) -> web.Application:
    return Admin(rows.folder, lambda: TOKEN, Exporter({})).application()


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

"""The admin port's application on a test server, in front of a usage log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import ClientTimeout, web
from aiohttp.test_utils import TestClient
from pytest_aiohttp import AiohttpClient

from gateway.admin.actions.action import Actor
from gateway.admin.actions.local import LocalClient
from gateway.admin.actions.management_tokens import ManagementTokens
from gateway.admin.http.app import Admin, Callers
from gateway.chain.services import Store
from gateway.config.schema import load
from gateway.metrics.exporter import Exporter
from gateway.store.client.client import Client as StoreClient
from gateway.store.pepper import VARIABLE
from gateway.usage.database import UsageFiles
from tests.patience import PATIENCE_S
from tests.records import usage_database

CONFIG: Final = "redis: {url}\ndata: {folder}\nstore: {{timeout: {timeout}}}\ngroups: {{default: {{}}}}\n"
TOKEN: Final = "an-admin-token-of-31-characters"

Client = TestClient[Any, Any]
ClientWith = Callable[[str], Awaitable[Client]]


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[UsageFiles]:
    database = usage_database(tmp_path / "usage")
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
def application(rows: UsageFiles, callers: Callers, local_client: LocalClient) -> web.Application:
    return Admin(callers, Exporter({}), lambda *_: local_client).application()


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


@pytest.fixture
async def local_client(tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalClient]:
    """A client of actions of the store that the API works with."""
    monkeypatch.setenv(VARIABLE, "p" * 40)
    file = tmp_path / "gateway.yaml"
    file.write_text(CONFIG.format(url=store_url, folder=tmp_path, timeout=PATIENCE_S))
    loaded = load(file)
    async with Store.open(loaded.config, store_url) as store:
        yield LocalClient(loaded, store, Actor("test"))


@pytest.fixture
async def api(local_client: LocalClient, callers: Callers, aiohttp_client: AiohttpClient) -> Client:
    """A client of the API, without a token of its own."""

    def client_of(actor: Actor, key: str) -> LocalClient:
        return LocalClient(local_client.loaded, local_client.store, actor, key)

    admin = Admin(callers, Exporter({}), client_of)
    return await aiohttp_client(admin.application(), timeout=ClientTimeout(PATIENCE_S))


async def call(
    client: Client, method: str, path: str, body: Any = None, token: str = TOKEN, **headers: str
) -> tuple[int, Any]:
    """Return the status and the body of an answer. `headers`: further ones, with underscores for hyphens."""
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    async with client.request(method, f"/api/v1{path}", json=body, headers=headers) as response:
        return response.status, (await response.json() if response.status != 204 else None)

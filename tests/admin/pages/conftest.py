"""The pages on a test server, with a real store, and browsers that have entered by links."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from html import unescape
from pathlib import Path
from re import search
from typing import Any, Final

import pytest
from aiohttp import ClientTimeout, CookieJar
from aiohttp.test_utils import TestClient
from pytest_aiohttp import AiohttpClient

from gateway.admin.actions import links
from gateway.admin.actions.action import Actor, Scope
from gateway.admin.actions.links import AdminToken, NewLink
from gateway.admin.actions.local import GatewayState, LocalClient
from gateway.admin.actions.management_tokens import ManagementTokens
from gateway.admin.http.app import Admin, Callers
from gateway.admin.pages.pages import Pages
from gateway.chain.services import Store
from gateway.config.schema import Loaded, load
from gateway.metrics.exporter import Exporter
from tests.admin.http.conftest import TOKEN
from tests.patience import PATIENCE_S

CONFIG: Final = """\
redis: {url}
data: {folder}
store: {{timeout: {timeout}}}
{more}
channels:
  up: {{base_url: 'http://127.0.0.1:9/v1', api_keys: [sk-secret-number-one, sk-secret-number-two]}}
  '<b onclick=x>"&/': {{base_url: 'http://127.0.0.1:9/v1', headers: {{X-Key: sk-secret-number-three}}}}
models:
  words: {{input: 1, output: 2, channels: [up]}}
  pictures: {{image: {{low: 0.01, "high 1024x1024": 0.17}}, channels: [up]}}
  '<b onclick=x>"&/': {{free: true, channels: ['<b onclick=x>"&/']}}
groups: {{default: {{}}, trial: {{budgets: {{session: 5, session_requests: 500}}}}, '<b onclick=x>"&/': {{}}}}
plugins: [{{use: usage-logger}}, {{use: auth}}, {{use: quota}}, {{use: model-routing}}]
"""

Client = TestClient[Any, Any]


class House:
    """A served operator's port. `loaded` is its configuration, which a test may replace as a reload does."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.loaded = self.configured("")
        self.store: Store
        self.running: GatewayState | None = None
        self.client_of: Callable[[], Awaitable[Client]]

    def configured(self, more: str) -> Loaded:
        """Return the configuration with more settings."""
        file = self.folder / "gateway.yaml"
        file.write_text(CONFIG.format(url=self.url, folder=self.folder, timeout=PATIENCE_S, more=more))
        return load(file)

    def local_client(self, actor: Actor | None = None, key: str = "") -> LocalClient:
        """Return the client of actions of an actor, or of somebody who may do everything."""
        return LocalClient(self.loaded, self.store, actor or Actor("test"), key, running=self.running)

    async def link(self, *scopes: Scope, actor: Actor | None = None) -> str:
        """Make a link and return its ticket."""
        made = await links.create(self.local_client(actor), body=NewLink(name="alice", scopes=scopes or None))
        return str(made.url).partition("ticket=")[2]

    async def browser(self, *scopes: Scope, actor: Actor | None = None) -> PlainBrowser:
        """Return a browser that has entered, with all scopes unless some are named."""
        browser = PlainBrowser(await self.client_of())
        status = await browser.enter(await self.link(*scopes, actor=actor))
        assert status == 303
        return browser


class PlainBrowser:
    """A browser without JavaScript: it keeps cookies, and sends the forms of the page that it looked at last."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.origin = str(client.make_url("")).rstrip("/")
        self.proof = ""
        self.once = ""
        self.headers: dict[str, str] = {}
        self.sends: dict[str, str] = {}
        """Headers of forms, as a proxy adds them."""

    async def get(self, path: str, **headers: str) -> tuple[int, str]:
        """Look at a page."""
        async with self.client.get(path, allow_redirects=False, headers=headers) as response:
            text = await response.text()
            self.headers = dict(response.headers)
            self._look(text)
            return response.status, text

    async def post(
        self, path: str, *, origin: str | None = None, proof: str | None = None, **fields: str
    ) -> tuple[int, str]:
        """Send a form as the page that was looked at last would."""
        fields = {"form": self.proof if proof is None else proof, **fields}
        headers = {"Origin": self.origin if origin is None else origin, **self.sends}
        async with self.client.post(path, data=fields, headers=headers, allow_redirects=False) as response:
            text = await response.text()
            self.headers = dict(response.headers)
            self._look(text)
            return response.status, text

    async def enter(self, ticket: str) -> int:
        """Use a ticket, and look at the accounts for the proof of the forms there."""
        status, _ = await self.post("/enter", ticket=ticket)
        await self.get("/accounts")
        return status

    def _look(self, text: str) -> None:
        if found := search(r'name="form" value="([^"]+)"', text):
            self.proof = unescape(found[1])
        if found := search(r'name="once" value="([^"]+)"', text):
            self.once = unescape(found[1])


@pytest.fixture
async def house_at(
    tmp_path: Path, aiohttp_client: AiohttpClient, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[[str], Awaitable[House]]]:
    """A function that returns the operator's port with its pages, in front of the store at an address."""
    for name in ("GATEWAY_ADMIN_TOKEN", "GATEWAY_PEPPER"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "admin.token").write_text(f"{TOKEN}\n")
    (tmp_path / "pepper").write_text("a-pepper-of-enough-characters\n")
    async with AsyncExitStack() as stack:

        async def house_at(url: str) -> House:
            house = House(tmp_path, url)
            house.store = await stack.enter_async_context(Store.open(house.loaded.config, url))
            admin_token = AdminToken(house.loaded.config)
            callers = Callers(admin_token, ManagementTokens(house.store.client))
            pages = Pages(house.local_client, admin_token, {})

            async def client_of() -> Client:
                admin = Admin(callers, Exporter({}), house.local_client, pages)
                jar = CookieJar(unsafe=True)
                return await aiohttp_client(admin.application(), cookie_jar=jar, timeout=ClientTimeout(PATIENCE_S))

            house.client_of = client_of
            return house

        yield house_at


@pytest.fixture
async def house(house_at: Callable[[str], Awaitable[House]], store_url: str) -> House:
    """The operator's port with its pages, in front of an empty store."""
    return await house_at(store_url)

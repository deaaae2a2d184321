"""The speed of the operators' pages: `python -m tests.bench.pages [REQUESTS] [FOLDER]`, 1,000,000 requests of 10,000 accounts.

The requests are those of `tests.bench.admin_views`, whose FOLDER can be used. Each page is asked for over HTTP, once with the log's
files out of the system's memory, and then many times, while records go on to be written. The figures depend on the machine;
nothing here is a test. ADMIN_VIEWS.md has some.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from aiohttp import ClientSession, CookieJar

from gateway.admin.actions import accounts, links, requests
from gateway.admin.actions.accounts import NewAccount
from gateway.admin.actions.action import Actor
from gateway.admin.actions.links import AdminToken, token_of
from gateway.admin.actions.local import LocalClient
from gateway.admin.actions.management_tokens import ManagementTokens
from gateway.admin.actions.requests import Requests
from gateway.admin.http.app import Admin, Callers
from gateway.admin.http.port import serving
from gateway.admin.pages.pages import Pages
from gateway.chain.services import Store
from gateway.config.schema import load
from gateway.metrics.exporter import Exporter
from gateway.store.embedded import EmbeddedStore
from gateway.usage.database import UsageFiles
from tests.bench.admin_views import ACCOUNTS, LARGE, fill, heading, timed

AT_ONCE: Final = 100
CONFIG: Final = """\
data: {folder}/data
store: {{timeout: 5}}
channels: {{openai: {{base_url: 'http://h/v1'}}, azure: {{base_url: 'http://h/v1'}}, own: {{base_url: 'http://h/v1'}}}}
models: {{words: {{input: 1, output: 2, channels: [openai, azure, own]}}}}
groups: {{default: {{}}}}
plugins: [{{use: usage-logger}}]
"""


async def make_accounts(local_client: LocalClient) -> None:
    names = [LARGE, *(f"account{number}" for number in range(ACCOUNTS))]
    for first in range(0, len(names), AT_ONCE):
        made = (accounts.create(local_client, body=NewAccount(id=name)) for name in names[first : first + AT_ONCE])
        await asyncio.gather(*made)


async def measure(folder: Path, url: str) -> None:
    file = folder / "gateway.yaml"
    file.write_text(CONFIG.format(folder=folder))
    loaded = load(file)
    token_of(loaded.config)
    admin_token = AdminToken(loaded.config)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(Store.open(loaded.config, url))

        def client_of(actor: Actor, key: str) -> LocalClient:
            return LocalClient(loaded, store, actor, key)

        local_client = client_of(Actor("bench"), "")
        await make_accounts(local_client)
        callers = Callers(admin_token, ManagementTokens(store.client))
        admin = Admin(callers, Exporter({}), client_of, Pages(client_of, admin_token, {}))
        port = await stack.enter_async_context(serving(admin.application(), "127.0.0.1:0"))
        base = f"http://127.0.0.1:{port}"
        client = await stack.enter_async_context(ClientSession(cookie_jar=CookieJar(unsafe=True)))
        ticket = (await links.create(local_client, body=links.NewLink())).url or ""
        form = {"ticket": ticket.partition("ticket=")[2]}
        async with client.post(f"{base}/enter", data=form, headers={"Origin": base}) as response:
            assert response.status == 200
        newest = (await requests.list_(local_client, query=Requests(limit=1))).data[0]
        database = UsageFiles(store.usage.folder)
        groups = "by=day&by=account&by=model&by=channel"
        heading("page")
        for path in (
            *("/", "/requests", "/requests?account=account7", "/requests?model=none", f"/requests/{newest.id}"),
            *("/accounts", "/accounts?q=7", f"/accounts/{LARGE}", "/accounts/account7", "/channels", "/money"),
            *(f"/money?{groups}", "/money?by=account", f"/money?account={LARGE}&{groups}", "/configuration", "/audit"),
            *("/charts", "/charts?since=24h", "/charts?since=7d"),
        ):

            async def ask(path: str = path) -> None:
                async with client.get(base + path) as response:
                    await response.read()
                    assert response.status == 200, path

            await timed(path, ask, database, store.usage.folder)
        database.close()


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(sys.argv[2] if len(sys.argv) > 2 else scratch)
        log = folder / "data" / "usage"
        log.mkdir(parents=True, exist_ok=True)
        if not UsageFiles(log).months():
            fill(log, count)
        store = EmbeddedStore.start(Path(scratch))
        try:
            asyncio.run(measure(folder, store.url))
        finally:
            store.stop()


if __name__ == "__main__":
    main()

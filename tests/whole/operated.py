"""A whole gateway as `gateway serve` runs it, with an operator's port, a callers' port, and a month of requests behind it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp

from gateway.domain.exchange import Outcome
from gateway.fake_upstream import FakeUpstream
from tests.cli.processes import all_ready, answers, free_port
from tests.forked import FORKED
from tests.patience import PATIENCE_S
from tests.records import COSTED, arrival, end, id_at, usage_database

DAY_MS: Final = 86_400_000
DAYS: Final = 28
CONFIG: Final = """\
listen: 127.0.0.1:{port}
admin: 127.0.0.1:{admin}
portal: {{listen: '127.0.0.1:{portal}'}}
workers: 1
store: {{timeout: {timeout}}}
channels:
  main: {{base_url: "{upstream}", api_keys: [sk-number-one-4711, sk-number-two-4711]}}
  spare: {{base_url: "{upstream}"}}
models:
  words: {{input: 100, output: 200, max_output_tokens: 100, channels: [{{use: main, cost: {{input: 80, output: 160}}}}, spare]}}
  other: {{input: 10, output: 20, max_output_tokens: 100, channels: [main]}}
groups:
  default: {{models: ["*"], budgets: {{day: 2, month: 20}}}}
  trial: {{models: [other]}}
plugins:
  - use: usage-logger
  - use: auth
  - use: rate-limit
    with: {{requests_per_minute: 1000, tokens_per_minute: 1000000, concurrent: 50}}
  - use: quota
  - use: model-routing
"""
TROUBLE: Final = (
    (Outcome.REFUSED, "insufficient_balance", 402),
    (Outcome.UPSTREAM_FAILED, "upstream_overloaded", 503),
    (Outcome.CALLER_GONE, "caller_gone", 200),
)


class Operated:
    """The gateway. `admin` and `portal`: the addresses of its pages; `base_url` ends in /v1."""

    def __init__(self, folder: Path, ports: dict[str, int], upstream: FakeUpstream) -> None:
        self.folder = folder
        self.upstream = upstream
        self.admin, self.portal, self.base_url = (
            f"http://127.0.0.1:{ports[name]}" for name in ("admin", "portal", "port")
        )
        self.base_url += "/v1"
        self.hosts = {urlsplit(address).netloc for address in (self.admin, self.portal)}

    async def call(self, method: str, path: str, **body: object) -> Any:
        """Call the API, and return what it answers."""
        headers = {"Authorization": f"Bearer {(self.folder / 'data' / 'admin.token').read_text().strip()}"}
        url = f"{self.admin}/api/v1{path}"
        async with (
            aiohttp.ClientSession(headers=headers) as client,
            client.request(method, url, json=body or None) as response,
        ):
            assert response.status in (200, 201, 204), await response.text()
            return await response.json() if response.status != 204 else None

    async def link(self) -> str:
        """Return the address that lets an operator in, once."""
        return str((await self.call("POST", "/links", name="alice"))["url"])

    async def own_link(self, account: str) -> str:
        """Return the address that lets a caller in, once."""
        return str((await self.call("POST", f"/accounts/{account}/links"))["url"])

    async def account(self, name: str, *, credit: int = 5_000_000, **fields: object) -> str:
        """Make an account with a balance in micros, and return a token of it."""
        await self.call("POST", "/accounts", id=name, **fields)
        if credit:
            await self.call("POST", f"/accounts/{name}/credits", transaction=f"opening-{name}", amount_micros=credit)
        return str((await self.call("POST", f"/accounts/{name}/tokens", name="laptop"))["token"])

    async def ask(self, token: str, model: str = "words", text: str = "hi") -> str:
        """Send a request to the end of its answer, and return its id."""
        body = {"model": model, "stream": True, "messages": [{"role": "user", "content": text}]}
        headers = {"Authorization": f"Bearer {token}"}
        url = f"{self.base_url}/chat/completions"
        async with aiohttp.ClientSession(headers=headers) as client, client.post(url, json=body) as response:
            await response.read()
            return response.headers["x-request-id"]


def write_past(folder: Path) -> None:
    """Write requests of the days before: six a day, more on some, of two accounts; some failed."""
    start_ms = round(time.time() * 1000) - DAYS * DAY_MS
    database = usage_database(folder)
    records = []
    for day in range(DAYS):
        for number in range(3 + day * 5 % 7):
            account = ("acme", "bolt")[number % 2]
            charge = 20_000 + 9_000 * (day * number % 11)
            changes: dict[str, Any] = COSTED | {
                "account": account,
                "token_id": f"{account}-k3f9x2ab",
                "model": ("words", "other")[number % 3 == 0],
                "channel": ("main", "spare")[number % 4 == 0],
                "charge_micros": charge,
                "cost_micros": charge * 4 // 5,
                "margin_micros": charge - charge * 4 // 5,
                "prompt_tokens": 900 + 37 * number,
                "completion_tokens": 210 + 11 * day,
            }
            if (day + number) % 9 == 0:
                outcome, code, status = TROUBLE[day % 3]
                changes |= {"outcome": outcome, "error_code": code, "status": status}
            records.append(end(arrival(id_at(start_ms + day * DAY_MS + number * 5_000_000)), **changes))
    database.write(records)
    database.close()


@asynccontextmanager
async def operated(folder: Path) -> AsyncIterator[Operated]:
    """Serve until the end, from when the pages answer."""
    ports = {name: free_port() for name in ("port", "admin", "portal")}
    async with FakeUpstream(pace_s=0) as upstream:
        file = folder / "gateway.yaml"
        file.write_text(
            CONFIG.format(**ports, upstream=upstream.base_url, timeout=PATIENCE_S) + f"data: {folder}/data\n"
        )
        (folder / "data").mkdir(mode=0o700)
        write_past(folder / "data" / "usage")
        environment = {name: value for name, value in os.environ.items() if name != "GATEWAY_ADMIN_TOKEN"}
        with (folder / "serve.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(FORKED, "-m", "gateway", "serve", "--config", str(file)),
                cwd=folder,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=environment,
            )
        try:
            await all_ready(process)
            house = Operated(folder, ports, upstream)
            async with asyncio.timeout(PATIENCE_S):
                for address in (house.admin, house.portal):
                    await answers(f"{address}/healthz")
            yield house
            process.terminate()
            assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

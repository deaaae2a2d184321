"""A client that a public generator makes from the API's description does what a shop does.

`python -m tests.bench.openapi_client VENV`, where VENV is an environment with the generator, which is no dependency of ours:

    python3 -m venv VENV && VENV/bin/pip install openapi-python-client openapi-spec-validator ruff

A demo gateway is started. Its description is validated, and a client is generated from it. That creates an account, credits it,
makes a token, and finds the request that is sent with the token.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import aiohttp

from tests.cli.processes import demo_in, free_port, serving
from tests.whole.api import admin_token, api_of

SHOP: Final = """\
import os
import sys
import time

from shop_client import AuthenticatedClient
from shop_client.api.accounts import accounts_create, accounts_read
from shop_client.api.money import money_credit
from shop_client.api.requests import requests_list, requests_read
from shop_client.api.tokens import tokens_create
from shop_client.models import Error, NewAccount, NewCredit, NewToken

step, *more = sys.argv[1:]
client = AuthenticatedClient(base_url=os.environ["API"], token=os.environ["API_TOKEN"])

if step == "sell":
    made = accounts_create.sync(client=client, body=NewAccount(id="alice", external_id="customer-17"), idempotency_key="1")
    print("created", made.id, made.status.value, file=sys.stderr)
    refused = accounts_create.sync(client=client, body=NewAccount(id="alice"))
    assert isinstance(refused, Error), refused
    print("refused", refused.error.code, refused.error.message, file=sys.stderr)
    credit = NewCredit(transaction="order-1", amount_micros=5_000_000)
    booked = [money_credit.sync("alice", client=client, body=credit) for _ in range(2)]
    print("credited", [(each.balance_micros, each.booked_before) for each in booked], file=sys.stderr)
    token = tokens_create.sync("alice", client=client, body=NewToken(name="laptop"), idempotency_key="2")
    again = tokens_create.sync("alice", client=client, body=NewToken(name="laptop"), idempotency_key="2")
    assert (again.id, again.token) == (token.id, None)
    print("made the token", token.id, file=sys.stderr)
    print(token.token)
else:
    (request,) = more
    deadline = time.monotonic() + 30
    while True:
        page = requests_list.sync(client=client, account="alice")
        if page.data and page.data[0].outcome == "completed":
            break
        assert time.monotonic() < deadline, page
        time.sleep(0.1)
    assert [each.id for each in page.data] == [request], page
    found = requests_read.sync(request, client=client)
    left = accounts_read.sync("alice", client=client)
    assert left.balance_micros == 5_000_000 - found.charge_micros
    print("saw the request", found.id, found.model, found.outcome, found.charge_micros, "micros", file=sys.stderr)
"""


async def main(venv: Path) -> None:
    """Run the whole of it. Raises `CalledProcessError` where a step fails."""
    with TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        async with serving(demo_in(folder, admin=f"127.0.0.1:{port}")) as served, api_of(folder, port) as api:
            shop = {"API": f"http://127.0.0.1:{port}", "API_TOKEN": admin_token(folder)}
            _, description = await api.call("GET", "/openapi.json")
            (folder / "openapi.json").write_text(json.dumps(description))
            await _run(folder, venv / "bin/openapi-spec-validator", "openapi.json")
            generate = ("generate", "--path", "openapi.json", "--output-path", "shop_client", "--meta", "none")
            await _run(folder, venv / "bin/openapi-python-client", *generate)
            (folder / "shop.py").write_text(SHOP)
            bought = await _run(folder, venv / "bin/python", "shop.py", "sell", **shop)
            request = await _ask(served.base_url, bought.strip())
            await _run(folder, venv / "bin/python", "shop.py", "look", request, **shop)
            assert await served.stop() == 0


async def _run(folder: Path, program: Path, *arguments: str, **variables: str) -> str:
    """Run a program of the environment, with further variables, and return what it printed."""
    print(f"$ {program.name} {arguments[0]}", flush=True)
    command, environment = [str(program), *arguments], os.environ | variables
    environment["PATH"] = f"{program.parent}:{environment['PATH']}"

    def run() -> str:
        return subprocess.run(
            command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=300
        ).stdout

    return await asyncio.to_thread(run)


async def _ask(base_url: str, token: str) -> str:
    """Send a request with a caller's token, and return its id."""
    body = {"model": "demo-words", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    headers = {"Authorization": f"Bearer {token}"}
    url = f"{base_url}/chat/completions"
    async with aiohttp.ClientSession(headers=headers) as session, session.post(url, json=body) as response:
        assert "[DONE]" in await response.text()
        return response.headers["x-request-id"]


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]).absolute()))

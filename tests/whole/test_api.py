"""The API of a running gateway: the calls that deploy/operators.md shows, word for word, and writes that it did not live to answer.

tests/admin/http/test_api_crashes.py kills it at each crash point, with a process of the API alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from gateway.admin.actions.action import PREFIX
from gateway.admin.actions.table import ACTIONS
from tests.cli.processes import Served, demo_in, free_port, gateway, serving
from tests.patience import PATIENCE_S, wait_until
from tests.whole.api import Api, admin_token, api_of
from tests.whole.own_store import OwnStore

README: Final = Path(__file__).parent.parent.parent / "deploy/operators.md"
NOT_SHOWN: Final = {"alerts.list", "channels.credential", "channels.test", "usage.live"}
"""Operations that no call of the document is of: one needs a second credential, one asks the upstream, one has no end."""


def section() -> str:
    """Return the part of the document about the API."""
    return README.read_text().partition("\n## The operator's API\n")[2].partition("\n## ")[0]


def calls() -> list[str]:
    """Return the lines of its calls."""
    blocks = re.findall(r"```sh\n(.*?)```", section(), flags=re.DOTALL)
    asking = [block for block in blocks if "$BASE" in block]
    assert len(asking) == 2
    return [line for block in asking for line in block.splitlines() if line and not line.startswith("#")]


async def ask(served: Served) -> str:
    """Send a request of the demo account, and return its id."""
    url = f"{served.base_url}/chat/completions"
    body = {"model": "demo-words", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    async with aiohttp.ClientSession(headers=served.headers) as client, client.post(url, json=body) as response:
        assert "[DONE]" in await response.text()
        return response.headers["x-request-id"]


async def ended(api: Api, request: str) -> None:
    """Wait until a request is in the usage log with its end."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            _, page = await api.call("GET", "/requests?limit=1")
            if [(each["id"], each["outcome"]) for each in page["data"]] == [(request, "completed")]:
                return
            await asyncio.sleep(0.05)


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("jq")), reason="the calls are those of curl and jq")
async def test_each_call_of_the_document_does_what_it_says(tmp_path: Path) -> None:
    port = free_port()
    file = demo_in(tmp_path, admin=f"127.0.0.1:{port}")
    async with serving(file) as served, api_of(tmp_path, port) as api:
        await ended(api, await ask(served))
        answers = await run(calls(), tmp_path, port)
        assert answers["$BASE/accounts/alice"]["limits"]["concurrent"] == 4
        assert answers["$BASE/accounts/robert/close"]["status"] == "closed"
        assert answers["$BASE/accounts/alice/adjustments"]["balance_micros"] == 3_749_000
        lines = answers['"$BASE/accounts/alice/ledger?limit=10"']["data"]
        assert [line["amount_micros"] for line in lines] == [1, -1_250_000, -1000, 5_000_000]
        assert answers["$BASE/accounts/alice/tokens"]["token"].startswith("sk-")
        assert answers["$BASE/tokens/$NEW"]["name"] == "old laptop"
        assert answers["$BASE/channels/demo/disable"]["disabling"]["reason"] == "maintenance"
        assert answers['"$BASE/usage/export.csv?account=demo"'].startswith("id,arrived_at,")
        assert answers["$BASE/accounts/alice/links"]["url"].startswith("http://127.0.0.1:")
        changes = {entry["operation"] for entry in answers['"$BASE/audit?target=alice"']["data"]}
        assert changes >= {"accounts.create", "accounts.change", "money.credit", "tokens.create", "tokens.rotate"}
        code, said, _ = await gateway("verify", "--config", str(file), cwd=tmp_path)
        assert code == 0, said
        assert await served.stop() == 0


async def run(lines: list[str], folder: Path, port: int) -> dict[str, Any]:
    """Run the calls in one shell, and return their answers by the addresses that they ask."""
    answers: dict[str, Any] = {}
    script = ["set -eu -o pipefail"]
    for number, line in enumerate(lines):
        shown = line.startswith("api ")
        script.append(f"{line} > {number}.answer" if shown else line.replace("127.0.0.1:9090", f"127.0.0.1:{port}"))
    process = await asyncio.create_subprocess_exec(
        *("bash", "-c", "\n".join(script)),
        cwd=folder,
        env=os.environ | {"TOKEN": admin_token(folder)},
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    for number, line in enumerate(lines):
        answer = folder / f"{number}.answer"
        if line.startswith("api ") and answer.exists():
            text = answer.read_text()
            assert not text.startswith('{"error"'), (line, text)
            (address,) = re.findall(r'"?\$BASE[^ ]*', line)
            is_json = text.startswith(("{", "["))
            answers[address] = json.loads(text) if is_json else text
    assert process.returncode == 0, errors.decode()
    return answers


def test_every_operation_is_shown() -> None:
    text = "\n".join(calls())
    missing = []
    for action in ACTIONS:
        path = re.sub(r"\\\{\w+\\\}", r"[\\w$-]+", re.escape(action.path))
        asked = [line for line in text.splitlines() if re.search(rf"\$BASE{path}[ ?\"|)]|\$BASE{path}$", line)]
        writes = [line for line in asked if "--json" in line or "-X POST" in line]
        fitting = {
            "GET": [line for line in asked if "-X" not in line and "--json" not in line],
            "POST": [line for line in writes if "-X PATCH" not in line],
        }.get(action.method, [line for line in asked if f"-X {action.method}" in line])
        if not fitting and action.name not in NOT_SHOWN:
            missing.append(action.name)
    assert missing == []
    assert PREFIX == "/api/v1"


async def test_the_served_configuration_and_a_refused_reload_are_known_to_the_api(tmp_path: Path) -> None:
    port = free_port()
    file = demo_in(tmp_path, admin=f"127.0.0.1:{port}")
    right = file.read_text()
    async with serving(file) as served, api_of(tmp_path, port) as api:

        async def created(account: str, group: str) -> int:
            return (await api.call("POST", "/accounts", {"id": account, "group": group}))[0]

        assert await created("alice", "trial") == 404
        file.write_text(right.replace("groups:\n", "groups:\n  trial: {}\n"))
        async with asyncio.timeout(PATIENCE_S):
            while await created("alice", "trial") != 201:
                await asyncio.sleep(0.1)
        file.write_text(right + "unknown: 1\n")
        await wait_until(lambda: "reload_refused" in (tmp_path / "serve.log").read_text())
        assert await created("robert", "trial") == 201
        _, config = await api.call("GET", "/config")
        assert config["generation"] == 2
        assert "unknown" in config["refused"]["reason"]
        assert await served.stop() == 0


async def test_wrong_tokens_are_counted_and_the_port_goes_on_without_its_store(tmp_path: Path) -> None:
    port = free_port()
    store = OwnStore(tmp_path / "elsewhere")
    await store.start()
    try:
        file = demo_in(tmp_path, admin=f"127.0.0.1:{port}")
        file.write_text(f"{file.read_text()}redis: {store.url}\n")
        async with serving(file) as served, api_of(tmp_path, port) as api:
            url, right = f"http://127.0.0.1:{port}", {"Authorization": f"Bearer {admin_token(tmp_path)}"}
            async with aiohttp.ClientSession() as session:
                for token in ("wrong", "sk-mgmt-1a2b3c4d5e6f-wrong"):
                    headers = {"Authorization": f"Bearer {token}"}
                    async with session.get(f"{url}/api/v1/accounts", headers=headers) as response:
                        assert response.status == 401
                store.signal(signal.SIGSTOP)
                try:
                    for method, path, body in (("GET", "/accounts", None), ("POST", "/accounts", {"id": "alice"})):
                        status, said = await api.call(method, path, body, "one" if body else "")
                        assert (status, said["error"]["code"]) == (503, "service_unavailable")
                    async with session.get(f"{url}/healthz") as response:
                        assert await response.text() == "ok\n"
                    async with session.get(f"{url}/metrics", headers=right) as response:
                        assert "sluicegate_admin_tokens_refused_total 2.0" in await response.text()
                finally:
                    store.signal(signal.SIGCONT)
                status, made = await api.repeated("POST", "/accounts", {"id": "alice"}, "one")
                assert (status, made["id"]) == (201, "alice")
            assert await served.stop() == 0
    finally:
        await store.end()
        await store.operator.aclose()


ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="a process ends with its parent")

WRITES: Final[tuple[tuple[str, str, Any], ...]] = (
    ("POST", "/accounts", {"id": "alice", "external_id": "customer-17"}),
    ("PATCH", "/accounts/demo", {"external_id": "the demo"}),
    ("POST", "/accounts/demo/credits", {"transaction": "t-1", "amount_micros": 1_000_000}),
    ("POST", "/accounts/demo/tokens", {"name": "laptop"}),
    ("POST", "/management-tokens", {"name": "shop", "scopes": ["read"]}),
    ("POST", "/accounts/import", {"rows": [{"line": 1, "id": "robert", "amount_micros": 7}]}),
)


@ON_LINUX
async def test_a_write_that_was_killed_is_done_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    file = demo_in(tmp_path, admin=f"127.0.0.1:{port}")
    monkeypatch.setenv("GATEWAY_CRASH_AT", "api.done")
    async with serving(file) as served, api_of(tmp_path, port) as api:
        for number, write in enumerate(WRITES):
            assert await api.lost(*write, f"key {number}")
        assert await served.stop() == 0
    monkeypatch.delenv("GATEWAY_CRASH_AT")
    async with serving(file) as served, api_of(tmp_path, port) as api:
        answers = [await api.repeated(*write, f"key {number}") for number, write in enumerate(WRITES)]
        assert [status for status, _ in answers] == [201, 200, 200, 201, 201, 200]
        assert [await api.repeated(*write, f"key {number}") for number, write in enumerate(WRITES)] == [
            (status, said | {"token": None} if "token" in said else said) for status, said in answers
        ]
        _, laptops = await api.call("GET", "/accounts/demo/tokens")
        assert sorted(token["name"] for token in laptops["data"]).count("laptop") == 1
        assert [token["name"] for token in (await api.call("GET", "/management-tokens"))[1]["data"]] == ["shop"]
        _, ledger = await api.call("GET", "/accounts/demo/ledger")
        assert [line["amount_micros"] for line in ledger["data"]] == [1_000_000, 5_000_000]
        assert (await api.call("GET", "/accounts/robert"))[1]["balance_micros"] == 7
        assert (await api.call("GET", "/accounts?external_id=customer-17"))[1]["data"][0]["id"] == "alice"
        outcomes = [
            entry["outcome"] for entry in (await api.call("GET", "/audit?limit=100&actor=admin.token"))[1]["data"]
        ]
        assert outcomes.count("done") == 2 * len(WRITES)
        assert "refused" not in outcomes
        assert await served.stop() == 0
    code, said, _ = await gateway("verify", "--config", str(file), cwd=tmp_path)
    assert code == 0, said

"""An API whose process ends at a crash label, or whose store is away: a client repeats its request, and it is done once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from gateway.admin.actions.audit_log import KEY
from gateway.base.crash_points import EXIT_CODE
from gateway.chain.services import Store
from gateway.cli.exits import EXIT_CODES
from gateway.config.schema import load
from gateway.store.embedded import EmbeddedStore
from gateway.store.pepper import VARIABLE
from tests.admin.actions.api_process import READY, TOKEN
from tests.admin.actions.conftest import CONFIG
from tests.admin.actions.pictures import TOKEN as OLD
from tests.admin.actions.pictures import picture, prepare, verify
from tests.cli.processes import free_port, gateway
from tests.forked import FORKED
from tests.patience import PATIENCE_S

Sent = tuple[str, str, Any]

ROWS: Final = [
    {"line": 1, "id": "alice", "external_id": "a", "amount_micros": 6},
    {"line": 2, "id": "bob", "external_id": "b", "amount_micros": 7},
    {"line": 3, "id": "carol"},
]
CREATE: Final[Sent] = ("POST", "/accounts", {"id": "bob", "external_id": "b", "budgets": {"day_micros": 5}})
CHANGE: Final[Sent] = ("PATCH", "/accounts/alice", {"external_id": "c", "status": "suspended"})
IMPORT: Final[Sent] = ("POST", "/accounts/import", {"rows": ROWS})
WRITES: Final[dict[str, Sent]] = {
    "create": CREATE,
    "change": CHANGE,
    "close": ("POST", "/accounts/alice/close", None),
    "credit": ("POST", "/accounts/alice/credits", {"transaction": "t", "amount_micros": 5}),
    "adjust": ("POST", "/accounts/alice/adjustments", {"transaction": "t", "amount_micros": -5, "reason": "why"}),
    "token": ("POST", "/accounts/alice/tokens", {"name": "new"}),
    "rotate": ("POST", f"/tokens/{OLD}/rotate", {"overlap_s": 0, "expires_at": "2096-10-02T07:06:40Z"}),
    "delete": ("DELETE", f"/tokens/{OLD}", None),
    "import": IMPORT,
}
LABELS: Final = (
    *((label, name) for name in WRITES for label in ("api.begun", "api.done", "api.kept")),
    *((label, name) for name in ("create", "change", "import") for label in ("external.claimed", "external.written")),
    ("import.row:2", "import"),
)


@pytest.fixture
def file(tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, "p" * 40)
    file = tmp_path / "gateway.yaml"
    file.write_text(CONFIG.format(url=store_url, folder=tmp_path, timeout=PATIENCE_S))
    return file


@pytest.fixture
async def store(file: Path, store_url: str) -> AsyncIterator[Store]:
    async with Store.open(load(file).config, store_url) as store:
        yield store


class Api:
    """An API, as a client sees it."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self._address = f"http://127.0.0.1:{port}/api/v1"

    async def send(self, sent: Sent, key: str = "") -> tuple[int, Any]:
        """Return the status and the body of the answer. Raises `aiohttp.ClientError` where there is none."""
        method, path, body = sent
        headers = {"Authorization": f"Bearer {TOKEN}"} | ({"Idempotency-Key": key} if key else {})
        timeout = aiohttp.ClientTimeout(PATIENCE_S)
        async with (
            aiohttp.ClientSession(timeout=timeout) as client,
            client.request(method, self._address + path, json=body, headers=headers) as answer,
        ):
            return answer.status, await answer.json() if answer.status != 204 else None

    async def repeat(self, sent: Sent, key: str) -> tuple[int, Any]:
        """Send it until no other attempt has the key."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                status, answer = await self.send(sent, key)
                if answer is None or "error" not in answer or answer["error"]["code"] != "idempotency_key_in_use":
                    return status, answer
                await asyncio.sleep(0.05)


@asynccontextmanager
async def served(file: Path, crash_at: str = "", port: int = 0) -> AsyncIterator[Api]:
    """Run the API until the end, or until it reaches a crash label."""
    port = port or free_port()
    process = await asyncio.create_subprocess_exec(
        *(FORKED, "-m", "tests.admin.actions.api_process", str(file), str(port)),
        env=os.environ | ({"GATEWAY_CRASH_AT": crash_at} if crash_at else {}),
        cwd=Path(__file__).parents[3],
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readuntil(READY), PATIENCE_S)
        yield Api(process, port)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.parametrize(("label", "name"), LABELS)
async def test_a_write_whose_process_was_killed_is_done_once_when_it_is_repeated(
    label: str, name: str, file: Path, store: Store
) -> None:
    sent = WRITES[name]
    async with served(file) as whole:
        await prepare(store)
        status, _ = await whole.send(sent, "the key")
        done = await picture(store)
        await prepare(store)
        async with served(file, label) as api:
            with pytest.raises(aiohttp.ClientError):
                await api.send(sent, "the key")
            assert await asyncio.wait_for(api.process.wait(), PATIENCE_S) == EXIT_CODE
        repeated, answer = await whole.repeat(sent, "the key")
        assert repeated == status or (name, label, repeated) == ("delete", "api.done", 404)
        if name in ("token", "rotate") and label != "api.begun":
            assert answer["token"] is None, "its text was shown once, perhaps"
        assert await picture(store) == done
        shown_once = {"token": None} if name in ("token", "rotate") else {}
        again = await whole.repeat(sent, "the key")
        assert again == (repeated, answer and answer | shown_once) or again[0] == repeated == 404
        assert await picture(store) == done
        await verify(store)
        assert await store.client.call("XLEN", KEY) >= 1


async def test_while_the_store_is_frozen_or_away_a_write_is_a_503_and_nothing_is_half_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "p" * 40)
    embedded = EmbeddedStore.start(tmp_path)
    file = tmp_path / "gateway.yaml"
    file.write_text(CONFIG.format(url=embedded.url, folder=tmp_path, timeout=0.3))
    try:
        async with Store.open(load(file).config, embedded.url) as store, served(file) as api:
            for number, sent in enumerate(WRITES.values()):
                await prepare(store)
                before = await picture(store)
                os.kill(embedded.pid, signal.SIGSTOP)
                status, answer = await api.send(sent, f"key {number}")
                assert (status, answer["error"]["code"]) == (503, "service_unavailable")
                os.kill(embedded.pid, signal.SIGCONT)
                assert await picture(store) == before
                status, _ = await api.repeat(sent, f"key {number}")
                assert status in (200, 201, 204)
                assert await picture(store) != before
                await verify(store)
    finally:
        embedded.stop()


async def test_an_import_goes_on_when_the_api_was_killed_and_is_served_again(
    file: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, port = tmp_path / "accounts.csv", free_port()
    rows.write_text("id,external_id,amount\n" + "".join(f"user{number:04},u{number},5\n" for number in range(1200)))
    monkeypatch.setenv("GATEWAY_API", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("GATEWAY_API_TOKEN", TOKEN)
    command = ("account", "import", str(rows), "--json")
    async with served(file, "import.row:900", port) as api:
        importing = asyncio.create_task(gateway(*command, cwd=tmp_path))
        assert await asyncio.wait_for(api.process.wait(), PATIENCE_S) == EXIT_CODE
    async with served(file, port=port):
        code, out, err = await importing
        if code == EXIT_CODES["store_away"][0]:  # the machine was too busy to serve it again in time
            code, out, err = await gateway(*command, cwd=tmp_path)
        assert code == 0, err
        report = json.loads(out)
        assert (report["rows"], report["credited"] + report["credited_before"]) == (1200, 1200)
    monkeypatch.delenv("GATEWAY_API")
    code, out, err = await gateway("verify", "--config", str(file), cwd=tmp_path)
    assert code == 0, out + err
    assert "1200 accounts, 1200 ledger lines" in out

"""The process of the API of a whole gateway ends after each write, before its answer: repeated with its key, it is done once.

tests/admin/http/test_api_crashes.py does this at each crash point, with a process of the API alone.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cli.processes import demo_in, free_port, gateway, serving
from tests.whole.api import api_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a process ends with its parent")

WRITES: Final[tuple[tuple[str, str, Any], ...]] = (
    ("POST", "/accounts", {"id": "alice", "external_id": "customer-17"}),
    ("PATCH", "/accounts/demo", {"external_id": "the demo"}),
    ("POST", "/accounts/demo/credits", {"transaction": "t-1", "amount_micros": 1_000_000}),
    ("POST", "/accounts/demo/tokens", {"name": "laptop"}),
    ("POST", "/management-tokens", {"name": "shop", "scopes": ["read"]}),
    ("POST", "/accounts/import", {"rows": [{"line": 1, "id": "robert", "amount_micros": 7}]}),
)


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

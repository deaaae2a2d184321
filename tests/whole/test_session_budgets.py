"""A budget of each session through the port: a loop is ended, other sessions go on, and the usage log knows them apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.fake_upstream import FakeUpstream
from gateway.testing import running
from tests.whole.aftermath import last_end_record
from tests.whole.conftest import configuration
from tests.whole.raw import ask, chat, get, head

pytestmark = pytest.mark.usefixtures("client")
LOOP = {"session-id": "a loop"}


async def test_a_session_in_a_loop_is_ended_and_others_go_on(
    upstream: FakeUpstream, store_url: str, tmp_path: Path
) -> None:
    yaml = configuration(upstream.base_url).replace(
        "default: {models: [words, other]}", "default: {budgets: {session: 1, session_requests: 3}}"
    )
    async with running(yaml, tmp_path, store_url) as gateway:
        token = await gateway.token()
        answers = [await ask(gateway.port, chat(token, headers=LOOP)) for _ in range(5)]
        assert [answer.status for answer in answers] == [200, 200, 200, 402, 402]
        error = answers[-1].error
        assert (error["code"], answers[-1].headers["x-should-retry"]) == ("budget_exceeded", "false")
        assert "budget of requests in a session is used up" in error["message"]
        assert "an hour after the session's last request" in error["message"]
        session = (await last_end_record(gateway)).tags["session"]
        assert len(session) == 16
        assert "loop" not in session
        others: tuple[dict[str, str], ...] = ({"session-id": "b"}, {"X-Claude-Code-Session-Id": "a loop too"}, {})
        for headers in others:
            assert (await ask(gateway.port, chat(token, headers=headers))).status == 200
            tags = (await last_end_record(gateway)).tags
            assert tags.get("session") != session
            assert ("session" in tags) == bool(headers)

        async def told(headers: dict[str, str]) -> dict[str, int]:
            lines = {"Host": "gateway", "Authorization": f"Bearer {token}", **headers}
            account = json.loads((await ask(gateway.port, head("GET", "/v1/account", lines))).body)
            return {name: use[name] for use in account["budgets"] for name in use if name.startswith("left_")}

        left = await told(LOOP)
        assert left["left_requests"] == 0
        assert 0 < left["left_micros"] < 1_000_000
        assert (await told({"session-id": "c"})) == {"left_micros": 1_000_000, "left_requests": 3}
        assert json.loads((await ask(gateway.port, get("/v1/account", token))).body)["budgets"] == []
        assert await gateway.store.wallet.verify("tester") == []

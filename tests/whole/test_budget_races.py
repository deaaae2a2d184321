"""A budget for exactly twenty requests admits twenty of two hundred concurrent ones, through two gateways."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gateway.domain.budgets import OF_REQUESTS, OF_SESSION
from gateway.store.client.client import Client
from gateway.testing import running
from tests.whole.budgeted import budgeted, used
from tests.whole.conftest import configuration
from tests.whole.raw import ask, chat
from tests.whole.test_money_races import ADMITTED, CALLERS, CHAIN, FULL, GatedUpstream, race


@pytest.fixture
async def upstream() -> AsyncIterator[GatedUpstream]:
    """Yield an upstream whose gate is not set."""
    async with GatedUpstream() as upstream:
        yield upstream


@pytest.mark.parametrize("owner", ["account", "token"])
@pytest.mark.parametrize("kind", ["day", "week", "month", "total", "requests", "session", "session_requests"])
async def test_exactly_twenty_requests_are_admitted(
    upstream: GatedUpstream, store_url: str, client: Client, tmp_path: Path, kind: str, owner: str
) -> None:
    limit = ADMITTED if kind in OF_REQUESTS else ADMITTED * FULL
    auth = budgeted(**{owner: {kind: limit}})
    async with AsyncExitStack() as stack:
        gateways = []
        for number in range(2):
            folder = tmp_path / str(number)
            folder.mkdir()
            (folder / "data").symlink_to(tmp_path, target_is_directory=True)
            chain = CHAIN.format(max_hold="").replace("use: auth", f"use: {auth}")
            yaml = configuration(upstream.base_url, chain=chain, more="session_headers: [host]")  # one session
            gateways.append(await stack.enter_async_context(running(yaml, folder, store_url)))
        statuses, _ = await race(gateways, upstream, 10 * CALLERS * FULL)
        assert statuses == {200: ADMITTED, 402: statuses.total() - ADMITTED}
        assert len(upstream.requests) == ADMITTED
        assert list((await used(client)).values()) == [limit]
        assert await gateways[0].store.wallet.verify("tester") == []
        refused = await ask(
            gateways[1].port, chat((await gateways[0].store.tokens.create("tester")).token, {"max_tokens": 10})
        )
        if owner == "account":
            assert (refused.status, refused.headers["x-should-retry"]) == (402, "false")
            error = json.loads(refused.body)["error"]
            assert error["code"] == "budget_exceeded"
            resets = {"total": "does not reset"} | dict.fromkeys(OF_SESSION, "an hour after the session's last request")
            assert resets.get(kind, "T00:00:00+00:00") in error["message"]
        else:
            assert refused.status == 200, "another token has its own budget"

"""Balances and budgets for exactly twenty requests admit twenty of two hundred concurrent ones."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from itertools import accumulate, cycle
from pathlib import Path

import pytest

from gateway.base.errors import StoreAway
from gateway.domain.budgets import OF_REQUESTS, OF_SESSION
from gateway.store.client.client import Client
from gateway.testing import Running, running
from tests.patience import PATIENCE_S
from tests.whole.budgeted import budgeted, used
from tests.whole.conftest import Serve, configuration
from tests.whole.raw import ask, chat
from tests.whole.scripted import CHUNKED, LAST, Forever, Scripted, chunk

# A balance for exactly twenty requests admits twenty of two hundred concurrent ones, and never falls below its bound.
CHAIN = """
plugins:
  - use: usage-logger
  - use: auth
  - use: quota
    with: {{max_holds: 500{max_hold}}}
  - use: model-routing
"""
ADMITTED, CALLERS = 20, 200
BODY = chat("", {"max_tokens": 10}).partition(b"\r\n\r\n")[2]
FULL = len(BODY) + 16 + 128 + 2 * 10
"""Micros that one request holds unless holds are capped, and that it costs with the upstream below."""
GREEDY = (
    b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}]}\n\n'
    b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":999999,"completion_tokens":999999}}\n\n'
    b"data: [DONE]\n\n"
)


class GatedUpstream(Scripted):
    """An upstream that waits until `gate` is set, and then reports more usage than a response can have."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        super().__init__([CHUNKED, Forever(b"", 0.01, until=self.gate.is_set), chunk(GREEDY) + LAST])


@pytest.fixture
async def upstream() -> AsyncIterator[GatedUpstream]:
    """Yield an upstream whose gate is not set."""
    async with GatedUpstream() as upstream:
        yield upstream


class LowestBalance:
    """The lowest balance at any time, and the lowest available amount whenever it was read."""

    def __init__(self, gateway: Running) -> None:
        self._gateway = gateway
        self.available = 1 << 62
        self.balance = 0

    async def watch(self) -> None:
        """Read the available amount as often as possible."""
        while True:
            with suppress(StoreAway):
                await self.read()

    async def read(self) -> None:
        """Read the available amount."""
        account = await self._gateway.store.accounts.get("tester")
        assert account is not None
        self.available = min(self.available, account.balance_micros - account.held_micros)

    async def read_ledger(self) -> None:
        """Read the lowest balance from the ledger: it has a line for each change, so its running sums are all balances."""
        lines = await self._gateway.store.client.call("XRANGE", "gw:{tester}:ledger", "-", "+")
        self.balance = min(accumulate(int(fields[b"amount"]) for _, fields in lines))


async def final_status(port: int, token: str) -> int:
    """Send a request, retry it after a 503 (a busy machine's store may time out), and return the final status."""
    while (answer := await ask(port, chat(token, {"max_tokens": 10}))).status == 503:
        await asyncio.sleep(int(answer.headers["retry-after-ms"]) / 1000)
    return answer.status


async def race(gateways: list[Running], upstream: GatedUpstream, credit: int) -> tuple[Counter[int], LowestBalance]:
    """Return the statuses of two hundred concurrent requests of a new account, none of which is served before all have come.

    A hold whose reply came too late keeps another request out for a moment. One more request is sent in its place.
    """
    token = await gateways[0].token(credit=credit)
    lowest = LowestBalance(gateways[0])
    watching = asyncio.create_task(lowest.watch())
    ports = cycle(gateway.port for gateway in gateways)
    callers = [asyncio.create_task(final_status(next(ports), token)) for _ in range(CALLERS)]
    async with asyncio.timeout(PATIENCE_S):
        while (waiting := sum(not caller.done() for caller in callers)) > len(upstream.requests) or waiting < ADMITTED:
            if waiting == len(upstream.requests):
                callers.append(asyncio.create_task(final_status(next(ports), token)))
            await asyncio.sleep(0.01)
    upstream.gate.set()
    statuses = Counter(await asyncio.gather(*callers))
    for gateway in gateways:
        await gateway.gateway.runner.wait_ended()
    watching.cancel()
    await asyncio.wait([watching])
    await lowest.read()
    await lowest.read_ledger()
    return statuses, lowest


@pytest.mark.parametrize("count", [1, 2], ids=["one gateway", "two gateways"])
async def test_exactly_twenty_requests_are_admitted_and_the_balance_is_never_below_zero(
    upstream: GatedUpstream, store_url: str, client: Client, tmp_path: Path, count: int
) -> None:
    await client.call("SCRIPT", "FLUSH")
    async with AsyncExitStack() as stack:
        gateways = []
        for number in range(count):
            folder = tmp_path / str(number)
            folder.mkdir()
            (folder / "data").symlink_to(tmp_path, target_is_directory=True)
            yaml = configuration(upstream.base_url, chain=CHAIN.format(max_hold=""))
            gateways.append(await stack.enter_async_context(running(yaml, folder, store_url)))
        statuses, lowest = await race(gateways, upstream, ADMITTED * FULL)
        assert statuses == {200: ADMITTED, 402: statuses.total() - ADMITTED}
        assert len(upstream.requests) == ADMITTED
        assert (lowest.balance, lowest.available) == (0, 0)
        assert await gateways[0].store.wallet.verify("tester") == []


async def test_with_smaller_holds_the_balance_is_never_below_the_stated_bound(
    upstream: GatedUpstream, serve: Serve
) -> None:
    hold = FULL // 2
    async with serve(upstream.base_url, chain=CHAIN.format(max_hold=f", max_hold: {hold / 1_000_000:.6f}")) as gateway:
        statuses, lowest = await race([gateway], upstream, ADMITTED * hold)
        assert statuses[200] == len(upstream.requests) == ADMITTED
        assert 0 > lowest.balance >= -500 * (FULL - hold)
        assert lowest.balance == ADMITTED * (hold - FULL)
        assert lowest.available == ADMITTED * (hold - FULL)
        assert await gateway.store.wallet.verify("tester") == []


# A budget for exactly twenty requests admits twenty of two hundred concurrent ones, through two gateways.
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

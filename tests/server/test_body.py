"""The body of a request: what its readings hold of the budget is given back."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from gateway import Exchange, Plugin
from gateway.fake_upstream import FakeUpstream
from gateway.store.client.client import Client
from gateway.testing import running
from tests.patience import PATIENCE_S, wait_until
from tests.whole.conftest import CHAIN, configuration
from tests.whole.raw import chat, read_answer


class Impatient(Plugin):
    """Gives up the first reading of a body."""

    async def on_request(self, exchange: Exchange) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(exchange.body(), 0.3)
        READ.set()


READ = asyncio.Event()


async def test_a_reading_that_was_given_up_holds_nothing_after_the_next_one(
    store_url: str, client: Client, tmp_path: Path
) -> None:
    chain = CHAIN.replace("  - use: rate-limit", f"  - use: {__name__}:Impatient\n  - use: rate-limit")
    async with (
        FakeUpstream(pace_s=0) as upstream,
        running(configuration(upstream.base_url, chain=chain), tmp_path, store_url) as gateway,
    ):
        request = chat(await gateway.token())
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(request[:-20])
        await wait_until(lambda: gateway.gateway.budget.reserved > 0)
        await asyncio.wait_for(READ.wait(), PATIENCE_S)
        writer.write(request[-20:])
        assert (await asyncio.wait_for(read_answer(reader), PATIENCE_S)).status == 400
        writer.close()
        await wait_until(lambda: not gateway.gateway.connections.open and not gateway.gateway.budget.reserved)

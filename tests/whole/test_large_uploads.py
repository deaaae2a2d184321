"""Large bodies that many connections of one address send at once are read in turns, beside the requests of another address."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from gateway.fake_upstream import FakeUpstream
from gateway.server.protocol import LARGE_READ, ServerProtocol
from gateway.testing import Running
from tests.patience import PATIENCE_S
from tests.whole.conftest import CHAIN, Serve
from tests.whole.raw import chat, read_answer

UPLOADS = 12
BODY = {"metadata": {"a": "x" * 2_000_000}}
GENEROUS = CHAIN.replace("tokens_per_minute: 1000000", "tokens_per_minute: 100000000")


class Turns:
    """Counts the large reads of each turn of the event loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.large: Counter[int] = Counter()
        self._number = 0
        received = ServerProtocol.data_received

        def data_received(handler: ServerProtocol, data: bytes) -> None:
            self.large[self._number] += len(data) > LARGE_READ
            received(handler, data)

        monkeypatch.setattr(ServerProtocol, "data_received", data_received)

    async def count(self) -> None:
        while True:
            self._number += 1
            await asyncio.sleep(0)


async def ask(gateway: Running, request: bytes, address: str) -> int:
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, local_addr=(address, 0))
        writer.write(request)
        answer = await read_answer(reader)
        writer.close()
        return answer.status


async def test_bodies_of_many_connections_are_read_in_turns(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeUpstream(pace_s=0) as upstream, serve(upstream.base_url, chain=GENEROUS) as gateway:
        token = await gateway.token(credit=10**9)
        assert await ask(gateway, chat(token), "127.0.0.2") == 200
        turns = Turns(monkeypatch)
        counting = asyncio.create_task(turns.count())
        uploads = [asyncio.create_task(ask(gateway, chat(token, BODY), "127.0.0.1")) for _ in range(UPLOADS)]
        beside = 0
        while not all(upload.done() for upload in uploads):
            assert await ask(gateway, chat(token), "127.0.0.2") == 200
            beside += 1
        counting.cancel()
    assert [upload.result() for upload in uploads] == UPLOADS * [200]
    assert beside > 3
    assert sum(turns.large.values()) > UPLOADS
    assert sum(large > 3 for large in turns.large.values()) <= 3, (
        "the first reads of the connections may be in one turn"
    )

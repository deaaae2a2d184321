"""Of all attempts with one key, one works at a time, and its answer is that of all."""

from __future__ import annotations

import asyncio

from gateway.admin.http.idempotency import KEPT_S, PREFIX, Begun, Idempotency
from gateway.store.client.client import Client
from tests.patience import PATIENCE_S


async def check(client: Client) -> None:
    """Go through all that may become of a key."""
    known, other = Idempotency(client, "one", "a"), Idempotency(client, "one", "b")
    begun = await asyncio.gather(*(Idempotency(client, "one", "a").begin() for _ in range(50)))
    assert sorted(each.state for each in begun) == [Begun.BEGUN, *[Begun.IN_USE] * 49]
    assert (await other.begin()).state is Begun.REUSED
    (key,) = [key async for key in client.keys(f"{PREFIX}*")]
    assert "one" not in key.removeprefix(PREFIX)
    assert KEPT_S - 60 < await client.call("TTL", key) <= KEPT_S
    await other.keep(b"of another")
    await other.forget()
    await known.end()
    assert (await known.begin()).state is Begun.BEGUN
    await known.forget()
    assert (await other.begin()).state is Begun.BEGUN
    await other.go_on()
    await other.keep(b"an answer")
    await other.end()
    assert await other.begin() == (Begun.ANSWERED, b"an answer")
    assert (await known.begin()).state is Begun.REUSED


async def test_one_attempt_works_at_a_time(store_url: str) -> None:
    client = Client.connect(store_url, timeout_s=PATIENCE_S)
    await check(client)
    await client.close()

"""A subscription hears what any server of the store is given, ends when it is lost or silent, and may be opened again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from gateway.base.errors import StoreAway, StoreError
from gateway.store.client.client import Client, Script
from gateway.store.client.subscription import Subscription
from tests.patience import PATIENCE_S, wait_until
from tests.store.cluster import cluster
from tests.store.sentinel import How, watched

PUBLISH = Script("publish", "redis.call('SET', KEYS[1], '1') redis.pcall('PUBLISH', 'news', KEYS[1]) return 1")


class Heard:
    """What a subscription to `news` has heard."""

    def __init__(self, client: Client, silent_s: float = PATIENCE_S) -> None:
        self.texts: list[str] = []
        self.subscribed = asyncio.Event()
        subscription = Subscription(client, ("news", "other"), lambda channel, text: self.texts.append(text.decode()))
        self.task = asyncio.create_task(subscription.listen(self.subscribed.set, silent_s))

    async def ended(self) -> BaseException | None:
        """Wait until the subscription has ended, and return why."""
        await asyncio.wait((self.task,), timeout=PATIENCE_S)
        return self.task.exception()


@asynccontextmanager
async def listening(client: Client, silent_s: float = PATIENCE_S) -> AsyncIterator[Heard]:
    heard = Heard(client, silent_s)
    try:
        await asyncio.wait_for(heard.subscribed.wait(), PATIENCE_S)
        yield heard
    finally:
        heard.task.cancel()
        with suppress(asyncio.CancelledError, StoreAway, StoreError):
            await heard.task


async def test_a_message_of_a_script_is_heard(client: Client) -> None:
    async with listening(client) as heard:
        await client.run(PUBLISH, ["a"])
        await client.call("PUBLISH", "elsewhere", "nothing")
        await client.call("PUBLISH", "other", "b")
        await wait_until(lambda: heard.texts == ["a", "b"])


async def test_a_cut_connection_ends_it(client: Client) -> None:
    async with listening(client) as heard:
        assert await client.call("CLIENT", "KILL", "TYPE", "PUBSUB") == 1
        assert isinstance(await heard.ended(), StoreAway)
    assert await client.call("PUBSUB", "NUMSUB", "news") in ([b"news", 0], {b"news": 0})


async def test_silence_ends_it(client: Client) -> None:
    async with listening(client, silent_s=0.1) as heard:
        assert isinstance(await heard.ended(), StoreAway)


async def test_a_user_who_may_not_subscribe_is_an_error(client: Client) -> None:
    await client.call("ACL", "SETUSER", "default", "resetchannels")
    try:
        heard = Heard(client)
        assert isinstance(await heard.ended(), StoreError)
        assert await client.run(PUBLISH, ["a"]) == 1, "the script is done without its message"
    finally:
        await client.call("ACL", "SETUSER", "default", "allchannels")


async def test_a_store_that_is_not_there_is_away(tmp_path: Path) -> None:
    for url in (f"unix://{tmp_path}/none", "sentinel://127.0.0.1:1/mymaster", "cluster://127.0.0.1:1"):
        client = Client.connect(url)
        assert isinstance(await Heard(client).ended(), StoreAway), url
        await client.close()


async def test_every_node_of_a_cluster_is_heard(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        client = Client.connect(nodes.url, timeout_s=PATIENCE_S)
        async with listening(client) as heard, listening(client) as other:
            for number in range(12):
                await client.run(PUBLISH, [f"key{number}"])
            await client.call("PUBLISH", "news", "end")
            await wait_until(lambda: {len(heard.texts), len(other.texts)} == {13})
            assert all(node.call("DBSIZE") for node in nodes.nodes)
        await client.close()


@pytest.mark.parametrize("how", ["killed", "ordered"])
async def test_the_primary_that_sentinel_names_is_heard(tmp_path: Path, how: How) -> None:
    with watched(tmp_path) as servers:
        client = Client.connect(servers.url, timeout_s=PATIENCE_S)
        async with listening(client) as heard:
            await client.run(PUBLISH, ["a"])
            await wait_until(lambda: heard.texts == ["a"])
            await asyncio.to_thread(servers.fail_over, how)
            await client.follow()
            if how == "killed":
                assert isinstance(await heard.ended(), StoreAway)
        async with listening(client) as heard:
            await client.run(PUBLISH, ["b"])
            await wait_until(lambda: heard.texts == ["b"])
        await client.close()

"""News of revocations: announcements are collected, a lost subscription is opened again, and silence is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.base.errors import StoreAway
from gateway.runtime import revocation
from gateway.runtime.revocation import RevocationNews
from gateway.store.accounts import Accounts
from gateway.store.client.client import Client
from gateway.store.revocations import CHANNEL
from gateway.store.tokens import Tokens
from tests.patience import PATIENCE_S, wait_until
from tests.store.cluster import cluster
from tests.store.sentinel import How, watched


@pytest.fixture
async def news(client: Client, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RevocationNews]:
    monkeypatch.setattr(revocation, "RETURN_S", PATIENCE_S)
    async with RevocationNews(client) as news:
        await asyncio.wait_for(news.happened.wait(), PATIENCE_S)
        assert news.take() == (set(), True), "what was announced before is not known"
        yield news


async def test_announced_accounts_are_taken_once(client: Client, news: RevocationNews) -> None:
    for account in ("alice", "bob", "alice"):
        await client.call("PUBLISH", CHANNEL, account)
    await wait_until(lambda: news.accounts == {"alice", "bob"})
    assert news.happened.is_set()
    assert news.take() == ({"alice", "bob"}, False)
    assert not news.happened.is_set()
    assert news.take() == (set(), False)


async def test_a_message_to_itself_arrives_and_is_no_news(client: Client, news: RevocationNews) -> None:
    assert await news.test()
    assert await news.test()
    assert not news.happened.is_set()


async def test_a_cut_subscription_is_opened_again_and_may_have_missed_something(
    client: Client, news: RevocationNews
) -> None:
    assert await client.call("CLIENT", "KILL", "TYPE", "PUBSUB") == 1
    await asyncio.wait_for(news.happened.wait(), PATIENCE_S)
    assert news.take() == (set(), True)
    assert await news.test()


async def test_a_user_who_may_not_publish_is_not_heard(client: Client, news: RevocationNews) -> None:
    await client.call("ACL", "SETUSER", "default", "resetchannels")
    assert not await news.test()
    await client.call("ACL", "SETUSER", "default", "allchannels")
    await asyncio.wait_for(news.happened.wait(), PATIENCE_S)
    assert await news.test()


async def test_a_subscription_that_hears_nothing_is_opened_again(
    client: Client, news: RevocationNews, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revocation, "RETURN_S", 0.05)
    monkeypatch.setattr(revocation, "SILENT_S", 0.05)
    own, news._own = news._own, "gw:echo:of-another"
    assert not await news.test()
    news._own = own
    await client.call("CLIENT", "KILL", "TYPE", "PUBSUB")
    await asyncio.wait_for(news.happened.wait(), PATIENCE_S)
    news.take()
    await asyncio.wait_for(news.happened.wait(), PATIENCE_S)
    assert news.take() == (set(), True)


async def revoke(client: Client, news: RevocationNews, *accounts: str) -> None:
    """Delete a token in each account, and wait for the news."""
    tokens = Tokens(client, lambda: b"a pepper of some length")
    for account in accounts:
        await Accounts(client).create(account)
        await tokens.delete((await tokens.create(account)).id)
    await wait_until(lambda: news.accounts == set(accounts))


async def test_the_news_of_every_node_of_a_cluster_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revocation, "RETURN_S", PATIENCE_S)
    with cluster(tmp_path) as nodes:
        client = Client.connect(nodes.url, timeout_s=PATIENCE_S)
        async with RevocationNews(client) as news:
            await asyncio.wait_for(news.happened.wait(), PATIENCE_S)
            assert await news.test()
            await revoke(client, news, *(f"account{number}" for number in range(9)))
            assert all(node.call("DBSIZE") for node in nodes.nodes)
        await client.close()


@pytest.mark.parametrize("how", ["killed", "frozen", "ordered"])
async def test_the_news_arrive_after_a_failover(tmp_path: Path, how: How) -> None:
    with watched(tmp_path) as servers:
        client = Client.connect(servers.url, timeout_s=2)
        async with RevocationNews(client) as news:
            await asyncio.wait_for(news.happened.wait(), PATIENCE_S)
            await asyncio.to_thread(servers.fail_over, how)
            async with asyncio.timeout(PATIENCE_S):
                heard = False
                while not heard:
                    await client.follow()
                    with suppress(StoreAway):
                        heard = await news.test()
            news.take()
            await revoke(client, news, "alice")
        await client.close()

"""News of revocations: announcements are collected, a lost subscription is opened again, and silence is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.runtime import revocation_news
from gateway.runtime.revocation_news import RevocationNews
from gateway.store.client.client import Client
from gateway.store.revocations import CHANNEL
from tests.patience import PATIENCE_S, wait_until


@pytest.fixture
async def news(client: Client, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RevocationNews]:
    monkeypatch.setattr(revocation_news, "RETURN_S", PATIENCE_S)
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
    monkeypatch.setattr(revocation_news, "RETURN_S", 0.05)
    monkeypatch.setattr(revocation_news, "SILENT_S", 0.05)
    own, news._own = news._own, "gw:echo:of-another"
    assert not await news.test()
    news._own = own
    await client.call("CLIENT", "KILL", "TYPE", "PUBSUB")
    await asyncio.wait_for(news.happened.wait(), PATIENCE_S)
    news.take()
    await asyncio.wait_for(news.happened.wait(), PATIENCE_S)
    assert news.take() == (set(), True)

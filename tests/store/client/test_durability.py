from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.base.errors import Misconfigured
from gateway.store.client.client import Client
from gateway.store.client.durability import check_store
from tests.patience import PATIENCE_S
from tests.store.conftest import StartStore


@pytest.fixture
async def own_client(own_store: StartStore) -> AsyncIterator[Client]:
    client = Client.connect(own_store().url, timeout_s=PATIENCE_S)
    yield client
    await client.close()


async def test_the_embedded_store_is_safe(client: Client) -> None:
    assert await check_store(client, accept_loss=False) == []


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [("appendonly", "no", "append-only file is off"), ("maxmemory-policy", "allkeys-lru", "evicts keys")],
)
async def test_an_unsafe_store_is_refused_unless_loss_is_accepted(
    own_client: Client, setting: str, value: str, words: str
) -> None:
    await own_client.call("CONFIG", "SET", setting, value)
    with pytest.raises(Misconfigured, match=words):
        await check_store(own_client, accept_loss=False)
    (weakness,) = await check_store(own_client, accept_loss=True)
    assert words in weakness

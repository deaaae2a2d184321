from __future__ import annotations

import asyncio
import re

import pytest

from gateway.base.errors import Misconfigured, StoreAway, StoreError
from gateway.store.client.client import Client, Script


async def test_the_commands_of_one_tick_share_one_batch_in_order(client: Client) -> None:
    replies = await asyncio.gather(*(client.call("RPUSH", "list", index) for index in range(50)))
    assert replies == list(range(1, 51))
    assert len(await client.call("LRANGE", "list", 0, -1)) == 50


async def test_an_error_of_one_command_does_not_affect_others(client: Client) -> None:
    commands = (("SET", "a", "1"), ("INCRBY", "a", "x"), ("GET", "a"))
    replies = await asyncio.gather(*(client.call(*command) for command in commands), return_exceptions=True)
    good, bad, after = replies
    assert (good, after) == (True, b"1")
    assert isinstance(bad, StoreError)


async def test_each_call_gets_its_own_reply_although_others_are_cancelled(client: Client) -> None:
    async def ask(index: int) -> None:
        assert await client.call("ECHO", str(index)) == str(index).encode()

    tasks = []
    for index in range(2000):
        tasks.append(asyncio.create_task(ask(index)))
        if index % 5 == 0:
            await asyncio.sleep(0)
            tasks[index // 2].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(result) for result in results} == {type(None), asyncio.CancelledError}


async def test_a_command_cancelled_within_its_tick_is_not_sent(client: Client) -> None:
    client.submit("SET", "a", "1").cancel()
    await asyncio.sleep(0)
    assert await client.call("EXISTS", "a") == 0


async def test_late_replies_of_a_slow_store_are_discarded(store_url: str, client: Client) -> None:
    hasty = Client.connect(store_url, timeout_s=0.05, connections=1)
    await client.call("CLIENT", "PAUSE", 500, "ALL")
    with pytest.raises(StoreAway):
        await hasty.call("ECHO", "late")
    while True:
        try:
            assert await hasty.call("ECHO", "fresh") == b"fresh"
            break
        except StoreAway:
            continue
    await hasty.close()


async def test_a_script_is_sent_whole_only_when_the_store_lacks_it(client: Client) -> None:
    script = Script("twice", "return ARGV[1] * 2")
    await client.call("SCRIPT", "FLUSH")
    assert [await client.run(script, (), (4,)) for _ in range(3)] == [8, 8, 8]
    calls = await client.call("INFO", "commandstats")
    assert calls["cmdstat_evalsha"]["failed_calls"] >= 1
    assert await client.call("SCRIPT", "EXISTS", script.digest) == [True]


async def test_keys_are_scanned_in_pages_over_the_existing_connection(client: Client) -> None:
    names = [f"key{number}" for number in range(1203)]
    await asyncio.gather(*(client.call("SET", name, "1") for name in [*names, "other"]))

    async def connections() -> set[str]:
        return set(re.findall(r"\bid=(\d+)", (await client.call("CLIENT", "LIST")).decode()))

    before = await connections()
    assert {key async for key in client.keys("key*")} == set(names)
    assert await connections() <= before


async def test_an_unreachable_store_is_store_away() -> None:
    client = Client.connect("redis://:hunter2@127.0.0.1:1")
    with pytest.raises(StoreAway) as caught:
        await client.call("PING")
    assert "hunter2" not in str(caught.value)
    await client.close()


def test_an_unknown_kind_of_url_is_refused_without_showing_it() -> None:
    with pytest.raises(Misconfigured, match="must be `embedded` or begin with") as caught:
        Client.connect("amqp://user:hunter2@host")
    assert "hunter2" not in str(caught.value)

"""The circuit breaker of one worker: when it asks the store, and what it reports to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.base.errors import Refused, StoreAway
from gateway.config.channel import Channel
from gateway.domain.facts import Candidate
from gateway.store import circuit_breaker as module
from gateway.store.channels import Channels, Condition, CooldownRules
from gateway.store.circuit_breaker import ChannelBreaker
from gateway.store.client.client import Client
from gateway.store.embedded import EmbeddedStore
from tests.patience import PATIENCE_S

FREE, LIMITED = Channel("http://a/v1"), Channel("http://b/v1", concurrent=2)
CHANNELS = {"a": FREE, "b": LIMITED, "c": FREE}
A, B, C = (Candidate(name, channel, "m") for name, channel in CHANNELS.items())


@asynccontextmanager
async def worker(client: Client, channels: Mapping[str, Channel] = CHANNELS) -> AsyncIterator[ChannelBreaker]:
    health = ChannelBreaker(Channels(client, CooldownRules(first_ms=100)), channels)
    await health.start()
    yield health
    await health.stop()


async def commands(client: Client) -> int:
    return int((await client.call("INFO", "stats"))["total_commands_processed"])


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await true():
            await asyncio.sleep(0.005)


async def refusal(health: ChannelBreaker, request_id: str) -> Refused | None:
    """Return the refusal if channel `a` may not be called."""
    try:
        assert await health.admit([A], request_id) is A
    except Refused as refused:
        return refused
    return None


async def test_a_healthy_channel_without_limits_costs_no_round_trip_and_a_limited_one_costs_one(client: Client) -> None:
    async with worker(client) as health:
        before = await commands(client)
        for number in range(100):
            assert await health.admit([A, B], f"r{number}") is A
        assert await commands(client) - before <= 2 + 20, "only the background task sends commands"
        assert await health.admit([B, A], "s") is B
        assert await client.call("ZCARD", "gw:{channels}:b:slots") == 1


async def test_a_slot_is_released_at_once(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SYNC_INTERVAL_S", 3600)
    async with worker(client) as health:
        assert [await health.admit([B, A], f"r{n}") for n in range(3)] == [B, B, A]
        health.left(B, "r0")

        async def released() -> bool:
            return bool(await client.call("ZCARD", "gw:{channels}:b:slots") == 1)

        await until(released)
        assert await health.admit([B, A], "r4") is B


async def test_the_failures_of_one_worker_are_known_to_the_others_within_a_second(client: Client) -> None:
    assert module.SYNC_INTERVAL_S < 1
    async with worker(client) as one, worker(client) as two:
        for number in range(3):
            assert await one.admit([A], f"r{number}") is A
            one.failed(A, f"r{number}", "upstream_rate_limited", 100)
            one.left(A, f"r{number}")

        async def known() -> bool:
            return await refusal(two, "s") is not None

        await until(known)
        assert await two.admit([A, C], "t") is C
        refused = await refusal(two, "u")
        assert refused is not None
        assert (refused.status, refused.code) == (503, "model_unavailable")
        assert 50 < (refused.retry_after_s or 0) <= 100.05


@pytest.mark.parametrize(("outcome", "streak"), [("ok", None), ("failed", b"2"), ("", b"1")])
async def test_the_outcome_of_a_probe_is_reported(client: Client, outcome: str, streak: bytes | None) -> None:
    async with worker(client) as health:
        for number in range(3):
            await health.admit([A], f"r{number}")
            health.failed(A, f"r{number}", "upstream_error", None)
            health.left(A, f"r{number}")

        async def cooled() -> bool:
            (shown,) = await Channels(client).show(["a"])
            return shown.condition is Condition.COOLING and not shown.cool_ms

        async def admitted() -> bool:
            return await refusal(health, "probe") is None

        await until(cooled)
        await until(admitted)
        assert await health.admit([A, C], "another") is C
        if outcome == "ok":
            health.answered(A, "probe", 0.1)
        elif outcome == "failed":
            health.failed(A, "probe", "upstream_error", None)
        health.left(A, "probe")

        async def reported() -> bool:
            return list(await client.call("HMGET", "gw:{channels}:a:state", "probe", "streak")) == [None, streak]

        await until(reported)
        if outcome != "failed":
            assert await health.admit([A], "next") is A


async def test_without_the_store_only_unlimited_channels_are_called_and_reports_are_kept(tmp_path: Path) -> None:
    store = await asyncio.to_thread(EmbeddedStore.start, tmp_path)
    client = Client.connect(store.url, timeout_s=1)
    async with worker(client) as health:
        assert await health.admit([B], "r") is B
        await asyncio.to_thread(store.stop)
        health.left(B, "r")
        assert await health.admit([A], "s") is A
        with pytest.raises(StoreAway):
            await health.admit([B], "t")
        await asyncio.sleep(0.3)
        store = await asyncio.to_thread(EmbeddedStore.start, tmp_path)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    if await client.call("ZCARD", "gw:{channels}:b:slots") == 0:
                        break
                except StoreAway:
                    pass
                await asyncio.sleep(0.02)
    await client.close()
    await asyncio.to_thread(store.stop)


async def test_the_last_reports_are_sent_at_the_stop(client: Client) -> None:
    async with worker(client) as health:
        await health.admit([B], "r")
        await health.sync()
        assert (await Channels(client).show(["b"]))[0].in_flight == 1
        health.left(B, "r")
    assert await client.call("ZCARD", "gw:{channels}:b:slots") == 0
    assert (await Channels(client).show(["b"]))[0].in_flight == 0

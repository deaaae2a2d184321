"""A worker measures the lag of its event loop, open requests and streams, and waiting usage records."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.fake_upstream import FakeUpstream
from gateway.runtime import sampler
from gateway.runtime.sampler import Sampler
from gateway.store.client.client import Client
from gateway.testing import Running, running
from tests.whole.conftest import configuration
from tests.whole.raw import chat, read_answer


def numbers(gateway: Running, name: str) -> list[float]:
    """Return the values of the only series of this name."""
    return dict(gateway.gateway.runner.metrics.shared)[(name,)]


async def test_an_open_stream_is_counted_while_it_runs(store_url: str, client: Client, tmp_path: Path) -> None:
    async with (
        FakeUpstream(pace_s=0.05, key="channel-credential-4711") as upstream,
        running(configuration(upstream.base_url), tmp_path, store_url) as gateway,
    ):
        sampling = Sampler(gateway.gateway)
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(chat(await gateway.token()))
        while not gateway.gateway.runner.failover.relays:
            await asyncio.sleep(0.01)
        sampling.sample()
        assert (numbers(gateway, "open_requests"), numbers(gateway, "open_streams")) == ([1.0], [1.0])
        assert (await read_answer(reader)).whole
        writer.close()
        await gateway.gateway.runner.wait_ended()
        sampling.sample()
        assert (numbers(gateway, "open_requests"), numbers(gateway, "open_streams")) == ([0.0], [0.0])
        assert numbers(gateway, "config_generation") == [1.0]
        await sampling.sample_usage_log()
        assert numbers(gateway, "usage_log_waiting") == [2.0], "an arrival and an end: no sink drains them here"


async def test_the_lag_of_a_blocked_event_loop_is_measured(
    store_url: str, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "INTERVAL_S", 0.01)
    async with (
        running(configuration("http://127.0.0.1:1/v1"), tmp_path, store_url) as gateway,
        Sampler(gateway.gateway),
    ):
        while not sum(numbers(gateway, "loop_lag_seconds")):
            await asyncio.sleep(0.01)
        before = numbers(gateway, "loop_lag_seconds")[-1]
        time.sleep(0.2)  # noqa: ASYNC251 - this is what a plugin must not do
        while numbers(gateway, "loop_lag_seconds")[-1] < before + 0.15:
            await asyncio.sleep(0.01)


async def test_a_failed_measurement_is_logged_and_the_task_goes_on(
    store_url: str, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "INTERVAL_S", 0.01)
    async with running(configuration("http://127.0.0.1:1/v1"), tmp_path, store_url) as gateway:
        spool = gateway.store.usage.spool
        monkeypatch.setattr(spool, "folder", None)
        with capture_logs() as lines:
            async with Sampler(gateway.gateway):
                while not sum(numbers(gateway, "loop_lag_seconds")):
                    await asyncio.sleep(0.01)
        assert "pulse_failed" in [line["event"] for line in lines]

"""A worker measures the lag of its event loop, open requests and streams, and waiting usage records."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway import Exchange, Plugin, Services
from gateway.fake_upstream import FakeUpstream
from gateway.runtime import maintenance
from gateway.runtime.maintenance import Sampler
from gateway.store.client.client import Client
from gateway.testing import Running, running
from tests.patience import wait_until
from tests.whole.conftest import CHAIN, configuration
from tests.whole.raw import ask, chat, get, read_answer


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
    monkeypatch.setattr(maintenance, "SAMPLE_S", 0.01)
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
    monkeypatch.setattr(maintenance, "SAMPLE_S", 0.01)
    async with running(configuration("http://127.0.0.1:1/v1"), tmp_path, store_url) as gateway:
        spool = gateway.store.usage.spool
        monkeypatch.setattr(spool, "folder", None)
        with capture_logs() as lines:
            async with Sampler(gateway.gateway):
                while not sum(numbers(gateway, "loop_lag_seconds")):
                    await asyncio.sleep(0.01)
        assert "pulse_failed" in [line["event"] for line in lines]


class Hanging(Plugin):
    """Does not end an exchange until the test allows it."""

    async def start(self, services: Services) -> None:
        self.allowed = asyncio.Event()

    async def on_end(self, exchange: Exchange) -> None:
        await self.allowed.wait()


async def test_an_end_hook_that_hangs_is_logged_once_and_not_cancelled(
    store_url: str, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "HANGS_AFTER_S", 0.05)
    chain = CHAIN + "  - use: tests.runtime.test_sampler:Hanging\n    name: slow\n"
    async with running(configuration("http://127.0.0.1:1/v1", chain=chain), tmp_path, store_url) as gateway:
        asking = asyncio.create_task(ask(gateway.port, get("/v1/models", await gateway.token())))
        runner = gateway.gateway.runner
        await wait_until(lambda: runner.hanging(0.05) != [])
        sampling = Sampler(gateway.gateway)
        with capture_logs() as lines:
            sampling.report_hanging()
            sampling.report_hanging()
        ((request_id, _),) = runner.hanging(0)
        (line,) = lines
        assert (line["event"], line["plugin"], line["hook"]) == ("plugin_hangs", "slow", "on_end")
        assert line["request_id"] == request_id
        assert runner.hanging(60) == []
        (plugin,) = (entry.plugin for entry in gateway.gateway.chain.entries if isinstance(entry.plugin, Hanging))
        plugin.allowed.set()
        assert (await asking).headers["x-request-id"] == request_id
        await wait_until(lambda: runner.hanging(0) == [])

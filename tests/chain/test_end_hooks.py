"""Steps of ends are sent together, in reverse order; every plugin learns what became of its own."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway import Exchange
from gateway.chain.chain import Chain
from gateway.chain.entry import Entry
from gateway.store.client.client import Client
from gateway.store.embedded import EmbeddedStore
from gateway.testing import exchange
from tests.chain.planners import FAIL, STOP, WRONG_STEPS, Planner, Waiter, ran, started
from tests.patience import PATIENCE_S, wait_until


def planners(calls: list[str], *names: str) -> list[Planner]:
    return [Planner(name=name, calls=calls, failures=[]) for name in names]


async def end(chain: Chain, *plugins: Planner | Waiter) -> None:
    entered = [Entry(plugin.name, plugin) for plugin in plugins]
    await chain.end(exchange(), entered)
    assert entered == []


async def test_steps_run_in_reverse_order_in_one_script(tmp_path: Path, store_url: str, client: Client) -> None:
    plugins = planners([], "a", "b", "c")
    async with started(tmp_path, store_url, plugins) as (chain, _):
        await end(chain, *plugins)
        before = await client.call("INFO", "commandstats")
        await end(chain, *plugins)
        after = await client.call("INFO", "commandstats")
    assert after["cmdstat_evalsha"]["calls"] == before["cmdstat_evalsha"]["calls"] + 1
    assert await ran(client) == 2 * ["end of c", "end of b", "end of a"]


async def test_a_plugin_that_waits_finds_what_the_steps_below_it_did(
    tmp_path: Path, store_url: str, client: Client
) -> None:
    calls: list[str] = []
    a, b = planners(calls, "a", "b")
    plugins: Sequence[Planner | Waiter] = (a, Waiter(name="w", calls=calls), b)
    async with started(tmp_path, store_url, plugins) as (chain, _):
        await end(chain, *plugins)
    assert calls == ["b plans the end", "w finds ['end of b'] at the end", "a plans the end"]
    assert await ran(client) == ["end of b", "end of a"]


@pytest.mark.parametrize("again", [True, False])
async def test_steps_after_one_that_stops_run_next_planned_again_where_it_says_so(
    tmp_path: Path, store_url: str, client: Client, again: bool
) -> None:
    async def reads(_: Exchange, reply: Any) -> bool:
        return again

    calls: list[str] = []
    plugins = planners(calls, "a", "b", "c")
    plugins[2].end_script, plugins[2].ends = STOP, reads
    async with started(tmp_path, store_url, plugins) as (chain, _):
        await end(chain, *plugins)
    assert await ran(client) == ["end of c", "end of b", "end of a"]
    planned = ["c plans the end", "b plans the end", "a plans the end"]
    assert calls == planned + (planned[1:] if again else [])


async def test_a_step_that_fails_affects_no_other(tmp_path: Path, store_url: str, client: Client) -> None:
    plugins = planners([], "a", "b", "c")
    plugins[1].end_script = FAIL
    async with started(tmp_path, store_url, plugins) as (chain, _):
        await end(chain, *plugins)
    assert await ran(client) == ["end of c", "end of a"]
    assert [plugin.failures for plugin in plugins] == [[], ["b: ERR broken"], []]


async def test_without_a_store_every_plugin_learns_it(tmp_path: Path) -> None:
    plugins = planners([], "a", "b")
    async with started(tmp_path, f"unix://{tmp_path}/nothing", plugins) as (chain, given):
        for client in (given.store.client, given.store.settling):
            client._topology._timeout_s = 0.1  # type: ignore[attr-defined]
        await end(chain, *plugins)
    assert all(len(plugin.failures) == 1 and "store" in plugin.failures[0] for plugin in plugins)


async def test_an_error_in_any_part_is_logged_with_its_plugin(tmp_path: Path, store_url: str, client: Client) -> None:
    async def crash(_: Exchange, reply: Any) -> bool:
        raise SystemExit(3)

    plugins = planners([], "a", "b")
    plugins[1].ends = crash
    with capture_logs() as logs:
        async with started(tmp_path, store_url, plugins) as (chain, _):
            await end(chain, *plugins)
    assert await ran(client) == ["end of b", "end of a"]
    assert [(line["event"], line["plugin"], line["hook"]) for line in logs] == [("plugin_failed", "b", "end_step")]


async def test_to_give_up_a_frozen_store_is_a_failure_of_the_steps(tmp_path: Path) -> None:
    embedded = EmbeddedStore.start(tmp_path)
    plugins: list[Planner | Waiter] = [*planners([], "b", "c")]
    try:
        async with started(tmp_path / "data", embedded.url, plugins) as (chain, given):
            assert await ran(given.redis) == []
            os.kill(embedded.pid, signal.SIGSTOP)
            entered = [Entry(plugin.name, plugin) for plugin in plugins]
            ending = asyncio.create_task(chain.end(exchange(), entered))
            await wait_until(lambda: plugins[0].calls[-1:] == ["b plans the end"])
            await asyncio.sleep(0.05)
            with capture_logs() as logs:
                ending.cancel()
                await ending
            assert [(line["event"], line["plugin"]) for line in logs] == [("plugin_hangs", "c")]
            assert [len(plugin.failures) for plugin in plugins if isinstance(plugin, Planner)] == [1, 1]
            os.kill(embedded.pid, signal.SIGCONT)
    finally:
        embedded.stop()


@pytest.mark.parametrize("wrong", list(WRONG_STEPS))
async def test_what_cannot_be_sent_affects_no_other(tmp_path: Path, store_url: str, client: Client, wrong: str) -> None:
    plugins = planners([], "a", "b", "c")
    plugins[1].makes = WRONG_STEPS[wrong]
    with capture_logs() as logs:
        async with started(tmp_path, store_url, plugins) as (chain, _):
            await end(chain, *plugins)
            async with asyncio.timeout(PATIENCE_S):
                await chain.idle()
    assert await ran(client) == ["end of c", "end of a"]
    assert {line["plugin"] for line in logs} == {"b"}
    assert [plugin.failures for plugin in plugins] == [[], [], []]

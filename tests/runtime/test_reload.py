"""A reload while requests run takes effect as a whole or not at all, and open streams are not touched."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import pytest

from gateway import Exchange, Plugin, Reply
from gateway.config.schema import Config, Port
from gateway.fake_upstream import FakeUpstream
from gateway.runtime.reload import Reloader, after_reload, needs_restart
from gateway.store.client.client import Client
from gateway.testing import Running, running
from tests.cli.processes import Served, demo_in, serving
from tests.whole.conftest import CHAIN, configuration
from tests.whole.raw import ask, chat, get, read_answer
from tests.whole.scripted import Gated
from tests.whole.test_stream import STREAM, WORDS

HALF = STREAM.partition(WORDS[3])[0]
stopped: list[str] = []


class Stamp(Plugin):
    """Stamps every response, and records that it was stopped."""

    word: str

    async def on_request(self, exchange: Exchange) -> Reply | None:
        exchange.response_headers["x-stamp"] = self.word
        return None

    async def stop(self) -> None:
        stopped.append(self.word)


def stamped(base_url: str, word: str) -> str:
    step = f"  - use: tests.runtime.test_reload:Stamp\n    with: {{word: {word}}}\n"
    return configuration(base_url, chain=CHAIN + step)


async def generation_of(gateway: Running) -> tuple[int, str]:
    answer = await ask(gateway.port, get("/readyz"))
    return answer.status, answer.headers["x-config-generation"]


async def stamp_of(gateway: Running, token: str) -> str:
    return (await ask(gateway.port, get("/v1/models", token))).headers["x-stamp"]


async def test_new_exchanges_get_the_new_chain_and_old_ones_keep_theirs(
    store_url: str, client: Client, tmp_path: Path
) -> None:
    stopped.clear()
    async with (
        Gated(HALF, STREAM.removeprefix(HALF)) as upstream,
        running(stamped(upstream.base_url, "old"), tmp_path, store_url) as gateway,
    ):
        token = await gateway.token()
        async with Reloader(gateway.gateway, tmp_path / "gateway.yaml") as reloader:
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(chat(token))
            await upstream.arrived.wait()
            (tmp_path / "gateway.yaml").write_text(stamped(upstream.base_url, "new"))
            assert await generation_of(gateway) == (200, "1")
            assert await reloader.run_once()
            assert await generation_of(gateway) == (200, "2")
            assert await stamp_of(gateway, token) == "new"
            assert stopped == []
            upstream.gate.set()
            answer = await read_answer(reader)
            writer.close()
            assert (answer.headers["x-stamp"], answer.whole) == ("old", True)
            await gateway.gateway.runner.wait_ended()
            await asyncio.sleep(0)
        assert stopped == ["old"]
        record = await gateway.store.usage.find(answer.headers["x-request-id"])
        assert record is not None
        assert record.config == 1
    assert stopped == ["old", "new"]


@pytest.mark.parametrize(
    "bad",
    ["{", "plugins: []", "plugins: [{use: nobody}]", "models: {m: {free: true, channels: [nobody]}}"],
)
async def test_a_bad_file_changes_nothing(
    upstream: FakeUpstream, store_url: str, client: Client, tmp_path: Path, bad: str
) -> None:
    async with running(stamped(upstream.base_url, "old"), tmp_path, store_url) as gateway:
        async with Reloader(gateway.gateway, tmp_path / "gateway.yaml") as reloader:
            (tmp_path / "gateway.yaml").write_text(bad)
            assert not await reloader.run_once()
        assert await generation_of(gateway) == (200, "1")
        assert await stamp_of(gateway, await gateway.token()) == "old"


def test_what_needs_a_restart_is_named() -> None:
    current = Config()
    new = msgspec.structs.replace(current, listen="127.0.0.1:1", workers=3, models={})
    assert needs_restart(current, new) == ["listen", "workers"]


def test_of_the_port_only_the_trusted_proxies_are_reloaded() -> None:
    current = Config()
    trusting = msgspec.structs.replace(current, port=Port(trusted_proxies=("10.0.0.2",)))
    assert needs_restart(current, trusting) == []
    assert after_reload(current, trusting) == trusting
    both = msgspec.structs.replace(current, port=Port(trusted_proxies=("10.0.0.2",), drain=1))
    assert needs_restart(current, both) == ["port"]
    assert after_reload(current, both) == trusting


@pytest.fixture
async def upstream() -> AsyncIterator[FakeUpstream]:
    async with FakeUpstream(pace_s=0) as fake:
        yield fake


async def send_until(served: Served, done: asyncio.Event, statuses: list[int]) -> None:
    body = {"model": "demo-words", "stream": True, "max_tokens": 2, "messages": [{"role": "user", "content": "hi"}]}
    async with aiohttp.ClientSession(headers=served.headers) as session:
        while not done.is_set():
            async with session.post(f"{served.base_url}/chat/completions", json=body) as answer:
                text = await answer.text()
                statuses.append(answer.status if text.endswith("data: [DONE]\n\n") else -1)


@pytest.mark.skipif(sys.platform != "linux", reason="the gateway is watched through /proc")
async def test_twenty_reloads_under_load_and_no_request_fails(tmp_path: Path) -> None:
    file = demo_in(tmp_path, workers=2)
    good = file.read_text().replace("{use: rate-limit}", "{use: rate-limit, with: {requests_per_minute: 1000000}}")
    file.write_text(good)
    log = tmp_path / "serve.log"
    async with serving(file) as served:
        done, statuses = asyncio.Event(), list[int]()
        load = [asyncio.create_task(send_until(served, done, statuses)) for _ in range(4)]
        for number in range(20):
            if number % 2:
                served.process.send_signal(signal.SIGHUP)
            else:
                file.write_text(good.replace("credit: 5", "credit: 5, account: demo") + f"# {number}\n")
            while log.read_text().count('"reloaded"') < 2 * (number + 1):
                await asyncio.sleep(0.02)
        file.write_text("plugins: [")
        while "reload_refused" not in log.read_text():
            await asyncio.sleep(0.02)
        while len(statuses) < 40:
            await asyncio.sleep(0.02)
        done.set()
        await asyncio.gather(*load)
        assert set(statuses) == {200}
        assert await served.stop() == 0

"""Reloads: an edit takes effect as a whole or not at all, and ends neither the gateway nor open streams."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
import pytest

from gateway import Exchange, Plugin, Reply
from gateway.base.errors import GatewayError
from gateway.config.document import MAX_FILE_BYTES
from gateway.config.schema import Config, Loaded, Port, digests, load
from gateway.fake_upstream import FakeUpstream
from gateway.runtime.active_config import ConfigReport, ConfigTest
from gateway.runtime.handover import MAX_REASON, Handover, Offer, RefusedReload
from gateway.runtime.reload import Reloader, after_reload, needs_restart
from gateway.server.gateway import Gateway
from gateway.store.client.client import Client
from gateway.testing import Running, running
from tests.cli.processes import Served, children, demo_in, kill, serving
from tests.patience import wait_until
from tests.whole.conftest import CHAIN, configuration
from tests.whole.raw import ask, chat, get, read_answer
from tests.whole.scripted import Gated
from tests.whole.test_stream import STREAM, WORDS

# A reload while requests run takes effect as a whole or not at all, and open streams are not touched.
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


class FileReloader(Reloader):
    """A reloader that takes up a file, without secrets in others, when it is told to."""

    def __init__(self, gateway: Gateway, path: Path) -> None:
        super().__init__(gateway, path, Handover(1))

    async def run_once(self) -> bool:
        """Take up the file as it is now, and return whether that succeeded."""
        generation = self._gateway.chain.generation + 1
        self._handover.write(Offer(generation, generation, "adopted", self._path.read_bytes()))
        await self.follow()
        return self._gateway.chain.generation == generation


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
        async with FileReloader(gateway.gateway, tmp_path / "gateway.yaml") as reloader:
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
        record = (await gateway.store.usage.ask(answer.headers["x-request-id"])).record
        assert record is not None
        assert record.config == 1
    assert stopped == ["old", "new"]


def test_what_needs_a_restart_is_named_and_of_the_port_only_the_trusted_proxies_are_reloaded() -> None:
    current = Config()
    new = msgspec.structs.replace(current, listen="127.0.0.1:1", workers=3, models={})
    assert needs_restart(current, new) == ["listen", "workers"]
    trusting = msgspec.structs.replace(current, port=Port(trusted_proxies=("10.0.0.2",)))
    assert needs_restart(current, trusting) == []
    assert after_reload(current, trusting) == trusting
    both = msgspec.structs.replace(current, port=Port(trusted_proxies=("10.0.0.2",), drain=1))
    assert needs_restart(current, both) == ["port"]
    assert after_reload(current, both) == trusting


def test_digests_differ_where_gateways_serve_something_else_and_know_no_credential(tmp_path: Path) -> None:
    def of(text: str) -> dict[str, str]:
        (tmp_path / "gateway.yaml").write_text(text)
        return digests(load(tmp_path / "gateway.yaml").config)

    file = """\
channels:
  a: {base_url: http://a/v1, api_key: canary}
  b: {base_url: http://b/v1}
models: {m: {input: 1, output: 2, channels: [a]}}
plugins: [{use: auth}, {use: rate-limit, name: limits, enabled: false}]
"""
    one = of(file)
    assert of(file.replace("canary", "other")) == one
    for before, after, name in (
        ("input: 1", "input: 3", "models"),
        ("http://b/", "http://c/", "channels"),
        ("enabled: false", "enabled: true", "plugins"),
    ):
        other = of(file.replace(before, after))
        assert [each for each in one if other[each] != one[each]] == [name]


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


# No edit of the file and no plugin ends the gateway or blocks a worker's successor, and open streams are not touched.
LINUX_ALONE = pytest.mark.skipif(sys.platform != "linux", reason="the gateway is watched through /proc")
HEAD: Final = "import asyncio, ctypes, os, signal, sys\nfrom pathlib import Path\nfrom gateway import Plugin\n"
BAD: Final = {
    "import sys.exit": ("sys.exit(3)", "importing `bad{n}` failed: SystemExit: 3"),
    "import os._exit": ("os._exit(3)", "'bad{n}:P' ended its process with exit code 3"),
    "import interrupt": ("raise KeyboardInterrupt", "failed: KeyboardInterrupt"),
    "import crash": ("os.kill(os.getpid(), signal.SIGSEGV)", "ended its process with signal SIGSEGV"),
    "constructor": ("__post_init__: raise OSError(28, 'full')", "making `bad{n}:P` failed: OSError: [Errno 28] full"),
    "constructor recursion": ("__post_init__: self.__post_init__()", "failed: RecursionError"),
    "constructor memory": ("__post_init__: raise MemoryError", "failed: MemoryError"),
    "constructor exit": ("__post_init__: raise SystemExit", "failed: SystemExit"),
    "start": ("start: raise RuntimeError('a bug')", "does not start: RuntimeError: a bug"),
    "start base": ("start: raise type('Own', (BaseException,), {})('x')", "does not start: Own: x"),
    "start interrupt": ("start: raise KeyboardInterrupt", "does not start: KeyboardInterrupt"),
    "start cancelled": ("start: raise asyncio.CancelledError", "does not start"),
    "start crash": ("start: os.kill(os.getpid(), signal.SIGKILL)", "ended its process with signal SIGKILL"),
    "start exit": ("start: os._exit(0)", "ended its process with exit code 0"),
}
SETTINGS: Final = {
    "quota}": "quota, with: {max_hold: NaN}}",
    "input: 0.50": "input: NaN",
    '{models: ["*"]}': "{ratio: Infinity}",
    "use: auth": "use: auth, with: {wrong_tokens_per_minute: -1}",
    "use: quota": "use: quota, with: {lease_margin: 1e30}",
}


def module(text: str) -> str:
    """Return the text of a module with the plugin `P`, whose hook `NAME: STATEMENT` has this body; or the module's own body."""
    name, colon, statement = text.partition(": ")
    if not colon:
        return f"{HEAD}{text}\n"
    kind = "" if name.startswith("__") else "async "
    arguments = "self, services" if name == "start" else "self"
    return f"{HEAD}\n\nclass P(Plugin):\n    {kind}def {name}({arguments}):\n        {statement}\n"


class Log:
    """The log of a gateway that runs."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "serve.log"

    def lines(self, event: str = "") -> list[dict[str, Any]]:
        """Return the lines of an event, or all."""
        lines = [json.loads(line) for line in self.file.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if not event or line["event"] == event]

    async def wait(self, event: str, count: int) -> list[dict[str, Any]]:
        """Wait until an event was logged `count` times, and return its lines."""
        await wait_until(lambda: len(self.lines(event)) >= count)
        return self.lines(event)


async def active_ask(served: Served, **more: object) -> tuple[int, str]:
    body = {"model": "demo-words", "stream": True, "messages": [{"role": "user", "content": "hi"}], **more}
    async with (
        aiohttp.ClientSession(headers=served.headers) as session,
        session.post(f"{served.base_url}/chat/completions", json=body) as answer,
    ):
        return answer.status, await answer.text()


@asynccontextmanager
async def streaming(served: Served) -> AsyncIterator[aiohttp.ClientResponse]:
    """Yield a stream that has begun."""
    body = {"model": "demo-words", "stream": True, "messages": [{"role": "user", "content": "hi " * 50}]}
    async with (
        aiohttp.ClientSession(headers=served.headers) as session,
        session.post(f"{served.base_url}/chat/completions", json=body) as answer,
    ):
        await answer.content.readline()
        yield answer


def with_plugin(text: str, use: str) -> str:
    return text.replace("{use: model-routing}", f"{{use: '{use}'}}, {{use: model-routing}}")


def workers(served: Served) -> set[int]:
    return {pid for pid, line in children(served.pid).items() if "store.sock" not in line}


@LINUX_ALONE
async def test_no_edit_and_no_plugin_of_a_reload_hurts_what_runs(tmp_path: Path) -> None:
    file, log = demo_in(tmp_path, workers=2), Log(tmp_path)
    good = file.read_text()
    async with serving(file) as served:
        before = workers(served)
        async with streaming(served) as stream:
            refused = 0
            for number, (text, reason) in enumerate(BAD.values()):
                (tmp_path / f"bad{number}.py").write_text(module(text))
                file.write_text(with_plugin(good, f"bad{number}:P"))
                refused += 1
                lines = await log.wait("reload_refused", refused)
                assert reason.format(n=number) in lines[-1]["reason"], lines[-1]
                assert "plugins[4]" in lines[-1]["reason"]
            for old, new in SETTINGS.items():
                file.write_text(good.replace(old, new) + f"# {refused}\n")
                refused += 1
                await log.wait("reload_refused", refused)
            assert (await stream.content.read()).endswith(b"data: [DONE]\n\n")
        assert workers(served) == before
        assert len(log.lines("reload_refused")) == refused
        assert log.lines("reloaded") == log.lines("child_died") == []
        assert (await active_ask(served, max_tokens=2))[0] == 200
        file.write_text(f"{good}# good again\n")
        assert {line["generation"] for line in await log.wait("reloaded", 2)} == {2}
        assert await served.stop() == 0


FEW_STARTS: Final = """
import os
from gateway import Plugin

class P(Plugin):
    most: int

    async def start(self, services):
        starts = os.open("starts", os.O_APPEND | os.O_CREAT | os.O_WRONLY)
        os.write(starts, b"x")
        if os.lseek(starts, 0, os.SEEK_CUR) > self.most:  # behind its own, also where two start at once
            raise RuntimeError("started too often")
"""


@LINUX_ALONE
async def test_where_one_worker_confirms_and_another_refuses_all_keep_the_last_good_file(tmp_path: Path) -> None:
    (tmp_path / "few.py").write_text(FEW_STARTS)
    file, log = demo_in(tmp_path, workers=2), Log(tmp_path)
    good = file.read_text()
    async with serving(file) as served:
        file.write_text(with_plugin(good, "few:P").replace("'few:P'", "'few:P', with: {most: 2}"))
        reasons = [line["reason"] for line in await log.wait("reload_refused", 2)]
        assert any("started too often" in reason for reason in reasons)
        assert any(reason.startswith("worker ") for reason in reasons)
        assert (tmp_path / "starts").read_text() == "xxx", "the test and one worker started it"
        for pid in workers(served):  # successors begin with the last good file
            kill(pid)
        await log.wait("child_died", 2)
        assert (await active_ask(served, max_tokens=2))[0] == 200
        assert log.lines("child_did_not_start") == log.lines("reloaded") == []
        file.write_text(f"{good}# good again\n")
        assert {line["generation"] for line in await log.wait("reloaded", 2)} == {2}
        for pid in workers(served):
            kill(pid)
        await log.wait("child_died", 4)
        assert (await active_ask(served, max_tokens=2))[0] == 200
        assert await served.stop() == 0


DYING: Final = """
import os
from pathlib import Path
from gateway import Plugin

class P(Plugin):
    async def start(self, services):
        if Path("tried").exists():
            os._exit(9)
        Path("tried").touch()
"""


@LINUX_ALONE
async def test_a_worker_that_dies_of_an_offer_is_succeeded_by_one_with_the_last_good_file(tmp_path: Path) -> None:
    (tmp_path / "dying.py").write_text(DYING)
    file, log = demo_in(tmp_path), Log(tmp_path)
    good = file.read_text()
    async with serving(file) as served:
        file.write_text(with_plugin(good, "dying:P"))
        await log.wait("child_died", 2)
        file.write_text(f"{good}# good again\n")
        await log.wait("reload_refused", 1)
        await log.wait("reloaded", 1)
        assert (await active_ask(served, max_tokens=2))[0] == 200
        assert await served.stop() == 0


HANGING: Final = """
import asyncio
from pathlib import Path
from gateway import Plugin

class P(Plugin):
    async def on_request(self, exchange):
        return None

    async def on_end(self, exchange):
        Path("ending").touch()
        await asyncio.get_running_loop().create_future()

    async def stop(self):
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                pass
"""


@LINUX_ALONE
async def test_a_plugin_that_hangs_is_named_and_the_gateway_stops_in_time(tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(HANGING)
    file, log = demo_in(tmp_path), Log(tmp_path)
    file.write_text(with_plugin(file.read_text(), "hanging:P") + "port: {drain: 0.2}\n")
    async with serving(file) as served:
        asking = asyncio.create_task(active_ask(served, max_tokens=2))
        await wait_until((tmp_path / "ending").exists)
        assert await served.stop() == 0
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    hooks = {(line["plugin"], line["hook"]) for line in log.lines("plugin_hangs")}
    assert hooks == {("hanging:P", "on_end"), ("hanging:P", "stop")}
    assert log.lines("child_killed") == []
    assert log.lines("tasks_abandoned") != []


# The test of a configuration names what a plugin does wrong, and ends in time whatever the plugin does.
CONFIG_TEST_HEAD = "import asyncio, os, time\nfrom gateway import Plugin\n"
CONFIG_TEST_CHAIN = "plugins: [{use: auth}, {use: 'MODULE:P'}, {use: model-routing}]\n"
LATE_S = 0.3
HANGS = {
    "at import": (
        "while True: time.sleep(3600)",
        "importing `MODULE` failed: TimeoutError: it takes longer than 0.3 s",
    ),
    "at import, and ignores errors": (
        "while True:\n    try:\n        time.sleep(3600)\n    except BaseException:\n        pass",
        "plugins[1]: 'MODULE:P' did not come to an end within 0.3 s",
    ),
    "in its constructor": (
        "class P(Plugin):\n    def __post_init__(self):\n        time.sleep(3600)",
        "making `MODULE:P` failed: TimeoutError: it takes longer than 0.3 s",
    ),
    "in its start": (
        "class P(Plugin):\n    async def start(self, services):\n        time.sleep(3600)",
        "'MODULE:P' does not start: TimeoutError: it takes longer than 0.3 s",
    ),
    "waiting in its start": (
        "class P(Plugin):\n    async def start(self, services):\n        await asyncio.sleep(3600)",
        "'MODULE:P' did not start within 0.3 s",
    ),
}


@pytest.mark.parametrize("where", HANGS)
def test_a_plugin_that_hangs_is_named(tmp_path: Path, store_url: str, where: str) -> None:
    text, reason = HANGS[where]
    name = f"hangs_{list(HANGS).index(where)}_0815"
    (tmp_path / f"{name}.py").write_text(f"{CONFIG_TEST_HEAD}{text}\n")
    file = tmp_path / "gateway.yaml"
    file.write_text(f"{CONFIG_TEST_CHAIN.replace('MODULE', name)}data: {tmp_path}/data\n")
    with ConfigTest(load(file, {}), store_url, limit_s=LATE_S) as test, pytest.raises(GatewayError) as refused:
        test.wait()
    assert reason.replace("MODULE", name) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith(f"{file}:1: plugins[1]")


def test_a_good_configuration_has_a_report(tmp_path: Path, store_url: str) -> None:
    file = tmp_path / "gateway.yaml"
    text = "plugins: [{use: auth}, {use: model-routing}]\ngroups: {default: {}}\n"
    text += "channels: {a: {base_url: http://h, api_key: ollama}}\n"
    file.write_text(f"{text}data: {tmp_path}/data\n")
    with ConfigTest(load(file, {}), store_url) as test:
        assert test.wait() == ConfigReport(
            ["auth", "model-routing"],
            ["channels.a: a credential of fewer than 12 characters is not removed from the upstream's answers"],
        )


async def test_a_new_credential_that_its_upstream_refuses_does_not_replace_one_that_works(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"

    def with_key(key: str) -> Loaded:
        channel = f"channels:\n  a: {{base_url: '{refusing.base_url}', api_key: {key}}}\n"
        file.write_text(f"plugins: [{{use: auth}}, {{use: model-routing}}]\n{channel}data: {tmp_path}/data\n")
        return load(file, {})

    async with FakeUpstream(key="the-new-key-4711") as refusing:
        before = with_key("the-old-key-4711").config
        with ConfigTest(with_key("the-new-key-4711"), before=before) as test:
            assert (await asyncio.to_thread(test.wait)).plugins
        with ConfigTest(with_key("a-wrong-key-4711"), before=before) as test, pytest.raises(GatewayError) as refused:
            await asyncio.to_thread(test.wait)
        assert "channels.a: its upstream refuses the new credential (401)" in str(refused.value)
        assert "wrong-key" not in str(refused.value)
        asked = len(refusing.requests)
        with ConfigTest(with_key("the-old-key-4711"), before=before) as test:
            await asyncio.to_thread(test.wait)
        assert len(refusing.requests) == asked, "a credential that is served is not asked for"
    with ConfigTest(with_key("a-wrong-key-4711"), before=before) as test:
        assert (await asyncio.to_thread(test.wait)).plugins, "an upstream that is away refuses nothing"


# What is read of a handover is a whole offer or none, and answers belong to one offer.
def test_the_largest_file_is_handed_over_and_half_an_offer_is_none() -> None:
    handover = Handover(1)
    assert handover.read() is None
    offer = Offer(1, 2, "withdrawn", b"x" * MAX_FILE_BYTES)
    handover.write(offer)
    assert handover.read() == offer
    handover._offer[1000:1001] = b"y"
    assert handover.read() is None


def test_answers_belong_to_one_offer_and_not_to_a_worker_before() -> None:
    handover = Handover(2)
    offer = Offer(7, 2, "offered", b"")
    assert handover.answers(7) == [None, None]
    handover.answer(0, offer.number, True)
    handover.answer(1, offer.number, False)
    assert (handover.answers(7), handover.answers(8)) == ([True, False], [None, None])
    handover.answer(0, 0, False)
    assert handover.answers(7) == [None, False]


def test_the_last_refusal_is_known_until_a_file_is_adopted() -> None:
    handover = Handover(1)
    assert handover.refused() is None
    handover.refuse(RefusedReload("the file \udcff has no channels", 5.5))
    assert handover.refused() == RefusedReload("the file ? has no channels", 5.5)
    handover.refuse(RefusedReload("ü" * 10 * MAX_REASON, 6))
    assert handover.refused() == RefusedReload("ü" * MAX_REASON, 6)
    handover.refuse(None)
    assert handover.refused() is None

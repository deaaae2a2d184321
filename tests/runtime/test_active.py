"""No edit of the file and no plugin ends the gateway or blocks a worker's successor, and open streams are not touched."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from tests.cli.processes import Served, children, demo_in, kill, serving
from tests.patience import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the gateway is watched through /proc")

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


async def ask(served: Served, **more: object) -> tuple[int, str]:
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
        assert (await ask(served, max_tokens=2))[0] == 200
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
        assert (await ask(served, max_tokens=2))[0] == 200
        assert log.lines("child_did_not_start") == log.lines("reloaded") == []
        file.write_text(f"{good}# good again\n")
        assert {line["generation"] for line in await log.wait("reloaded", 2)} == {2}
        for pid in workers(served):
            kill(pid)
        await log.wait("child_died", 4)
        assert (await ask(served, max_tokens=2))[0] == 200
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
        assert (await ask(served, max_tokens=2))[0] == 200
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


async def test_a_plugin_that_hangs_is_named_and_the_gateway_stops_in_time(tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(HANGING)
    file, log = demo_in(tmp_path), Log(tmp_path)
    file.write_text(with_plugin(file.read_text(), "hanging:P") + "port: {drain: 0.2}\n")
    async with serving(file) as served:
        asking = asyncio.create_task(ask(served, max_tokens=2))
        await wait_until((tmp_path / "ending").exists)
        assert await served.stop() == 0
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    hooks = {(line["plugin"], line["hook"]) for line in log.lines("plugin_hangs")}
    assert hooks == {("hanging:P", "on_end"), ("hanging:P", "stop")}
    assert log.lines("child_killed") == []
    assert log.lines("tasks_abandoned") != []

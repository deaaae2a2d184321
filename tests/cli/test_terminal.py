"""`gateway serve` on a terminal: words instead of JSON, a line for each request, and what Ctrl-C does to open streams."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import socket
import sys
import termios
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest

from gateway.config.schema import Port
from gateway.fake_upstream import FakeUpstream
from tests.cli.processes import answers, demo_in, gateway
from tests.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the pseudo-terminals of Linux")

CTRL_C = b"\x03"


class Screen:
    """A terminal with a program on it, and what the program wrote."""

    def __init__(self, terminal: int, process: asyncio.subprocess.Process) -> None:
        self._terminal = terminal
        self.process = process
        self.text = ""

    def read(self) -> None:
        """Take what was written."""
        try:
            self.text += os.read(self._terminal, 65536).decode(errors="replace").replace("\r\n", "\n")
        except OSError:  # the program has ended
            asyncio.get_running_loop().remove_reader(self._terminal)

    async def shows(self, text: str) -> None:
        """Wait until the program has written a text."""
        async with asyncio.timeout(PATIENCE_S):
            while text not in self.text:
                await asyncio.sleep(0.02)

    def press(self, key: bytes) -> None:
        """Press a key."""
        os.write(self._terminal, key)


@asynccontextmanager
async def served(file: Path, *program: str) -> AsyncIterator[Screen]:
    """Run a program on a terminal of its own."""
    terminal, end = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(program or (sys.executable, "-m", "gateway", "serve", "--config", str(file))),
        cwd=file.parent,
        stdin=end,
        stdout=end,
        stderr=end,
        env={name: value for name, value in os.environ.items() if name != "NO_COLOR"},
        start_new_session=True,
        preexec_fn=_take_terminal,
    )
    os.close(end)
    screen = Screen(terminal, process)
    asyncio.get_running_loop().add_reader(terminal, screen.read)
    try:
        yield screen
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        asyncio.get_running_loop().remove_reader(terminal)
        os.close(terminal)


def _take_terminal() -> None:
    """Make standard input the terminal whose keys send signals."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
async def upstream() -> AsyncIterator[FakeUpstream]:
    async with FakeUpstream(mode="endless", pace_s=0.05) as fake:
        yield fake


@pytest.fixture
def taken() -> Iterator[str]:
    """Yield an address where another program listens."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield f"127.0.0.1:{other.getsockname()[1]}"


@pytest.fixture
def file(tmp_path: Path, upstream: FakeUpstream, taken: str) -> Path:
    """Return a demo with a second model, whose answers do not end, and with ports of operators and callers that are taken."""
    file = demo_in(tmp_path, admin=taken, portal=f"{{listen: '{taken}'}}")
    text = file.read_text().replace("channels:\n", f"channels:\n  endless: {{base_url: '{upstream.base_url}'}}\n", 1)
    file.write_text(text.replace("models:\n", "models:\n  endless: {input: 1, output: 1, channels: [endless]}\n", 1))
    return file


async def ask(screen: Screen, model: str, *, until: str = "") -> str:
    """Stream an answer until it has a text, or ends. Return its request id."""
    base_url = re.search(r"base address +(\S+)", screen.text)
    token = re.search(r"token +(\S+)", screen.text)
    assert base_url is not None
    assert token is not None
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {token[1]}"}) as client,
        client.post(f"{base_url[1]}/chat/completions", json=body) as response,
    ):
        while until not in (await response.content.readline()).decode() or (
            not until and not response.content.at_eof()
        ):
            pass
        return response.headers["x-request-id"]


async def test_a_person_reads_words_and_a_second_ctrl_c_cuts_what_is_open(file: Path, upstream: FakeUpstream) -> None:
    async with served(file) as screen:
        await screen.shows("balances are kept.\n")
        assert [line for line in screen.text.splitlines() if line.lstrip().startswith("{")] == [], "no JSON"
        assert "may take it" not in screen.text, "no figures about a bound before the first request"
        assert "event_path" not in screen.text
        request_id = await ask(screen, "demo-words")
        await screen.shows(f"  {request_id}\n")
        (line,) = [line for line in screen.text.splitlines() if line.endswith(request_id)]
        seen = r"\d\d:\d\d:\d\d  demo  demo-words  200  [\d.]+ m?s  [\d.]+ m?s  0\.0000\d+  \S{36}"
        assert re.fullmatch(seen, line)
        assert "another program listens there: the pages are at 127.0.0.1:" in screen.text
        (at,) = re.findall(r"another program listens there: the portal is at (127.0.0.1:\d+)", screen.text)
        assert f"  http://{at}/my\n" in screen.text
        await answers(f"http://{at}/healthz")
        command = ["account", "link", "demo", "--config", str(file)]
        assert f"http://{at}/enter?ticket=" in (await gateway(*command, cwd=file.parent))[1]
        await assert_cut(screen, upstream)


async def assert_cut(screen: Screen, upstream: FakeUpstream) -> None:
    """Assert that Ctrl-C waits for two streams, and a second one cuts them in order."""
    streams = [asyncio.create_task(ask(screen, "endless", until='"error"')) for _ in range(2)]
    await wait_until(lambda: len(upstream.requests) == 2)
    screen.press(CTRL_C)
    await screen.shows("\nwaiting for 2 streams, up to 30 s; Ctrl-C again cuts them\n")
    pressed = time.monotonic()
    screen.press(CTRL_C)
    ids = await asyncio.wait_for(asyncio.gather(*streams), PATIENCE_S)
    assert await asyncio.wait_for(screen.process.wait(), PATIENCE_S) == 0
    assert time.monotonic() - pressed < Port().drain, "it would have waited as long"
    await screen.shows("stopped; balances and records are in ")
    assert "the open streams are cut" in screen.text
    for request_id in ids:
        assert re.search(rf"demo  endless  200 service_unavailable .* 0\.0000\d+  {request_id}\n", screen.text)


async def test_under_make_a_second_ctrl_c_cuts_the_streams_too(file: Path, upstream: FakeUpstream) -> None:
    recipe = f"serve:\n\t'{sys.executable}' -m gateway serve --config '{file}'\n"
    (file.parent / "Makefile").write_text(recipe)
    async with served(file, "make", "-s", "serve") as screen:
        await screen.shows("balances are kept.\n")
        stream = asyncio.create_task(ask(screen, "endless", until='"error"'))
        await wait_until(lambda: len(upstream.requests) == 1)
        screen.press(CTRL_C)
        await screen.shows("\nwaiting for 1 stream, ")
        screen.press(CTRL_C)
        await asyncio.wait_for(stream, PATIENCE_S)
        await screen.shows("stopped; balances and records are in ")
        await asyncio.wait_for(screen.process.wait(), PATIENCE_S)
        assert "Error" not in screen.text

"""The clock of the gateway or of its store steps while a gateway serves: nobody is refused longer than announced."""

from __future__ import annotations

import asyncio
import shutil
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.store.embedded import EmbeddedStore
from tests.fixtures.make_data import past_clock
from tests.patience import PATIENCE_S
from tests.whole.books import Books
from tests.whole.budgeted import budgeted
from tests.whole.raw import ask, chat
from tests.whole.test_budget_windows import HOURS, Gated

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the store of a test ends with its thread"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="a C compiler makes the library that moves the clock"),
]

DAY_S = 86_400
STEPS = (-30 * DAY_S, -7200, -360, 360, 40 * DAY_S)
WHOSE = ("gateway", "store")


class Clocks:
    """A gateway and its store, each with a clock of its own."""

    def __init__(self, books: Books, upstream: Gated, folder: Path) -> None:
        self.books, self.upstream, self._folder = books, upstream, folder

    def step(self, whose: str, seconds: int) -> None:
        with (self._folder / f"{whose}.clock").open("r+b") as file:
            file.write(struct.pack("q", seconds))

    async def ask(self) -> int:
        return (await ask(self.books.port, chat(self.books.token))).status

    async def served_within_a_second(self) -> None:
        """Ask once, and if that is refused, after the announced second again."""
        if await self.ask() != 200:
            await asyncio.sleep(1)
            assert [await self.ask() for _ in range(3)] == [200] * 3

    async def ready(self) -> bytes:
        request = b"GET /readyz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        return (await ask(self.books.port, request)).body


@asynccontextmanager
async def clocks(folder: Path, monkeypatch: pytest.MonkeyPatch, auth: str = "auth") -> AsyncIterator[Clocks]:
    library = await past_clock(folder)
    async with Gated() as upstream:
        books = Books(folder, upstream.base_url, auth=auth)
        await books.open()
        for name, more in HOURS.items():
            text = books.file.read_text()
            assert name in text
            books.file.write_text(text.replace(name, more))
        books.embedded.stop()
        for whose in WHOSE:
            (folder / f"{whose}.clock").write_bytes(bytes(8))
        try:
            with monkeypatch.context() as patch:
                patch.setenv("LD_PRELOAD", str(library))
                patch.setenv("CLOCK_OFFSET_FILE", str(folder / "store.clock"))
                books.embedded = EmbeddedStore.start(folder / "store")
                patch.setenv("CLOCK_OFFSET_FILE", str(folder / "gateway.clock"))
                async with books.worker():
                    patch.undo()
                    yield Clocks(books, upstream, folder)
        finally:
            books.embedded.stop()


@pytest.mark.parametrize("whose", WHOSE)
@pytest.mark.parametrize("seconds", STEPS)
async def test_requests_are_served_after_a_step_and_after_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str, seconds: int
) -> None:
    budgets = budgeted({"month": 1_000_000, "day": 1_000_000}, {"requests": 1000})
    async with clocks(tmp_path, monkeypatch, budgets) as given:
        streaming = asyncio.create_task(given.ask())
        async with asyncio.timeout(PATIENCE_S):
            while not given.upstream.requests:
                await asyncio.sleep(0.01)
        given.step(whose, seconds)
        await given.served_within_a_second()
        ahead_s = seconds if whose == "store" else -seconds
        async with asyncio.timeout(PATIENCE_S):
            while (text := await given.ready()) == b"ok\n":
                await asyncio.sleep(0.01)
        assert abs(int(text.split()[6]) - ahead_s) <= 2
        given.upstream.gate.set()
        assert await streaming == 200
        given.step(whose, 0)
        await given.served_within_a_second()
        async with asyncio.timeout(PATIENCE_S):
            while await given.ready() != b"ok\n":
                await asyncio.sleep(0.01)
        async with given.books.store() as store:
            wrong = await store.wallet.verify("tester")
        assert [each for each in wrong if not (abs(seconds) > DAY_S and each.startswith("the budget "))] == []

"""Windows of budgets end while a gateway serves: a month, a day of 25 hours, and a store whose clock is set back.

The gateway and its store run with a clock of their own, which `tests/fixtures/past_clock.c` moves.

A clock that steps refuses nobody for longer than announced; a session in a loop is ended, and others go on.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import struct
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

import pytest

from gateway.fake_upstream import FakeUpstream
from gateway.store.embedded import EmbeddedStore
from gateway.testing import running
from tests.fixtures.make_data import past_clock
from tests.patience import PATIENCE_S
from tests.whole.aftermath import last_end_record
from tests.whole.books import Books
from tests.whole.budgeted import budgeted, used
from tests.whole.conftest import configuration
from tests.whole.load import EXACT
from tests.whole.raw import Answer, ask, chat, get, head
from tests.whole.scripted import CHUNKED, LAST, Forever, Scripted, chunk

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the store of a test ends with its thread")

MOVES_CLOCKS = pytest.mark.skipif(
    shutil.which("cc") is None, reason="a C compiler makes the library that moves the clock"
)

ANSWER = (
    b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}]}\n\n'
    b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":12,"total_tokens":13}}\n\n'
    b"data: [DONE]\n\n"
)


FIRST = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"y"},"finish_reason":null}]}\n\n'
HOURS = {
    "lease_margin: 1": "lease_margin: 60",
    "first_byte: 0.5, idle: 3, total: 3": "first_byte: 30, idle: 30, total: 60",
}
"""A lease that outlasts the steps of the clock."""


def set_clock(file: Path, seconds: int) -> None:
    """Move the clock that is read from this file by these seconds."""
    with file.open("r+b") as clock:
        clock.write(struct.pack("q", seconds))


class Gated(Scripted):
    """An upstream whose first answer ends when `gate` is set."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        waiting = Forever(b"", 0.01, until=self.gate.is_set)
        super().__init__([CHUNKED, chunk(FIRST), waiting, chunk(ANSWER) + LAST], [CHUNKED, chunk(ANSWER) + LAST])


class Moved:
    """A gateway and its store, whose clock a test sets."""

    def __init__(self, books: Books, clock: Path) -> None:
        self.books = books
        self._clock = clock

    async def set(self, moment: str) -> None:
        """Set the clock of the gateway and the store. Returns when the store tells it."""
        offset = self.prepare(moment)
        async with self.books.store() as store, asyncio.timeout(PATIENCE_S):
            while abs(int((await store.client.call("TIME"))[0]) - time.time() - offset) > 2:
                await asyncio.sleep(0.01)

    def prepare(self, moment: str) -> int:
        """Set the clock by which the gateway and the store begin. Return by how many seconds it is ahead."""
        offset = round(datetime.fromisoformat(moment).timestamp() - time.time())
        set_clock(self._clock, offset)
        return offset

    async def ask(self) -> Answer:
        return await ask(self.books.port, chat(self.books.token))

    async def answered(self) -> None:
        """Send a request that every budget covers."""
        answer = await self.ask()
        assert answer.status == 200, answer.body

    async def refused(self) -> str:
        """Send a request that a budget refuses, and return the error's message."""
        answer = await self.ask()
        assert answer.status == 402
        error = json.loads(answer.body)["error"]
        assert error["code"] == "budget_exceeded"
        return str(error["message"])

    async def sums(self) -> dict[str, int]:
        """Return what each budget counts, where the audit finds nothing wrong."""
        async with self.books.store() as store:
            assert await store.wallet.verify("tester") == []
            return await used(store.client)


async def stopped_books(folder: Path, upstream: Gated, auth: str, more: str = "") -> Books:
    """Return books whose leases are long and whose store has stopped."""
    books = Books(folder, upstream.base_url, auth=auth, more=more)
    await books.open()
    text = books.file.read_text()
    for name, long in HOURS.items():
        assert name in text
        text = text.replace(name, long)
    books.file.write_text(text)
    books.embedded.stop()
    return books


@asynccontextmanager
async def moved(
    folder: Path, monkeypatch: pytest.MonkeyPatch, auth: str, moment: str
) -> AsyncIterator[tuple[Moved, Gated]]:
    """Yield a gateway in Berlin at this moment, and its upstream."""
    clock = folder / "clock"
    clock.write_bytes(bytes(8))
    library = await past_clock(folder)
    async with Gated() as upstream:
        books = await stopped_books(folder, upstream, auth, "time_zone: Europe/Berlin")
        given = Moved(books, clock)
        given.prepare(moment)
        try:
            with monkeypatch.context() as patch:
                patch.setenv("LD_PRELOAD", str(library))
                patch.setenv("CLOCK_OFFSET_FILE", str(clock))
                books.embedded = EmbeddedStore.start(folder / "store")
                async with books.worker():
                    yield given, upstream
        finally:
            books.embedded.stop()


@ON_LINUX
@MOVES_CLOCKS
async def test_a_stream_over_the_end_of_a_month_counts_in_the_month_of_its_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    auth = budgeted({"month": 1000, "requests": 1}, {"total": 1000})
    async with moved(tmp_path, monkeypatch, auth, "2026-11-30T23:58:40+01:00") as (given, upstream):
        streaming = asyncio.create_task(given.ask())
        async with asyncio.timeout(PATIENCE_S):
            while not upstream.requests:
                await asyncio.sleep(0.01)
        assert "It resets at 2026-12-01T00:00:00+01:00." in await given.refused()
        await given.set("2026-12-01T00:00:01+01:00")
        await given.answered()
        november = {field: amount for field, amount in (await given.sums()).items() if field.startswith("T")}
        assert november.popitem()[1] > 2 * EXACT, "the stream's hold, and the other's charge"
        assert not streaming.done()
        upstream.gate.set()
        assert (await streaming).whole
        sums = await given.sums()
        token = next(field for field in sums if field.startswith("T"))
        assert sums == {"M": EXACT, "R": 1, token: 2 * EXACT}
        assert "It resets at 2026-12-02T00:00:00+01:00." in await given.refused()


@ON_LINUX
@MOVES_CLOCKS
@pytest.mark.parametrize(
    ("begins", "late", "ends", "soon"),
    [
        ("10-25T00:00:05+02:00", "10-25T23:30:00+01:00", "10-26T00:00:00+01:00", "10-26T00:00:01+01:00"),
        ("03-29T00:00:05+01:00", "03-29T23:50:00+02:00", "03-30T00:00:00+02:00", "03-30T00:00:01+02:00"),
    ],
    ids=["25 hours", "23 hours"],
)
async def test_a_day_on_which_summer_time_changes_is_longer_or_shorter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begins: str, late: str, ends: str, soon: str
) -> None:
    async with moved(tmp_path, monkeypatch, budgeted(token={"requests": 1}), f"2026-{begins}") as (given, upstream):
        upstream.gate.set()
        await given.answered()
        await given.set(f"2026-{late}")
        assert f"It resets at 2026-{ends}." in await given.refused()
        await given.set(f"2026-{soon}")
        await given.answered()
        assert list((await given.sums()).values()) == [1]


@ON_LINUX
@MOVES_CLOCKS
async def test_a_clock_that_is_set_back_over_midnight_gives_no_budget_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with moved(tmp_path, monkeypatch, budgeted({"requests": 1}), "2026-11-24T00:00:02+01:00") as (
        given,
        upstream,
    ):
        upstream.gate.set()
        await given.answered()
        await given.set("2026-11-23T23:58:00+01:00")
        assert "It resets at 2026-11-25T00:00:00+01:00." in await given.refused()
        await given.set("2026-11-25T00:00:01+01:00")
        await given.answered()
        assert await given.sums() == {"R": 1}


DAY_S = 86_400
STEPS = (-30 * DAY_S, -360, 360, 40 * DAY_S)
WHOSE = ("gateway", "store")


class Clocks:
    """A gateway and its store, each with a clock of its own."""

    def __init__(self, books: Books, upstream: Gated, folder: Path) -> None:
        self.books, self.upstream, self._folder = books, upstream, folder

    def step(self, whose: str, seconds: int) -> None:
        set_clock(self._folder / f"{whose}.clock", seconds)

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
        books = await stopped_books(folder, upstream, auth)
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


@ON_LINUX
@MOVES_CLOCKS
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


LOOP = {"session-id": "a loop"}


@pytest.mark.usefixtures("client")
async def test_a_session_in_a_loop_is_ended_and_others_go_on(
    upstream: FakeUpstream, store_url: str, tmp_path: Path
) -> None:
    yaml = configuration(upstream.base_url).replace(
        "default: {models: [words, other]}", "default: {budgets: {session: 1, session_requests: 3}}"
    )
    async with running(yaml, tmp_path, store_url) as gateway:
        token = await gateway.token()
        answers = [await ask(gateway.port, chat(token, headers=LOOP)) for _ in range(5)]
        assert [answer.status for answer in answers] == [200, 200, 200, 402, 402]
        error = answers[-1].error
        assert (error["code"], answers[-1].headers["x-should-retry"]) == ("budget_exceeded", "false")
        assert "budget of requests in a session is used up" in error["message"]
        assert "an hour after the session's last request" in error["message"]
        session = (await last_end_record(gateway)).tags["session"]
        assert len(session) == 16
        assert "loop" not in session
        others: tuple[dict[str, str], ...] = ({"session-id": "b"}, {"X-Claude-Code-Session-Id": "a loop too"}, {})
        for headers in others:
            assert (await ask(gateway.port, chat(token, headers=headers))).status == 200
            tags = (await last_end_record(gateway)).tags
            assert tags.get("session") != session
            assert ("session" in tags) == bool(headers)

        async def told(headers: dict[str, str]) -> dict[str, int]:
            lines = {"Host": "gateway", "Authorization": f"Bearer {token}", **headers}
            account = json.loads((await ask(gateway.port, head("GET", "/v1/account", lines))).body)
            return {name: use[name] for use in account["budgets"] for name in use if name.startswith("left_")}

        left = await told(LOOP)
        assert left["left_requests"] == 0
        assert 0 < left["left_micros"] < 1_000_000
        assert (await told({"session-id": "c"})) == {"left_micros": 1_000_000, "left_requests": 3}
        assert json.loads((await ask(gateway.port, get("/v1/account", token))).body)["budgets"] == []
        assert await gateway.store.wallet.verify("tester") == []

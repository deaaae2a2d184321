"""A worker ends at once at each point of an exchange's life: the books are right, and the charge is what the rules say.

`MONEY_SEEDS=170 MONEY_SEED=7 pytest tests/whole/test_money_crashes.py -s` tries each point ten times under load, and every
kind of charge for what crashed.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from gateway.crash_points import EXIT_CODE, LABELS
from gateway.exchange import Outcome
from gateway.fake_upstream import FakeUpstream
from tests.patience import PATIENCE_S
from tests.whole.books import LEASE_S, Books
from tests.whole.load import EXACT, Callers, look_at
from tests.whole.raw import Answer, ask, chat

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the store of a test ends with its thread")

UNHELD = ("arrival.sent", "hold.before")
HELD = (
    "hold.after",
    "upstream.before",
    "upstream.sent",
    "upstream.answered",
    "stream.begun",
    "stream.event:2",
    "stream.ended",
    "settle.before",
)
SOME_HELD = ("upstream.sent", "settle.before")
CHARGED = ("settle.after", "record.before", "record.after", "answer.finished")

FLOOR = -(-len('[{"role": "user", "content": "hi"}]') // 4)


UNDER_LOAD = tuple(label for label in LABELS if label != "archive.written")
IN_NEED = ("journal.kept", "journal.delivered", "settlements.repeated")
SEEDS = int(os.environ.get("MONEY_SEEDS", "0"))
SEED = int(os.environ.get("MONEY_SEED", random.randrange(1 << 32)))


@asynccontextmanager
async def opened(folder: Path, on_crash: str = "release", pace_s: float = 0.002) -> AsyncIterator[Books]:
    async with FakeUpstream(pace_s=pace_s) as upstream:
        books = Books(folder, upstream.base_url, on_crash)
        try:
            await books.open()
            yield books
        finally:
            books.embedded.stop()


async def crashed(books: Books, label: str, *, stream: bool = True) -> Answer | None:
    """What a caller got of the request during which the worker ended."""
    answer = None
    async with books.worker(crash_at=label) as worker:
        with suppress(OSError, EOFError):
            answer = await ask(books.port, chat(books.token, {"stream": stream}))
        assert await asyncio.wait_for(worker.wait(), PATIENCE_S) == EXIT_CODE, books.log()
    return answer


async def settled_books(books: Books, lease_s: float = 0) -> tuple[list[int], Outcome | None]:
    """After a restart and the length of a lease: the charges of the one request, and how its record was closed."""
    began = time.monotonic()
    async with books.worker():
        await asyncio.sleep(began + lease_s - time.monotonic())
    records = await books.records()
    await books.verified()
    (charges,) = (await books.charges()).values() or [[]]
    assert (await books.account()).balance_micros == 1_000_000_000 - sum(charges)
    (record,) = records.values() or [None]
    return charges, record.outcome if record else None


def test_every_label_is_tried() -> None:
    tried = {label.partition(":")[0] for label in UNHELD + HELD + CHARGED}
    assert tried | {"journal.kept", "journal.delivered", "settlements.repeated", "archive.written"} == set(LABELS)


@pytest.mark.parametrize("label", UNHELD)
async def test_before_the_hold_nothing_is_charged(tmp_path: Path, label: str) -> None:
    async with opened(tmp_path) as books:
        assert await crashed(books, label) is None
        charges, outcome = await settled_books(books)
        assert (charges, outcome in (None, Outcome.GATEWAY_CRASHED)) == ([], True)


@pytest.mark.parametrize(
    ("label", "on_crash"),
    [*((label, "release") for label in HELD), *((label, "charge_floor") for label in (HELD if SEEDS else SOME_HELD))],
)
async def test_while_it_is_held_the_lease_decides(tmp_path: Path, label: str, on_crash: str) -> None:
    async with opened(tmp_path, on_crash) as books:
        answer = await crashed(books, label)
        assert answer is None or not answer.whole
        floor = FLOOR if on_crash == "charge_floor" else 0
        assert await settled_books(books, LEASE_S) == ([floor], Outcome.GATEWAY_CRASHED)


@pytest.mark.parametrize("label", CHARGED)
async def test_once_charged_it_is_charged_exactly_once(tmp_path: Path, label: str) -> None:
    async with opened(tmp_path) as books:
        answer = await crashed(books, label)
        assert answer is not None
        assert answer.whole == (label == "answer.finished"), "who has a whole answer has been charged"
        ended = label in ("record.after", "answer.finished")
        assert await settled_books(books) == ([EXACT], Outcome.COMPLETED if ended else Outcome.GATEWAY_CRASHED)


@pytest.mark.parametrize("label", ["settle.before", "record.before", "answer.finished"])
async def test_of_a_json_answer_nothing_leaves_before_it_is_charged(tmp_path: Path, label: str) -> None:
    async with opened(tmp_path) as books:
        answer = await crashed(books, label, stream=False)
        assert (answer is not None) == (label == "answer.finished")
        assert answer is None or (answer.whole and json.loads(answer.body)["usage"]["completion_tokens"] == 12)
        charges, outcome = await settled_books(books, LEASE_S)
        assert charges == ([EXACT] if label in CHARGED else [0])
        assert outcome is (Outcome.COMPLETED if label == "answer.finished" else Outcome.GATEWAY_CRASHED)


async def test_what_is_in_the_journal_is_charged_once_whoever_dies_with_it(tmp_path: Path) -> None:
    async with opened(tmp_path, pace_s=0.1) as books:
        async with books.worker(crash_at="journal.kept") as worker:
            asking = asyncio.create_task(ask(books.port, chat(books.token)))
            await until(lambda: held(books))
            os.kill(books.embedded.pid, signal.SIGSTOP)
            assert await asyncio.wait_for(worker.wait(), PATIENCE_S) == EXIT_CODE
            os.kill(books.embedded.pid, signal.SIGCONT)
            await asyncio.gather(asking, return_exceptions=True)
        async with books.worker(crash_at="journal.delivered") as worker:
            assert await asyncio.wait_for(worker.wait(), PATIENCE_S) == EXIT_CODE
        async with books.worker():
            await books.delivered()
        charges, _ = await settled_books(books, LEASE_S)
        assert sum(charges) > 0


async def test_settlements_that_were_repeated_are_charged_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as books:
        async with books.worker(crash_at="settlements.repeated") as worker:
            assert (await ask(books.port, chat(books.token))).whole
            await forgetting(books, worker)
            assert worker.returncode == EXIT_CODE
        assert (await settled_books(books))[0] == [EXACT]


@pytest.mark.parametrize("number", range(SEEDS or 1))
async def test_wherever_it_ends_under_load_the_rules_decide(tmp_path: Path, number: int) -> None:
    seed = (SEED + number) % (1 << 32)
    chance, label = random.Random(seed), UNDER_LOAD[seed % len(UNDER_LOAD)]
    on_crash = chance.choice(("release", "charge_floor"))
    times = 1 if label in IN_NEED else chance.randint(1, 40)
    print(f"MONEY_SEED={seed}: {label}:{times}, {on_crash}")
    async with opened(tmp_path, on_crash) as books:
        callers = Callers(books)
        async with books.worker(crash_at=f"{label}:{times}") as worker, callers.asking():
            disturbing = asyncio.create_task(disturb(label, books, worker, chance.uniform(0.1, 0.5)))
            try:
                assert await asyncio.wait_for(worker.wait(), PATIENCE_S) == EXIT_CODE, books.log()
            finally:
                await disturbing
        ended = time.monotonic()
        async with books.worker():
            await books.delivered()
            await asyncio.sleep(ended + LEASE_S - time.monotonic())
        await look_at(books, callers, FLOOR if on_crash == "charge_floor" else 0)


async def forgetting(books: Books, worker: asyncio.subprocess.Process) -> None:
    """The store forgets its last second again and again until the worker, which learns which one it talks to, repeats it."""
    ending = asyncio.create_task(worker.wait())
    async with asyncio.timeout(PATIENCE_S):
        while not (await asyncio.wait([ending], timeout=2.5))[0]:
            await asyncio.to_thread(books.kill_store)


async def disturb(label: str, books: Books, worker: asyncio.subprocess.Process, after_s: float) -> None:
    """Bring the worker to a label that it meets only in need."""
    if label == "settlements.repeated":
        await asyncio.sleep(after_s)
        await forgetting(books, worker)
    elif label in IN_NEED:
        await asyncio.sleep(after_s)
        os.kill(books.embedded.pid, signal.SIGSTOP)
        try:
            await until(lambda: kept(books))
        finally:
            os.kill(books.embedded.pid, signal.SIGCONT)


async def held(books: Books) -> bool:
    return (await books.account()).holds == 1


async def kept(books: Books) -> bool:
    return bool(books.journal())


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await holds():
            await asyncio.sleep(0.005)

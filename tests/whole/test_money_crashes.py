"""A worker crashes at each crash point of an exchange: the books balance, and the charge follows the rules.

`MONEY_SEEDS=170 MONEY_SEED=7 pytest tests/whole/test_money_crashes.py -s` tests each crash point ten times under load, and
each setting of `on_crash`.
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

from gateway.base.crash_points import EXIT_CODE, LABELS
from gateway.domain.exchange import Outcome
from gateway.fake_upstream import FakeUpstream
from tests.patience import PATIENCE_S
from tests.whole.books import LEASE_S, Books
from tests.whole.load import EXACT, Callers, check_books
from tests.whole.raw import Answer, ask, chat
from tests.whole.scripted import Fin, Scripted

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
    "record.before",
)
SOME_HELD = ("upstream.sent", "settle.before")
EXTENDED = ("extend.before", "extend.after")
CHARGED = ("settle.after", "record.after", "answer.finished")
"""The charge and the end of the record are written together."""

FLOOR = -(-len('[{"role": "user", "content": "hi"}]') // 4)
"""The floor in micros: the estimate of the input, a token for every four bytes of the messages."""

ELSEWHERE = ("archive.", "extend.", "external.", "import.", "api.")
UNDER_LOAD = tuple(label for label in LABELS if not label.startswith(ELSEWHERE))
STORE_DOWN = ("journal.kept", "journal.delivered", "settlements.repeated")
SEEDS = int(os.environ.get("MONEY_SEEDS", "0"))
SEED = int(os.environ.get("MONEY_SEED", random.randrange(1 << 32)))


@asynccontextmanager
async def opened(
    folder: Path, on_crash: str = "release", pace_s: float = 0.002, first: str = ""
) -> AsyncIterator[Books]:
    async with FakeUpstream(pace_s=pace_s) as upstream:
        books = Books(folder, upstream.base_url, on_crash, first)
        try:
            await books.open()
            yield books
        finally:
            books.embedded.stop()


async def crashed(books: Books, label: str, *, stream: bool = True) -> Answer | None:
    """Send a request during which the worker crashes, and return what the caller got of the response."""
    answer = None
    async with books.worker(crash_at=label) as worker:
        with suppress(OSError, EOFError):
            answer = await ask(books.port, chat(books.token, {"stream": stream}))
        assert await asyncio.wait_for(worker.wait(), PATIENCE_S) == EXIT_CODE, books.log()
    return answer


async def settled_books(books: Books, lease_s: float = 0) -> tuple[list[int], Outcome | None]:
    """Restart the worker, wait for `lease_s`, and return the charges and the outcome of the only request."""
    began = time.monotonic()
    async with books.worker():
        await asyncio.sleep(began + lease_s - time.monotonic())
    records = await books.records()
    await books.verify()
    (charges,) = (await books.charges()).values() or [[]]
    assert (await books.account()).balance_micros == 1_000_000_000 - sum(charges)
    (record,) = records.values() or [None]
    return charges, record.outcome if record else None


def test_every_crash_point_is_covered() -> None:
    covered = {label.partition(":")[0] for label in UNHELD + HELD + CHARGED}
    assert covered | {"journal.kept", "journal.delivered", "settlements.repeated"} == set(UNDER_LOAD)
    assert {label for label in LABELS if label.startswith("extend.")} == set(EXTENDED)


@pytest.mark.parametrize("label", UNHELD)
async def test_a_crash_before_the_hold_charges_nothing(tmp_path: Path, label: str) -> None:
    async with opened(tmp_path) as books:
        assert await crashed(books, label) is None
        charges, outcome = await settled_books(books)
        assert (charges, outcome in (None, Outcome.GATEWAY_CRASHED)) == ([], True)


@pytest.mark.parametrize(
    ("label", "on_crash"),
    [*((label, "release") for label in HELD), *((label, "charge_floor") for label in (HELD if SEEDS else SOME_HELD))],
)
async def test_a_crash_during_the_hold_is_settled_by_the_lease(tmp_path: Path, label: str, on_crash: str) -> None:
    async with opened(tmp_path, on_crash) as books:
        answer = await crashed(books, label)
        assert answer is None or not answer.whole
        floor = FLOOR if on_crash == "charge_floor" else 0
        assert await settled_books(books, LEASE_S) == ([floor], Outcome.GATEWAY_CRASHED)


@pytest.mark.parametrize(("label", "floors"), [("extend.before", 1), ("extend.after", 2)])
@pytest.mark.parametrize("on_crash", ["release", "charge_floor"])
async def test_a_crash_between_two_attempts_is_settled_by_the_lease(
    tmp_path: Path, label: str, floors: int, on_crash: str
) -> None:
    async with Scripted([Fin]) as first, opened(tmp_path, on_crash, first=first.base_url) as books:
        assert await crashed(books, label) is None
        floor = floors * FLOOR if on_crash == "charge_floor" else 0
        assert await settled_books(books, LEASE_S) == ([floor], Outcome.GATEWAY_CRASHED)
        assert len(first.requests) == 1


@pytest.mark.parametrize("label", CHARGED)
async def test_a_crash_after_the_charge_charges_exactly_once(tmp_path: Path, label: str) -> None:
    async with opened(tmp_path) as books:
        answer = await crashed(books, label)
        assert answer is not None
        assert answer.whole == (label == "answer.finished"), "a response was completed before its charge"
        assert await settled_books(books) == ([EXACT], Outcome.COMPLETED)


@pytest.mark.parametrize(
    ("label", "charged"),
    [
        *((label, []) for label in UNHELD),
        *((label, [0]) for label in HELD if ":" not in label),
        *((label, [EXACT]) for label in CHARGED),
    ],
)
async def test_a_crash_of_a_request_that_a_plan_serves_is_charged_by_the_same_rules(
    tmp_path: Path, label: str, charged: list[int]
) -> None:
    async with opened(tmp_path) as books:
        async with books.worker(crash_at=f"{label}:3") as worker:
            before = [await ask(books.port, chat(books.token)) for _ in range(2)]  # the second finds its plan stale
            with suppress(OSError, EOFError):
                await ask(books.port, chat(books.token))
            assert await asyncio.wait_for(worker.wait(), PATIENCE_S) == EXIT_CODE, books.log()
            assert len(books.planned("fill") - {each.headers["x-request-id"] for each in before}) == 1
        async with books.worker():
            await asyncio.sleep(LEASE_S if charged == [0] else 0)
        await books.records()
        await books.verify()
        charges = [sum(each) for each in (await books.charges()).values()]
        assert charges == [EXACT, EXACT, *charged]
        assert (await books.account()).balance_micros == 1_000_000_000 - sum(charges)


@pytest.mark.parametrize("label", ["settle.before", "record.before", "answer.finished"])
async def test_a_json_response_is_sent_only_after_its_charge(tmp_path: Path, label: str) -> None:
    async with opened(tmp_path) as books:
        answer = await crashed(books, label, stream=False)
        assert (answer is not None) == (label == "answer.finished")
        assert answer is None or (answer.whole and json.loads(answer.body)["usage"]["completion_tokens"] == 12)
        charges, outcome = await settled_books(books, LEASE_S)
        assert charges == ([EXACT] if label in CHARGED else [0])
        assert outcome is (Outcome.COMPLETED if label == "answer.finished" else Outcome.GATEWAY_CRASHED)


async def test_a_journaled_charge_is_applied_once_despite_crashes(tmp_path: Path) -> None:
    async with opened(tmp_path, pace_s=0.1) as books:
        async with books.worker(crash_at="journal.kept") as worker:
            asking = asyncio.create_task(ask(books.port, chat(books.token)))
            await until(lambda: has_hold(books))
            os.kill(books.embedded.pid, signal.SIGSTOP)
            assert await asyncio.wait_for(worker.wait(), PATIENCE_S) == EXIT_CODE
            os.kill(books.embedded.pid, signal.SIGCONT)
            await asyncio.gather(asking, return_exceptions=True)
        async with books.worker(crash_at="journal.delivered") as worker:
            assert await asyncio.wait_for(worker.wait(), PATIENCE_S) == EXIT_CODE
        async with books.worker():
            await books.wait_delivered()
        charges, _ = await settled_books(books, LEASE_S)
        assert sum(charges) > 0


async def test_replayed_settlements_are_charged_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as books:
        async with books.worker(crash_at="settlements.repeated") as worker:
            assert (await ask(books.port, chat(books.token))).whole
            await kill_store_until_exit(books, worker)
            assert worker.returncode == EXIT_CODE
        assert (await settled_books(books))[0] == [EXACT]


@pytest.mark.parametrize("number", range(SEEDS or 1))
async def test_a_crash_at_any_point_under_load_is_charged_by_the_rules(tmp_path: Path, number: int) -> None:
    seed = (SEED + number) % (1 << 32)
    chance, label = random.Random(seed), UNDER_LOAD[seed % len(UNDER_LOAD)]
    on_crash = chance.choice(("release", "charge_floor"))
    times = 1 if label in STORE_DOWN else chance.randint(1, 40)
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
            await books.wait_delivered()
            await asyncio.sleep(ended + LEASE_S - time.monotonic())
        await check_books(books, callers, FLOOR if on_crash == "charge_floor" else 0)


async def kill_store_until_exit(books: Books, worker: asyncio.subprocess.Process) -> None:
    """Kill the store repeatedly, so that it loses recent writes, until the worker replays them and crashes there."""
    ending = asyncio.create_task(worker.wait())
    async with asyncio.timeout(PATIENCE_S):
        while not (await asyncio.wait([ending], timeout=2.5))[0]:
            await asyncio.to_thread(books.kill_store)


async def disturb(label: str, books: Books, worker: asyncio.subprocess.Process, after_s: float) -> None:
    """Stop or kill the store, where the worker reaches the crash point only then."""
    if label == "settlements.repeated":
        await asyncio.sleep(after_s)
        await kill_store_until_exit(books, worker)
    elif label in STORE_DOWN:
        await asyncio.sleep(after_s)
        os.kill(books.embedded.pid, signal.SIGSTOP)
        try:
            await until(lambda: has_journal(books))
        finally:
            os.kill(books.embedded.pid, signal.SIGCONT)


async def has_hold(books: Books) -> bool:
    return (await books.account()).holds == 1


async def has_journal(books: Books) -> bool:
    return bool(books.journal())


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await holds():
            await asyncio.sleep(0.005)

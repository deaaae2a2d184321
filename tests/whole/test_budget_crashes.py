"""A worker crashes at each crash point of an exchange: each budget counts what was charged, and never admits too much.

`MONEY_SEEDS=20 MONEY_SEED=7 pytest tests/whole/test_budget_crashes.py -s` tests more crash points under load.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.base.crash_points import EXIT_CODE
from gateway.fake_upstream import FakeUpstream
from tests.patience import PATIENCE_S
from tests.whole.books import LEASE_S, Books
from tests.whole.budgeted import budgeted, used
from tests.whole.load import EXACT, Callers, under_load
from tests.whole.raw import ask, chat
from tests.whole.test_money_crashes import CHARGED, FLOOR, HELD, UNHELD, crashed, kill_store_until_exit, settled_books
from tests.whole.test_money_kills import kill_at_random

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the store of a test ends with its thread")

AMPLE = {
    **{"day": 10**9, "week": 10**9, "month": 10**9, "total": 10**9, "requests": 10**6},
    **{"session": 10**9, "session_requests": 10**6},
}
SEEDS = int(os.environ.get("MONEY_SEEDS", "0"))
SEED = int(os.environ.get("MONEY_SEED", random.randrange(1 << 32)))
SOME = ("hold.after", "upstream.answered", "stream.event:2", "settle.before")
ADMITTED = 20


@asynccontextmanager
async def opened(folder: Path, auth: str, on_crash: str = "release") -> AsyncIterator[Books]:
    async with FakeUpstream(pace_s=0.002) as upstream:
        books = Books(folder, upstream.base_url, on_crash, auth=auth, more="session_headers: [host]")
        try:
            await books.open()
            yield books
        finally:
            books.embedded.stop()


async def sums(books: Books) -> dict[str, int]:
    async with books.store() as store:
        return await used(store.client)


def check(counted: dict[str, int], charged: int, requests: int) -> None:
    """Assert that each of the fourteen budgets counts what was charged, or as many requests."""
    assert len(counted) == 2 * len(AMPLE)
    assert {field: requests if field.startswith(("R", "Q")) else charged for field in counted} == counted


@pytest.mark.parametrize("label", [*UNHELD, *(HELD if SEEDS else SOME), *CHARGED])
@pytest.mark.parametrize("on_crash", ["release", "charge_floor"] if SEEDS else ["charge_floor"])
async def test_after_a_crash_each_budget_counts_the_charge(tmp_path: Path, label: str, on_crash: str) -> None:
    async with opened(tmp_path, budgeted(AMPLE, AMPLE), on_crash) as books:
        await crashed(books, label)
        charges, _ = await settled_books(books, 0 if label in UNHELD + CHARGED else LEASE_S)
        if label in UNHELD:
            assert await sums(books) == {}
        else:
            floor = FLOOR if on_crash == "charge_floor" else 0
            assert charges == [EXACT if label in CHARGED else floor]
            check(await sums(books), sum(charges), 1 if label in CHARGED else 0)


async def test_after_a_replay_to_a_store_that_lost_writes_each_budget_counts_the_charge(tmp_path: Path) -> None:
    async with opened(tmp_path, budgeted(AMPLE, AMPLE)) as books:
        async with books.worker(crash_at="settlements.repeated") as worker:
            assert (await ask(books.port, chat(books.token))).whole
            await kill_store_until_exit(books, worker)
        charges, _ = await settled_books(books)
        assert charges == [EXACT]
        check(await sums(books), EXACT, 1)


async def test_after_workers_and_the_store_were_killed_each_budget_counts_the_charges(tmp_path: Path) -> None:
    async with opened(tmp_path, budgeted(AMPLE, AMPLE)) as books:
        print(f"MONEY_SEED={SEED}")
        await under_load(books, 2, kill_at_random(random.Random(SEED), lambda _: books.kill_store()))
        charges = await books.charges()
        charged = sum(map(sum, charges.values()))
        requests = sum(sum(lines) > 0 for lines in charges.values())
        check(await sums(books), charged, requests)


@pytest.mark.parametrize("number", range(SEEDS or 1))
async def test_crashes_never_admit_more_requests_than_the_budget_has(tmp_path: Path, number: int) -> None:
    """Until the twenty requests of the day are used up, whatever crashes meanwhile; then no other is admitted."""
    seed = (SEED + number) % (1 << 32)
    chance = random.Random(seed)
    label = chance.choice(
        ("hold.after", "upstream.sent", "stream.event", "settle.before", "settle.after", "record.before")
    )
    print(f"MONEY_SEED={seed}: {label}")
    async with opened(tmp_path, budgeted({"requests": ADMITTED})) as books:
        callers = Callers(books)
        async with books.worker(crash_at=f"{label}:{chance.randint(1, 12)}") as worker, callers.asking():
            assert await asyncio.wait_for(worker.wait(), PATIENCE_S) == EXIT_CODE, books.log()
        async with books.worker(), callers.asking(), asyncio.timeout(PATIENCE_S):
            while len(await settled(books)) < ADMITTED:
                assert (await sums(books))["R"] <= ADMITTED
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.3)
        async with books.worker():
            await books.wait_delivered()
        await books.verify()
        assert len(await settled(books)) == ADMITTED
        assert len(callers.whole) <= ADMITTED
        assert await sums(books) == {"R": ADMITTED}
        assert callers.statuses <= {200, 402, 503}


async def settled(books: Books) -> list[str]:
    """Return the requests that were charged."""
    return [request_id for request_id, lines in (await books.charges()).items() if sum(lines)]

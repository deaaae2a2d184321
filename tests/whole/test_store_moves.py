"""The store moves under load, by failover or slot migration: each request is charged once, and none is refused for money.

`MOVES_SECONDS=120 MOVES_SEED=7 pytest tests/whole/test_store_moves.py -s` runs the longer form.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import get_args

import pytest

from gateway.fake_upstream import FakeUpstream
from tests.store.cluster import cluster
from tests.store.sentinel import How, watched
from tests.whole.books import Books
from tests.whole.load import Callers, under_load

SECONDS = float(os.environ.get("MOVES_SECONDS", "0"))
SEED = int(os.environ.get("MOVES_SEED", random.randrange(1 << 32)))


@pytest.fixture
async def books(tmp_path: Path) -> AsyncIterator[Books]:
    print(f"MOVES_SEED={SEED}")
    async with FakeUpstream(pace_s=0.004) as upstream:
        books = Books(tmp_path, upstream.base_url)
        try:
            yield books
        finally:
            books.embedded.stop()


async def moved(books: Books, url: str, move: Callable[[], None]) -> Callers:
    """Move the store at `url` under load, once or for `SECONDS`, check the books, and return the callers."""
    books.url = url
    books.use_store_at(url)
    await books.open()

    async def disturb(_: int, __: Callers) -> None:
        deadline = time.monotonic() + SECONDS
        while True:
            await asyncio.sleep(0.5)
            await asyncio.to_thread(move)
            if time.monotonic() >= deadline:
                break

    callers = await under_load(books, 2, disturb)
    print(f"{len(callers.whole)} complete responses, {len(callers.refused)} refused")
    assert callers.statuses <= {200, 503}
    return callers


@pytest.mark.parametrize("how", get_args(How) if SECONDS else ("killed", "ordered"))
async def test_the_books_balance_after_sentinel_replaces_the_primary(books: Books, tmp_path: Path, how: How) -> None:
    chance = random.Random(SEED)
    hows = iter([how])
    with watched(tmp_path) as servers:

        def move() -> None:
            servers.fail_over(next(hows, chance.choice(get_args(How))))
            if SECONDS:
                servers.mend()

        await moved(books, servers.url, move)


@pytest.mark.parametrize("how", ["in halves", "at once"] if SECONDS else ["in halves"])
async def test_the_books_balance_after_an_accounts_slot_moves_to_another_master(
    books: Books, tmp_path: Path, how: str
) -> None:
    key = "gw:{tester}:account"
    with cluster(tmp_path) as servers:
        move = partial(servers.migrate_at_once, key) if how == "at once" else partial(servers.migrate, key, pause_s=0.2)
        await moved(books, servers.url, move)

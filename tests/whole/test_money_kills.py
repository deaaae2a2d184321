"""Processes and networks fail, and the store moves, under load: the books balance, and each complete response was charged once.

`MONEY_SECONDS=60 MONEY_SEED=7 pytest tests/whole/test_money_kills.py -s` runs the longer form; `MONEY_CLUSTER=1`
adds a cluster of three nodes that are killed too.

`MOVES_SECONDS=120 MOVES_SEED=7` moves the store for longer.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import get_args

import pytest

from gateway.fake_upstream import FakeUpstream
from tests.cli.processes import children
from tests.patience import PATIENCE_S, wait_until
from tests.store.cluster import cluster
from tests.store.sentinel import How, watched
from tests.store_proxy import Fault, StoreProxy
from tests.whole.books import Books
from tests.whole.load import Callers, under_load

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the children of a process are read from /proc")

SECONDS = float(os.environ.get("MONEY_SECONDS", "5"))
SEED = int(os.environ.get("MONEY_SEED", random.randrange(1 << 32)))


@pytest.fixture
async def books(tmp_path: Path) -> AsyncIterator[Books]:
    print(f"MONEY_SEED={SEED}")
    async with FakeUpstream(pace_s=0.004) as upstream:
        books = Books(tmp_path, upstream.base_url)
        try:
            await books.open()
            yield books
        finally:
            books.embedded.stop()


async def killed(books: Books, kill_store: Callable[[random.Random], None]) -> Callers:
    """Kill workers and the store at random under load, check the books, and return the callers."""
    callers = await under_load(books, 2, kill_at_random(random.Random(SEED), kill_store))
    print(f"{len(callers.whole)} complete responses, {len(callers.refused)} refused")
    return callers


def kill_at_random(
    chance: random.Random, kill_store: Callable[[random.Random], None]
) -> Callable[[int, Callers], Awaitable[None]]:
    """Return what kills workers and the store for `SECONDS`."""

    async def disturb(pid: int, _: Callers) -> None:
        deadline = asyncio.get_running_loop().time() + SECONDS
        while asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(chance.uniform(0.2, 1.5))
            family = sorted(children(pid))  # fewer while the parent waits before it starts a worker again
            if not family or chance.random() < 0.2:
                await asyncio.to_thread(kill_store, chance)
            else:
                with suppress(ProcessLookupError):
                    os.kill(chance.choice(family), signal.SIGKILL)

    return disturb


@ON_LINUX
async def test_the_books_balance_after_workers_and_the_store_are_killed(books: Books) -> None:
    callers = await killed(books, lambda _: books.kill_store())
    assert len(callers.whole) > 20
    assert callers.whole & books.planned()


@ON_LINUX
@pytest.mark.skipif(
    "MONEY_CLUSTER" not in os.environ, reason="takes long, and one node shows most of it: set MONEY_CLUSTER=1"
)
async def test_the_books_balance_after_workers_and_cluster_nodes_are_killed(books: Books, tmp_path: Path) -> None:
    with cluster(tmp_path) as servers:
        books.url = servers.url
        books.use_store_at(servers.url)
        await books.open()
        callers = await killed(
            books, lambda chance: servers.kill(chance.choice(servers.nodes), away_s=chance.uniform(0, 3))
        )
        assert len(callers.whole) > 20


@ON_LINUX
async def test_the_books_balance_after_network_faults(books: Books) -> None:
    chance = random.Random(SEED)
    async with StoreProxy(books.url) as proxy:
        books.use_store_at(proxy.url)

        async def disturb(_: int, callers: Callers) -> None:
            proxy.fault = lambda: chance.choice(tuple(Fault)) if chance.random() < 0.1 else None
            await asyncio.sleep(SECONDS)
            async with asyncio.timeout(PATIENCE_S):
                while not callers.refused or sum(proxy.done.values()) <= 5:
                    await asyncio.sleep(0.05)
            proxy.fault = lambda: None

        callers = await under_load(books, 1, disturb)
        assert callers.statuses <= {200, 502, 503, 504}, "502 and 504: an upstream may be late on a busy machine"
        assert callers.refused
        assert sum(proxy.done.values()) > 5


MOVES_S = float(os.environ.get("MOVES_SECONDS", "0"))
MOVES_SEED = int(os.environ.get("MOVES_SEED", random.randrange(1 << 32)))


@pytest.fixture
async def unopened_books(tmp_path: Path) -> AsyncIterator[Books]:
    print(f"MOVES_SEED={MOVES_SEED}")
    async with FakeUpstream(pace_s=0.004) as upstream:
        unopened_books = Books(tmp_path, upstream.base_url)
        try:
            yield unopened_books
        finally:
            unopened_books.embedded.stop()


async def moved(unopened_books: Books, url: str, move: Callable[[], None]) -> Callers:
    """Move the store at `url` under load, once or for `SECONDS`, check the books, and return the callers."""
    unopened_books.url = url
    unopened_books.use_store_at(url)
    await unopened_books.open()

    async def disturb(_: int, callers: Callers) -> None:
        await wait_until(lambda: len(callers.whole) >= 40)  # the first ones of each worker have no plan
        deadline = time.monotonic() + MOVES_S
        while True:
            await asyncio.sleep(0.5)
            await asyncio.to_thread(move)
            if time.monotonic() >= deadline:
                break

    callers = await under_load(unopened_books, 2, disturb)
    print(f"{len(callers.whole)} complete responses, {len(callers.refused)} refused")
    assert callers.statuses <= {200, 503}
    return callers


@pytest.mark.parametrize("how", get_args(How) if MOVES_S else ("killed", "ordered"))
async def test_the_books_balance_after_sentinel_replaces_the_primary(
    unopened_books: Books, tmp_path: Path, how: How
) -> None:
    chance = random.Random(MOVES_SEED)
    hows = iter([how])
    with watched(tmp_path) as servers:

        def move() -> None:
            servers.fail_over(next(hows, chance.choice(get_args(How))))
            if MOVES_S:
                servers.mend()

        callers = await moved(unopened_books, servers.url, move)
        planned = callers.whole & unopened_books.planned()
        assert min(planned) < callers.disturbed < max(planned)


@pytest.mark.parametrize("how", ["in halves", "at once"] if MOVES_S else ["in halves"])
async def test_the_books_balance_after_an_accounts_slot_moves_to_another_master(
    unopened_books: Books, tmp_path: Path, how: str
) -> None:
    key = "gw:{tester}:account"
    with cluster(tmp_path) as servers:
        move = partial(servers.migrate_at_once, key) if how == "at once" else partial(servers.migrate, key, pause_s=0.2)
        await moved(unopened_books, servers.url, move)
        assert not unopened_books.planned()

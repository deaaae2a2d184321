"""The move of a log from files to a database: whole after any number of kills, and the files stay."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from gateway.base.errors import GatewayError
from gateway.usage import move as module
from gateway.usage import queries
from gateway.usage.database import UsageFiles
from gateway.usage.home import postgres
from gateway.usage.move import move
from gateway.usage.postgres import Postgres
from tests.cli.test_gateways import said
from tests.cli.test_verify import Books, books
from tests.postgres import PostgresServer
from tests.records import COSTED, arrival, end, id_at, usage_database
from tests.usage.test_database import rolled_up, summed

__all__ = ["books"]

NEW_YEAR_MS = 1_798_761_600_000


@pytest.fixture
def database(database_url: str, tmp_path: Path) -> Postgres:
    return postgres(database_url, tmp_path)


def filled(folder: Path, count: int) -> None:
    """Write requests of two months, in some disorder, a tenth of them open."""
    chance = random.Random(1)
    opened = [arrival(id_at(NEW_YEAR_MS + chance.randrange(-10_000, 10_000))) for _ in range(count)]
    ended = [end(record, account=f"a{number % 7}", **COSTED) for number, record in enumerate(opened) if number % 10]
    chance.shuffle(ended)
    rows = usage_database(folder)
    rows.write(opened)
    for start in range(0, len(ended), 50):
        rows.write(ended[start : start + 50])
    rows.close()


def same(folder: Path, database: Postgres) -> None:
    assert list(queries.select(database)) == list(queries.select(UsageFiles(folder)))
    assert rolled_up(database) == rolled_up(UsageFiles(folder)) == summed(database)


def test_a_move_that_was_killed_again_and_again_goes_on_and_ends_with_all(
    database: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH", 60)
    filled(tmp_path, 1000)
    copied: list[int] = []

    def killed(done: int) -> None:
        copied.append(done)
        if done >= 180:
            raise KeyboardInterrupt

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            move(UsageFiles(tmp_path), database, killed)
    (before,) = (sum(1 for _ in queries.select(database)),)
    assert 0 < before < 1000
    found = move(UsageFiles(tmp_path), database, lambda _: None)
    assert {month: counts[0] for month, counts in found.items()}.keys() == {"2026-12", "2027-01"}
    assert (sum(each for each, _ in found.values()), sum(each for _, each in found.values())) == (1000, 900)
    same(tmp_path, database)


def test_what_ends_in_the_files_after_a_move_is_moved_by_the_next(database: Postgres, tmp_path: Path) -> None:
    filled(tmp_path, 100)
    move(UsageFiles(tmp_path), database, lambda _: None)
    lost = [record for record in queries.select(UsageFiles(tmp_path)) if record.outcome is None]
    rows = usage_database(tmp_path)
    rows.write([end(lost[3]), end(arrival(id_at(NEW_YEAR_MS)))])
    rows.close()
    move(UsageFiles(tmp_path), database, lambda _: None)
    same(tmp_path, database)


def test_a_database_that_lacks_something_is_not_said_to_have_all(
    database: Postgres, tmp_path: Path, postgres_server: PostgresServer
) -> None:
    filled(tmp_path, 100)
    move(UsageFiles(tmp_path), database, lambda _: None)
    database.drop("2027-01")
    with pytest.raises(GatewayError, match="fewer requests of 2027-01 than the files: run this again"):
        move(UsageFiles(tmp_path), database, lambda _: None)
    move(UsageFiles(tmp_path), database, lambda _: None)
    same(tmp_path, database)


async def test_the_command_moves_and_the_gateways_log_there_from_then_on(
    books: Books, database_url: str, tmp_path: Path
) -> None:
    await books.request()
    without = books.file.read_text()
    assert "set it first" in await said(books, "usage", "move", code=1)
    books.file.write_text(f"{without}\nusage: {{database: '{database_url}'}}\n")
    output = await said(books, "usage", "move")
    assert "log to `usage.database` from now on" in output
    assert PostgresServer.password not in output
    home = postgres(database_url, books.config.data_path / "usage")
    same(books.config.data_path / "usage", home)
    assert (await books.store.client.call("GET", "gw:{usage}:home")).decode() == f"postgresql {home.identity()}"
    listed = await said(books, "usage", "list", "--json")
    assert len(listed.splitlines()) == 1
    assert "all is right" in await said(books, "verify")
    await asyncio.to_thread(home.close)

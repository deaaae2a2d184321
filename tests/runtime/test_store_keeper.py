"""The embedded store of a running gateway is started again when it dies, and nothing waits for that."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from gateway.runtime import store_keeper
from gateway.runtime.store_keeper import StoreKeeper
from gateway.store import embedded
from gateway.store.embedded import ask
from tests.disk import Disk, small_disk
from tests.patience import PATIENCE_S
from tests.store.test_embedded import LOADED_SLOWLY


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[StoreKeeper]:
    keeper = StoreKeeper(tmp_path, print)
    yield keeper
    keeper.stop()


def kill(folder: Path) -> None:
    answer = ask(folder / "store.sock")
    assert answer is not None
    os.kill(answer.pid, signal.SIGKILL)


def ticked_until_it_serves(keeper: StoreKeeper, folder: Path) -> list[float]:
    """Return how long each tick took."""
    ticks: list[float] = []
    deadline = time.monotonic() + PATIENCE_S
    while (answer := ask(folder / "store.sock")) is None or answer.loading:
        assert time.monotonic() < deadline
        began = time.monotonic()
        keeper.tick()
        ticks.append(time.monotonic() - began)
        time.sleep(0.02)
    return ticks


def test_a_store_that_loads_slowly_holds_up_no_tick(
    keeper: StoreKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Redis.from_url(keeper.url) as redis, redis.pipeline(transaction=False) as pipeline:
        for number in range(500):
            pipeline.set(f"key {number}", "x" * 100)
        pipeline.execute()
        redis.bgrewriteaof()
        while redis.info("persistence")["aof_rewrite_in_progress"]:
            time.sleep(0.01)
    monkeypatch.setattr(embedded, "SETTINGS", (*embedded.SETTINGS, *LOADED_SLOWLY))
    monkeypatch.setattr(store_keeper, "REPORT_INTERVAL_S", 0.2)
    kill(tmp_path)
    ticks = ticked_until_it_serves(keeper, tmp_path)
    assert len(ticks) > 3, "a tick that waited for the load would be the only one"
    keeper.tick()
    with Redis.from_url(keeper.url) as redis:
        assert redis.get("key 499") == b"x" * 100
    assert "the store is loading" in capsys.readouterr().out


def test_a_store_that_cannot_start_is_started_once_its_files_are_restored(
    keeper: StoreKeeper, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kill(tmp_path)
    shutil.move(tmp_path / "appendonlydir", tmp_path / "aside")
    deadline, printed = time.monotonic() + PATIENCE_S, ""
    while "store_did_not_start" not in (printed := printed + capsys.readouterr().out):
        assert time.monotonic() < deadline
        keeper.tick()
        time.sleep(0.02)
    assert "appendonlydir is missing" in printed
    shutil.move(tmp_path / "aside", tmp_path / "appendonlydir")
    ticked_until_it_serves(keeper, tmp_path)


def written_until_full(redis: Redis, disk: Disk) -> None:
    """Rewrite the file, fill the disk, and write until the store refuses."""
    redis.bgrewriteaof()
    while redis.info("persistence")["aof_rewrite_in_progress"]:
        time.sleep(0.01)
    redis.set("first", "x" * 100)  # the page that it begins has room for a part of a later command
    disk.fill()
    with pytest.raises(ResponseError, match="MISCONF"):
        for number in range(1_000_000):
            redis.set(f"key {number}", "x" * 1000)


@pytest.mark.parametrize("looked", [False, True])
def test_no_command_is_lost_where_the_disk_was_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], looked: bool
) -> None:
    with small_disk(tmp_path / "disk", 8) as disk:
        keeper = StoreKeeper(disk.folder / "data", print)
        with Redis.from_url(keeper.url) as redis:
            written_until_full(redis, disk)
            kept = redis.dbsize()
            if looked:
                keeper.tick()
            disk.free()
            while (answer := ask(disk.folder / "data/store.sock")) is None or answer.full:
                time.sleep(0.05)
            if looked:
                time.sleep(store_keeper.LOOK_S)
                keeper.tick()
                while redis.info("persistence")["aof_rewrite_in_progress"]:
                    time.sleep(0.01)
            redis.set("last", "z")
            redis.execute_command("WAITAOF", 1, 0, 0)
            kill(disk.folder / "data")
            ticked_until_it_serves(keeper, disk.folder / "data")
            assert (redis.dbsize(), redis.get("last")) == (kept + 1, b"z")
        keeper.stop()
    logged = capsys.readouterr().out
    assert ("store_file_mended" in logged, "store_file_rewritten" in logged) == (not looked, looked)

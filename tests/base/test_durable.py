"""A file is there whole or not at all, whatever fails and whenever the process is killed."""

from __future__ import annotations

import os
import random
import resource
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.base import durable

OLD, NEW = b"old", b"new" * 100_000

Write = Callable[[Path, bytes], object]
both = pytest.mark.parametrize("write", [durable.write, durable.create])


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "large"])
def test_anything_else_is_not_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(NEW)
    with pytest.raises(OSError, match=r"regular file|File too large|Is a directory"):
        durable.read(path, len(NEW) - 1)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@contextmanager
def full_after(size: int) -> Iterator[None]:
    """A disk that takes only so many bytes of a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def killed_in(function: str, call: str, path: Path) -> None:
    """Run `call` in a process that is killed instead of calling `os.<function>`, at its first or, with a `2`, second call."""
    name, nth = function.rstrip("2"), 2 if function.endswith("2") else 1
    program = f"""
import os, pathlib, sys
from gateway.base import durable
real, calls = os.{name}, []
def kill(*arguments, **options):
    calls.append(arguments)
    if len(calls) == {nth}:
        os.kill(os.getpid(), 9)
    return real(*arguments, **options)
os.{name} = kill
durable.{call}(pathlib.Path(sys.argv[1]), b"new" * 100_000)
"""
    process = subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    assert process.returncode == -signal.SIGKILL


@both
def test_a_file_has_what_was_written_and_nothing_else_is_left(tmp_path: Path, write: Write) -> None:
    write(tmp_path / "file", NEW)
    assert (tmp_path / "file").read_bytes() == NEW
    assert names(tmp_path) == ["file"]


def test_of_many_that_create_a_file_at_once_one_does(tmp_path: Path) -> None:
    texts = [b"%d" % number for number in range(64)]
    with ThreadPoolExecutor(16) as pool:
        created = list(pool.map(lambda text: durable.create(tmp_path / "file", text), texts))
    assert created.count(True) == 1
    assert (tmp_path / "file").read_bytes() == texts[created.index(True)]


@both
def test_a_secret_is_readable_by_its_owner_alone_also_before_it_has_its_name(
    tmp_path: Path, write: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[int] = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        modes.extend(mode_of(path) for path in tmp_path.iterdir())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    write(tmp_path / "secret", OLD, mode=0o600)
    assert modes == [0o600, 0o600]


@both
def test_the_file_is_flushed_before_it_has_its_name_and_the_folder_afterwards(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    flushed: list[tuple[str, bool]] = []

    def watched(descriptor: int) -> None:
        kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        flushed.append((kind, path.exists()))

    monkeypatch.setattr(os, "fsync", watched)
    write(path, NEW)
    assert flushed == [("file", False), ("folder", True)]


@pytest.mark.parametrize(("write", "old"), [(durable.write, OLD), (durable.create, None)])
def test_a_full_disk_leaves_the_old_file_and_no_temporary_one(tmp_path: Path, write: Write, old: bytes | None) -> None:
    if old is not None:
        write(tmp_path / "file", old)
    with full_after(1000), pytest.raises(OSError, match="File too large"):
        write(tmp_path / "file", NEW)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == ([] if old is None else [old])


@both
def test_a_disk_that_cannot_flush_leaves_no_file(tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="Input/output error"):
        write(tmp_path / "file", NEW)
    assert names(tmp_path) == []


def test_a_name_that_a_folder_has_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        durable.write(tmp_path / "file", NEW)
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("call", "function", "expected"),
    [
        ("write", "fsync", OLD),
        ("write", "replace", OLD),
        ("write", "fsync2", NEW),
        ("create", "fsync", None),
        ("create", "link", None),
        ("create", "fsync2", NEW),
    ],
)
def test_a_process_killed_at_any_step_leaves_a_whole_file_or_none(
    tmp_path: Path, call: str, function: str, expected: bytes | None
) -> None:
    path = tmp_path / "file"
    if call == "write":
        durable.write(path, OLD)
    killed_in(function, call, path)
    assert (path.read_bytes() if path.exists() else None) == expected
    assert all(name.endswith(durable.SUFFIX) for name in names(tmp_path) if name != "file")
    assert getattr(durable, call)(path, OLD) in (None, expected is None), "the next process is not in the way"


def test_a_process_killed_at_any_moment_leaves_a_whole_file(tmp_path: Path) -> None:
    program = """
import itertools, pathlib, sys
from gateway.base import durable
for number in itertools.count():
    durable.write(pathlib.Path(sys.argv[1]), (b"%d\\n" % number) * 200_000)
"""
    path, chance = tmp_path / "file", random.Random(7)
    for _ in range(5):
        process = subprocess.Popen([sys.executable, "-c", program, str(path)])
        while not path.exists():
            time.sleep(0.005)
        time.sleep(chance.random() * 0.2)
        process.kill()
        process.wait()
        lines = path.read_bytes().splitlines()
        assert (len(lines), len(set(lines))) == (200_000, 1)
        path.unlink()


def test_a_renamed_file_replaces_another(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(OLD)
    temporary = durable.temporary_path(path)
    assert temporary.parent == path.parent
    assert temporary != durable.temporary_path(path)
    temporary.write_bytes(NEW)
    durable.rename(temporary, path)
    assert path.read_bytes() == NEW
    assert names(tmp_path) == ["file"]


def test_a_folder_is_made_with_its_parents_and_open_to_its_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(os.fstat(descriptor).st_ino))
    for _ in range(2):
        durable.make_folder(tmp_path / "one" / "two")
    assert mode_of(tmp_path / "one" / "two") == 0o700
    assert mode_of(tmp_path / "one") == 0o755
    assert flushed == [tmp_path.stat().st_ino, (tmp_path / "one").stat().st_ino]


def test_a_leftover_of_a_killed_process_is_removed_when_it_is_old(tmp_path: Path) -> None:
    killed_in("fsync", "write", tmp_path / "file")
    (leftover,) = tmp_path.iterdir()
    assert durable.remove_leftovers(tmp_path) == [], "a process may have just made it"
    aged(leftover)
    (tmp_path / "report.part").touch()
    aged(tmp_path / "report.part")
    assert durable.remove_leftovers(tmp_path) == [leftover]
    assert names(tmp_path) == ["report.part"], "another program's file is not ours to remove"


def test_a_temporary_file_that_is_being_written_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync, removed = os.fsync, list[Path]()

    def slow(descriptor: int) -> None:
        for path in tmp_path.glob("*.part"):
            aged(path)
        removed.extend(durable.remove_leftovers(tmp_path))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    durable.write(tmp_path / "file", NEW)
    assert removed == []
    assert names(tmp_path) == ["file"]


def aged(path: Path) -> None:
    then = time.time() - 2 * durable.YOUNGEST_S
    os.utime(path, (then, then))


def test_a_file_overwritten_in_place_has_another_version(tmp_path: Path) -> None:
    """Also with as many bytes and the time that it had before, as of a secret that is renewed."""
    file = tmp_path / "key"
    file.write_text("x" * 40)
    before, status = durable.version(file), file.stat()
    deadline = time.monotonic() + 5
    while durable.version(file) == before and time.monotonic() < deadline:  # ticks of milliseconds
        time.sleep(0.005)
        file.write_text("y" * 40)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert durable.version(file) != before
    assert durable.version(tmp_path / "none") is None

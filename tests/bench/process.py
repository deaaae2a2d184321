"""Processes on this machine: starts them on a core, and reads what the kernel counts of them."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PATIENCE_S: Final = 60.0
PORTS: Final = iter(random.sample(range(20_000, 30_000), 1000))


def raise_descriptors() -> None:
    """Allow as many open files as the system does; child processes inherit it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def free_port() -> int:
    """Return a free port that was not returned before, outside of the range that the system gives to callers."""
    for port in PORTS:
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise RuntimeError("no port is free")


def pinned(cores: str) -> list[str]:
    """Return a command prefix that keeps a command on these cores, where there are two."""
    return ["taskset", "-c", cores] if shutil.which("taskset") and (os.cpu_count() or 1) > 1 else []


def listens(port: int) -> bool:
    with suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    return False


@contextmanager
def running(
    command: list[str],
    cores: str,
    log: Path,
    reached: Callable[[], bool],
    environment: Mapping[str, str] | None = None,
) -> Iterator[int]:
    """Yield the id of a process once it is `reached`. At the end send SIGTERM to it, then to what it left behind.

    Raises `RuntimeError`, with the end of its log, when it is gone or needs too long.
    """
    with log.open("ab") as written:
        process = subprocess.Popen(
            [*pinned(cores), *command],
            stdout=written,
            stderr=written,
            cwd=ROOT,
            env=os.environ | dict(environment or {}),
        )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not reached():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"it does not serve:\n{log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.005)
        yield process.pid
    finally:
        started = family(process.pid)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pid in started[1:]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)


def family(pid: int) -> list[int]:
    """Return the ids of a process and of those it started, without the store, which is not compared."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,comm="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    found = [pid]
    for parent in found:
        found += [
            int(each) for each, above, name in rows if int(above) == parent and not name.startswith(("valkey", "redis"))
        ]
    return found


def cpu_ns(pids: Iterable[int]) -> int:
    """Return the nanoseconds that these processes have run, all threads together."""
    files = [file for pid in pids for file in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(file.read_text().split()[0]) for file in files)


def resident_kib(pids: Iterable[int]) -> int:
    """Return the memory of these processes in KiB: shared pages count once, pages that are only mapped from files not at all."""
    text = "".join(Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids)
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith(("Pss_Anon", "Pss_Shmem")))


def sockets(pids: Iterable[int]) -> int:
    """Return the number of open sockets of these processes."""
    return sum(str(link.readlink()).startswith("socket:") for pid in pids for link in Path(f"/proc/{pid}/fd").iterdir())

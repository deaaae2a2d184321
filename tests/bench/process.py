"""Processes on this machine: starting them on a core, and reading their CPU time, memory and sockets from the kernel."""

from __future__ import annotations

import os
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


def raise_descriptors() -> None:
    """Raise the limit of open files as far as the system allows, also for processes started later."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def pinned(cores: str) -> list[str]:
    """Return the command prefix that pins a command to these cores, or nothing on a machine with one core."""
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
    folder: Path = ROOT,
) -> Iterator[int]:
    """Run a process in `folder` and yield its id when `reached` returns true. At the end, send SIGTERM to it and its children.

    Raise `RuntimeError`, with the end of its log, if it exits or takes longer than `PATIENCE_S`.
    """
    with log.open("ab") as written:
        process = subprocess.Popen(
            [*pinned(cores), *command],
            stdout=written,
            stderr=written,
            cwd=folder,
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
    """Return a process and its descendants, without the store, which is not measured."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,comm="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    pids = [pid]
    for parent in pids:
        pids += [
            int(each) for each, above, name in rows if int(above) == parent and not name.startswith(("valkey", "redis"))
        ]
    return pids


def cpu_ns(pids: Iterable[int]) -> int:
    """Return the CPU time of these processes and all their threads, in nanoseconds."""
    files = [file for pid in pids for file in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(file.read_text().split()[0]) for file in files)


def resident_kib(pids: Iterable[int]) -> int:
    """Return the memory of these processes in KiB: shared pages are counted once, pages mapped from files not at all."""
    text = "".join(Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids)
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith(("Pss_Anon", "Pss_Shmem")))


def anonymous_kib(pid: int) -> int:
    """Return the memory of one process in KiB that is not mapped from files, with all pages that it shares.

    Unlike its part of `resident_kib`, this does not change when a page is copied at the first write after a fork, nor when
    another process begins or ends to share it: it grows only where the process allocates.
    """
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Anonymous:"))


def sockets(pids: Iterable[int]) -> int:
    """Return the number of open sockets of these processes."""
    return sum(str(link.readlink()).startswith("socket:") for pid in pids for link in Path(f"/proc/{pid}/fd").iterdir())

"""Tools to run the command line as a process, and to find its child processes."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import aiohttp

from gateway.config.schema import Port
from tests.forked import FORKED
from tests.patience import PATIENCE_S

_claims: Final[list[socket.socket]] = []

DEMO = """\
listen: 127.0.0.1:{port}
admin: {admin}
workers: {workers}
store: {{timeout: 2}}
demo: {{upstream: 127.0.0.1:{upstream}, credit: 5}}
channels:
  demo: {{base_url: http://127.0.0.1:{upstream}/v1}}
models:
  demo-words: {{input: 0.50, output: 1.50, channels: [demo]}}
groups:
  default: {{models: ["*"]}}
plugins: [{{use: usage-logger}}, {{use: auth}}, {{use: rate-limit}}, {{use: quota}}, {{use: model-routing}}]
"""


def free_port() -> int:
    """Return a port that is free and stays free: below the kernel's ephemeral ports, and never returned twice.

    The UDP socket of the same number stays open until this process ends, which reserves it among parallel test processes.
    """
    while True:
        claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            claim.bind(("127.0.0.1", random.randrange(10_000, 32_768)))
            with socket.create_server(claim.getsockname()):
                _claims.append(claim)
                return int(claim.getsockname()[1])
        except OSError:
            claim.close()


def demo_in(
    folder: Path, *, workers: int = 1, port: int = 0, upstream: int = 0, admin: str = "null", portal: str = "null"
) -> Path:
    """Write a demo configuration, with free ports unless they are given and its data in `folder`."""
    file = folder / "demo.yaml"
    filled = DEMO.format(port=port or free_port(), upstream=upstream or free_port(), workers=workers, admin=admin)
    file.write_text(f"{filled}data: {folder}/data\nportal: {portal}\n")
    return file


class Served:
    """A running `gateway serve`, and what it printed until it was ready."""

    def __init__(self, process: asyncio.subprocess.Process, printed: str) -> None:
        self.process = process
        self.pid = process.pid
        self.printed = printed
        words = printed.split()
        self.base_url = words[words.index("address") + 1]
        self.token = words[words.index("token") + 1]
        self.headers = {"Authorization": f"Bearer {self.token}"}

    async def stop(self) -> int:
        """Send SIGTERM and return the exit code, which must come before the drain time is over."""
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.wait_for(self.process.wait(), Port().drain - 1)


async def answers(url: str) -> None:
    """Wait until an address answers."""
    async with asyncio.timeout(PATIENCE_S), aiohttp.ClientSession() as client:
        while True:
            with suppress(aiohttp.ClientConnectionError):
                async with client.get(url) as response:
                    assert response.status == 200
                    return
            await asyncio.sleep(0.05)


async def gateway(*arguments: str, cwd: Path) -> tuple[int, str, str]:
    """Run a command and return its exit code, standard output and standard error."""
    process = await asyncio.create_subprocess_exec(
        *(FORKED, "-m", "gateway", *arguments), cwd=cwd, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@asynccontextmanager
async def serving(file: Path) -> AsyncIterator[Served]:
    """Run `gateway serve` until it is ready, and kill it at the end if it still runs."""
    with (file.parent / "serve.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *(FORKED, "-m", "gateway", "serve", "--config", str(file)),
            cwd=file.parent,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
    try:
        assert process.stdout is not None
        printed = await asyncio.wait_for(process.stdout.readuntil(b"balances are kept.\n"), PATIENCE_S)
        yield Served(process, printed.decode())
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def all_ready(process: asyncio.subprocess.Process) -> None:
    """Wait until `gateway serve` prints that it serves. A child process that dies earlier ends the program."""
    assert process.stdout is not None
    await asyncio.wait_for(process.stdout.readuntil(b" is served after "), PATIENCE_S)


def children(pid: int) -> dict[int, str]:
    """Return the descendants of `pid` that are not zombies, with their command lines."""
    parents, lines = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(folder.name)] = int(parent)
                lines[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return {child: lines[child] for child in found - {pid}}


def alive(pid: int) -> bool:
    """Return whether a process runs, and is not a zombie."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


async def gone(pids: set[int]) -> None:
    """Wait until all of these processes have ended."""
    async with asyncio.timeout(PATIENCE_S):
        for pid in pids:
            while alive(pid):
                await asyncio.sleep(0.02)


def kept_waiting_s(pid: int) -> float:
    """Return for how long a process and its descendants were ready to run and did not get a CPU."""
    waited_ns = 0
    for each in (pid, *children(pid)):
        with suppress(OSError):
            waited_ns += int(Path(f"/proc/{each}/schedstat").read_text().split()[1])
    return waited_ns / 1e9


def worker_of(pid: int) -> int:
    """Return the worker of a gateway that has one: the child that was started last."""
    return max(child for child, line in children(pid).items() if "store.sock" not in line)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)

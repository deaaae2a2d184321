"""The cost of many simultaneous callers: memory and CPU of the gateway, and how long another caller waits meanwhile.

`python -m tests.bench.crowd KIND [COUNT]` opens all connections at once. The kinds: idle connections (idle), slow heads
(heads), slow bodies (drips), streams that are not read (readers), bodies of 8 MiB (bodies) or, with a higher `max_body`,
32 MiB (huge), and bodies in one-byte chunks (chunks). The gateway, the upstreams and the other caller run in their own
processes, on loopback.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop

from gateway.fake_upstream import FakeUpstream
from gateway.testing import running
from tests.whole.conftest import CHAIN, configuration
from tests.whole.raw import ask, chat, head, read_answer
from tests.whole.scripted import CHUNKED, Forever, Scripted, Step, chunk

MIB = 1024 * 1024
ACCOUNTS = 40
SETTLE_S = 2.0
PATIENCE_S = 120.0
PIECE = 64 * 1024
OPEN = CHAIN.replace("requests_per_minute: 1000, tokens_per_minute: 1000000", "requests_per_minute: 1000000")
HUGE = f"port: {{max_body: {32 * MIB}}}"
OTHER, OF_THE_CROWD = "channels: [{use: fake, model: renamed}]", "channels: [crowd]"

Caller = Callable[[int, str], Awaitable[str]]
"""One caller of the crowd: called with a port and a token, it returns how its request ended."""


async def serve(kind: str, base_url: str, crowd_url: str) -> None:
    """Run a gateway until standard input ends, and print its port and the tokens of some accounts.

    The crowd has its own upstream, so that the other caller does not wait for it.
    """
    yaml = configuration(base_url, chain=OPEN, more=HUGE if kind == "huge" else "").replace(OTHER, OF_THE_CROWD)
    crowd = f'  crowd: {{base_url: "{crowd_url}", api_key: channel-credential-4711}}'
    yaml = yaml.replace("channels:\n", f"channels:\n{crowd}\n", 1)
    with tempfile.TemporaryDirectory() as folder:
        async with running(yaml, Path(folder)) as gateway:
            tokens = [await gateway.token(f"crowd{number:02}", credit=10**12) for number in range(ACCOUNTS)]
            print(json.dumps([gateway.port, tokens]), flush=True)
            await asyncio.to_thread(sys.stdin.read)


async def answer() -> None:
    """Run two upstreams until standard input ends, a usual one and one with endless streams, and print their base URLs."""
    flooding: list[Step] = [
        CHUNKED,
        Forever(chunk(b'data: {"choices":[{"delta":{"content":"%b"}}]}\n\n' % (b"x" * PIECE))),
    ]
    async with FakeUpstream(pace_s=0, key="channel-credential-4711") as usual, Scripted(flooding) as flood:
        print(json.dumps([usual.base_url, flood.base_url]), flush=True)
        reading = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        while not reading.done():
            await asyncio.wait([reading], timeout=0.1)
            usual.requests.clear()  # the recorded bodies would fill the memory


async def wait(port: int, token: str) -> None:
    """Send requests as the other caller until terminated, and print how many milliseconds each takes."""
    while True:
        began = time.perf_counter()
        status = (await ask(port, chat(token))).status
        print(json.dumps((time.perf_counter() - began) * 1000 if status == 200 else -status), flush=True)
        await asyncio.sleep(0.05)


async def start(*arguments: object) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.crowd", *map(str, arguments)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        limit=2**20,
    )


async def read_json(process: asyncio.subprocess.Process) -> Any:
    assert process.stdout is not None
    return json.loads(await process.stdout.readline())


def memory_mib(process: asyncio.subprocess.Process, which: str) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition(which + ":")[2].split()[0]) // 1024


def cpu_s(process: asyncio.subprocess.Process) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def keeps_open(sent: Callable[[str], bytes], seconds: float = SETTLE_S) -> Caller:
    """Return a caller that sends something and keeps the connection open without reading."""

    async def call(port: int, token: str) -> str:
        with socket.socket() as caller:
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            caller.connect(("127.0.0.1", port))
            caller.sendall(sent(token))
            await asyncio.sleep(seconds)
        return "open"

    return call


def sends_body(body: bytes, *, chunked: bool = False, pause_s: float = 0.0, piece: int = PIECE) -> Caller:
    """Return a caller that sends a body piece by piece until the response comes."""
    framing = {"Transfer-Encoding": "chunked"} if chunked else {"Content-Length": str(len(body))}
    lines = {"Host": "gateway", "Content-Type": "application/json", **framing}
    view = memoryview(body)

    async def call(port: int, token: str) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        answering = asyncio.ensure_future(read_answer(reader))
        try:
            async with asyncio.timeout(PATIENCE_S):
                writer.write(head("POST", "/v1/chat/completions", lines | {"Authorization": f"Bearer {token}"}))
                for start in range(0, len(body), piece):
                    if answering.done():
                        break
                    writer.write(view[start : start + piece])
                    await writer.drain()
                    await asyncio.sleep(pause_s)
                return str((await answering).status)
        finally:
            answering.cancel()
            writer.close()

    return call


def body_of(size: int) -> bytes:
    return chat(None, {"model": "other", "user": "x" * size}).partition(b"\r\n\r\n")[2]


def by_byte(body: bytes) -> bytes:
    return b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"


def crowd_of(kind: str) -> tuple[int, Caller]:
    """Return the default number of callers of a kind, and the caller."""
    match kind:
        case "idle":
            return 5000, keeps_open(lambda token: b"")
        case "heads":
            return 5000, keeps_open(lambda token: b"GET /v1/models HTTP/1.1\r\nX-A: " + b"x" * 200)
        case "readers":
            return 1000, keeps_open(lambda token: chat(token, {"model": "other"}), 15.0)
        case "drips":
            return 1000, sends_body(body_of(100_000), piece=100, pause_s=1.0)
        case "bodies":
            return 200, sends_body(body_of(8 * MIB - 1024))
        case "huge":
            return 1000, sends_body(body_of(32 * MIB - 1024))
        case "chunks":
            return 20, sends_body(by_byte(body_of(MIB)), chunked=True)
        case _:
            raise SystemExit(__doc__)


async def main(kind: str, count: int) -> None:
    usual, caller = crowd_of(kind)
    upstream, other_upstream = await start("answer"), await start("answer")
    answering, flooding = await read_json(upstream)
    crowds = flooding if kind == "readers" else answering
    gateway = await start("serve", kind, (await read_json(other_upstream))[0], crowds)
    port, tokens = await read_json(gateway)
    other = await start("wait", port, tokens[0])
    await asyncio.sleep(SETTLE_S)
    before, spent, began = memory_mib(gateway, "VmRSS"), cpu_s(gateway), time.perf_counter()
    calls = [caller(port, tokens[1 + number % (ACCOUNTS - 1)]) for number in range(count or usual)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    seconds, spent = time.perf_counter() - began, cpu_s(gateway) - spent
    other.terminate()
    assert other.stdout is not None
    waits = [float(line) for line in (await other.stdout.read()).splitlines()]
    served = [wait for wait in waits if wait >= 0]
    ends = Counter(each if isinstance(each, str) else type(each).__name__ for each in outcomes)
    print(f"{count or usual} {kind}: {dict(ends)} in {seconds:.1f} s, {spent:.1f} s of CPU")
    print(f"memory: {before} MiB before, {memory_mib(gateway, 'VmHWM')} at most, {memory_mib(gateway, 'VmRSS')} after")
    print(
        f"another caller: {len(served)} of {len(waits)} served, {statistics.median(served):.0f} ms, {max(served):.0f} at most"
    )
    for process in (gateway, upstream, other_upstream):
        await process.communicate(b"")  # they stop when their standard input ends
    await other.wait()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", kind, base_url, crowd_url]:
            uvloop.run(serve(kind, base_url, crowd_url))
        case ["answer"]:
            asyncio.run(answer())
        case ["wait", port, token]:
            asyncio.run(wait(int(port), token))
        case [kind, *count]:
            asyncio.run(main(kind, int(count[0]) if count else 0))

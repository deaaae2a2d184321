"""What a crowd at the public port costs: memory of the gateway, and how long another caller waits meanwhile.

`python -m tests.bench.crowd idle|heads|bodies [COUNT]`: 5,000 connections that say nothing, 5,000 heads that never end, or
200 bodies of 8 MiB at once. The gateway, the upstream and the other caller are processes of their own, on loopback.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from gateway.fake_upstream import FakeUpstream
from gateway.testing import running
from tests.whole.conftest import CHAIN, configuration
from tests.whole.raw import ask, chat

ACCOUNTS = 40
COUNTS = {"idle": 5000, "heads": 5000, "bodies": 200}
BODY_BYTES = 8 * 1024 * 1024 - 1024
SETTLE_S = 2.0
OPEN = CHAIN.replace("requests_per_minute: 1000, tokens_per_minute: 1000000", "requests_per_minute: 1000000")


async def serve(base_url: str) -> None:
    """A gateway, until its standard input ends; tells its port and the tokens of some accounts."""
    with tempfile.TemporaryDirectory() as folder:
        async with running(configuration(base_url, chain=OPEN), Path(folder)) as gateway:
            tokens = [await gateway.token(f"crowd{number:02}", credit=10**12) for number in range(ACCOUNTS)]
            print(json.dumps([gateway.port, tokens]), flush=True)
            await asyncio.to_thread(sys.stdin.read)


async def answer() -> None:
    """An upstream, until its standard input ends; tells its base address."""
    async with FakeUpstream(pace_s=0, key="channel-credential-4711") as upstream:
        print(json.dumps(upstream.base_url), flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def wait(port: int, token: str) -> None:
    """Another caller: prints the milliseconds of each of its requests, until it is ended."""
    while True:
        began = time.perf_counter()
        status = (await ask(port, chat(token))).status
        print(json.dumps((time.perf_counter() - began) * 1000 if status == 200 else -status), flush=True)
        await asyncio.sleep(0.05)


async def started(*arguments: object) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.crowd", *map(str, arguments)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        limit=2**20,
    )


async def told(process: asyncio.subprocess.Process) -> Any:
    assert process.stdout is not None
    return json.loads(await process.stdout.readline())


def memory_mib(process: asyncio.subprocess.Process, which: str) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition(which + ":")[2].split()[0]) // 1024


async def crowd(kind: str, count: int, port: int, tokens: list[str]) -> Counter[str]:
    """Come all at once; what became of each."""
    ends: Counter[str] = Counter()
    if kind == "bodies":
        bodies = [chat(token, {"user": "x" * BODY_BYTES}) for token in tokens]

        async def one(number: int) -> None:
            ends[str((await ask(port, bodies[number % len(bodies)])).status)] += 1

        for outcome in await asyncio.gather(*map(one, range(count)), return_exceptions=True):
            if outcome is not None:
                ends[type(outcome).__name__] += 1
        return ends
    writers = []
    for _ in range(count):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /v1/models HTTP/1.1\r\nX-A: " + b"x" * 200 if kind == "heads" else b"")
        writers.append(writer)
    await asyncio.sleep(SETTLE_S)
    for writer in writers:
        writer.close()
    return Counter({"open": count})


async def main(kind: str, count: int) -> None:
    upstream = await started("answer")
    gateway = await started("serve", await told(upstream))
    port, tokens = await told(gateway)
    other = await started("wait", port, tokens[0])
    await asyncio.sleep(SETTLE_S)
    before, began = memory_mib(gateway, "VmRSS"), time.perf_counter()
    ends = await crowd(kind, count, port, tokens[1:])
    seconds = time.perf_counter() - began
    other.terminate()
    assert other.stdout is not None
    waits = [float(line) for line in (await other.stdout.read()).splitlines()]
    served = [wait for wait in waits if wait >= 0]
    print(f"{count} {kind}: {dict(ends)} in {seconds:.1f} s")
    print(f"memory: {before} MiB before, {memory_mib(gateway, 'VmHWM')} at most, {memory_mib(gateway, 'VmRSS')} after")
    print(
        f"another caller: {len(served)} of {len(waits)} served, {statistics.median(served):.0f} ms, {max(served):.0f} at most"
    )
    for process in (gateway, upstream):
        await process.communicate()
    await other.wait()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", base_url]:
            asyncio.run(serve(base_url))
        case ["answer"]:
            asyncio.run(answer())
        case ["wait", port, token]:
            asyncio.run(wait(int(port), token))
        case [kind, *count]:
            asyncio.run(main(kind, int(count[0]) if count else COUNTS[kind]))

"""Callers that ask again as soon as they are answered, and read the stamps of the events: one run, one JSON line.

`python -m tests.bench.load '{"port": ..., "token": ..., "streams": 16, "plan": "20 0 0", "warm_s": 1, "seconds": 4, "pids": []}'`
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from pathlib import Path
from typing import Any, Final

STAMP: Final = re.compile(rb"@(\d+)@")


def cpu_ns(pids: list[int]) -> int:
    """Nanoseconds that these processes have run, all their threads together."""
    files = [file for pid in pids for file in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(file.read_text().split()[0]) for file in files)


def resident_kib(pids: list[int]) -> int:
    """Memory that these processes hold, without what they share."""
    text = "".join(Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids)
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Private"))


class Counted:
    """What all callers have seen."""

    def __init__(self) -> None:
        self.requests = self.events = self.wrong = 0
        self.transits: list[float] = []
        self.first: list[float] = []
        self.stopping = False


class Caller(asyncio.Protocol):
    """One connection."""

    def __init__(self, request: bytes, counted: Counted) -> None:
        self.request = request
        self.counted = counted
        self.rest = b""
        self.asked = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.ask()

    def ask(self) -> None:
        self.waiting, self.asked = True, time.monotonic_ns()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        now, counted = time.monotonic_ns(), self.counted
        seen = self.rest + data
        stamps = STAMP.findall(seen)
        odd = seen.count(b"@") % 2
        self.rest = seen[seen.rfind(b"@") :] if odd else b""
        counted.events += len(stamps)
        counted.transits.extend((now - int(stamp)) / 1e6 for stamp in stamps)
        if self.waiting:
            self.waiting = False
            counted.first.append((now - self.asked) / 1e6)
            counted.wrong += not seen.startswith(b"HTTP/1.1 200")
        if data.endswith(b"0\r\n\r\n"):
            counted.requests += 1
            if counted.stopping:
                self.transport.close()
            else:
                self.ask()


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3) if ordered else 0.0


async def run(given: dict[str, Any]) -> dict[str, float]:
    """The load that `given` describes, and what it cost."""
    body = json.dumps(
        {"model": "bench", "messages": [{"role": "user", "content": "hi"}], "stream": True, "user": given["plan"]}
    )
    request = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {given['token']}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    ).encode()
    counted, pids = Counted(), given["pids"]
    loop = asyncio.get_running_loop()
    idle_kib = resident_kib(pids)
    callers = []
    for number in range(given["streams"]):
        callers.append((await loop.create_connection(lambda: Caller(request, counted), "127.0.0.1", given["port"]))[1])
        if number % 20 == 0:  # so that the streams do not all begin in one moment
            await asyncio.sleep(0.02)
    await asyncio.sleep(given["warm_s"])
    start, cpu, events, requests = time.monotonic(), cpu_ns(pids), counted.events, counted.requests
    counted.transits.clear()
    counted.first.clear()
    await asyncio.sleep(given["seconds"])
    cpu, seconds = cpu_ns(pids) - cpu, time.monotonic() - start
    events, requests = counted.events - events, counted.requests - requests
    result = {
        "requests_per_s": round(requests / seconds, 1),
        "cpu_us_per_request": round(cpu / 1000 / max(1, requests), 1),
        "cpu_us_per_event": round(cpu / 1000 / max(1, events), 2),
        "event_ms_p50": percentile(counted.transits, 0.5),
        "event_ms_p99": percentile(counted.transits, 0.99),
        "first_ms_p50": percentile(counted.first, 0.5),
        "kib_per_stream": round((resident_kib(pids) - idle_kib) / given["streams"], 1),
        "wrong": counted.wrong,
    }
    counted.stopping = True
    for caller in callers:
        caller.transport.abort()
    await asyncio.sleep(0.1)
    return result


if __name__ == "__main__":
    import uvloop

    print(json.dumps(uvloop.run(run(json.loads(sys.argv[1])))))

"""The second caller: sends paced requests from an address of its own, and prints a JSON line for each.

It is a process of its own, so that the first caller's work does not delay its clock. A request is sent when it is due, also
while earlier ones are waiting unless `in_turn` says otherwise:
`python -m tests.bench.fairness.honest '{"port": 8080, "request": "POST ...", ...}'`.
"""

from __future__ import annotations

import asyncio
import sys
import time

import msgspec
import uvloop

TIMEOUT_S = 10.0


class HonestSettings(msgspec.Struct):
    """What the second caller sends, from where, and each how many seconds."""

    port: int
    request: str
    address: str = "127.0.0.2"
    pace_s: float = 0.025
    in_turn: bool = False


class Served(msgspec.Struct, array_like=True):
    """One request of the second caller: when it began, its status (0: none), whether it was complete, and its first event.

    `began_s` is by the monotonic clock of the machine, which all its processes share.
    """

    began_s: float
    status: int
    whole: bool
    first_ms: float
    said: str = ""
    """The beginning of a response that is not a success."""


async def ask(settings: HonestSettings) -> Served:
    """Send one request on a new connection and return how it was served."""
    began = time.monotonic()
    served = Served(began, 0, whole=False, first_ms=TIMEOUT_S * 1000)
    writer = None
    try:
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", settings.port, local_addr=(settings.address, 0))
            writer.write(settings.request.encode())
            head = await reader.readuntil(b"\r\n\r\n")
            served.status = int(head[9:12])
            if b"chunked" in head:
                body = await reader.readuntil(b"\n\n")
                served.first_ms = (time.monotonic() - began) * 1000
                body += await reader.readuntil(b"\r\n0\r\n\r\n")
                served.whole = b"[DONE]" in body
            else:
                body = await reader.read(1) if served.status == 200 else await reader.read(500)
                served.first_ms = (time.monotonic() - began) * 1000
                served.whole = bool(body) and served.status == 200
                served.said = "" if served.status == 200 else body.decode(errors="replace")
    except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
        served.said = type(error).__name__
    finally:
        if writer is not None:
            writer.close()
    return served


async def main(settings: HonestSettings) -> None:
    """Send requests until terminated."""
    open_requests: set[asyncio.Task[Served]] = set()

    def ended(task: asyncio.Task[Served]) -> None:
        open_requests.discard(task)
        sys.stdout.buffer.write(msgspec.json.encode(task.result()) + b"\n")
        sys.stdout.buffer.flush()

    due = time.monotonic()
    while True:
        task = asyncio.create_task(ask(settings))
        open_requests.add(task)
        task.add_done_callback(ended)
        if settings.in_turn:
            await task
        due = max(due + settings.pace_s, time.monotonic())
        await asyncio.sleep(due - time.monotonic())


if __name__ == "__main__":
    uvloop.run(main(msgspec.json.decode(sys.argv[1], type=HonestSettings)))

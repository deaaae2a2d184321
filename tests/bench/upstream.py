"""An upstream that does nothing but send events, each stamped with the clock: `python -m tests.bench.upstream PORT`.

What to send comes in the body: `"user": "EVENTS INTERVAL_US BYTES"`. At interval 0 all events leave in one write.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from typing import Final

PLAN: Final = re.compile(rb'"user": ?"(\d+) (\d+) (\d+)"')
LENGTH: Final = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END: Final = (
    b'data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":20,"total_tokens":25}}\n\n'
    b"data: [DONE]\n\n"
)


def event(size: int) -> bytes:
    """An event of about `size` bytes. The load generator looks for the time between the at signs."""
    frame = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"@%d@%b"},"finish_reason":null}]}\n\n'
    return frame % (time.monotonic_ns(), b"x" * max(0, size - len(frame) - 10))


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Answering(asyncio.Protocol):
    """One connection, one request after the other."""

    def __init__(self) -> None:
        self.received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, border, body = self.received.partition(b"\r\n\r\n")
        length = LENGTH.search(head)
        plan = PLAN.search(body)
        if border and length and len(body) >= int(length[1]):
            self.received = b""
            events, interval_us, size = map(int, plan.groups()) if plan else (20, 0, 0)
            if interval_us:
                self.transport.write(HEAD)
                self.loop = asyncio.get_running_loop()
                self.paced(events, interval_us / 1e6, size, self.loop.time())
            else:
                events_now = b"".join(chunk(event(size)) for _ in range(events))
                self.transport.write(HEAD + events_now + chunk(END) + b"0\r\n\r\n")

    def paced(self, left: int, interval_s: float, size: int, due: float) -> None:
        if self.transport.is_closing():
            return
        if left == 0:
            self.transport.write(chunk(END) + b"0\r\n\r\n")
            return
        self.transport.write(chunk(event(size)))
        self.loop.call_at(due + interval_s, self.paced, left - 1, interval_s, size, due + interval_s)


async def main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Answering, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    uvloop.run(main(int(sys.argv[1])))

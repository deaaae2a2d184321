"""A receiver of webhooks on loopback, which answers as a test says and keeps what it got."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from tests.tcp import TcpServer

SECRET: Final = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
"""The secret of the specification's own example."""
PIECE: Final = 65536
NEVER: Final = b""
"""An answer that never comes."""


def answer(status: int, body: bytes = b"", *headers: str) -> bytes:
    """Return a whole answer."""
    lines = [f"HTTP/1.1 {status} Any", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


OK: Final = answer(204)


class Received(msgspec.Struct, frozen=True):
    """One request."""

    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def event(self) -> Any:
        return msgspec.json.decode(self.body)


class Receiver(TcpServer):
    """Answers the first request with the first of `answers`, and so on; all later ones with the last."""

    def __init__(self, answers: Sequence[bytes], *, hold: bool = False) -> None:
        super().__init__()
        self.answers = list(answers)
        self.hold = hold
        self.got: list[Received] = []
        self.at_once = self.most_at_once = 0
        self.sent = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hooks/path-credential?key=query-credential"

    @property
    def types(self) -> list[str]:
        return [received.event["type"] for received in self.got]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            headers = {
                name.lower(): text
                for name, _, text in (line.partition(": ") for line in head.split("\r\n")[1:] if line)
            }
            self.got.append(Received(headers, await reader.readexactly(int(headers["content-length"]))))
            data = self.answers[min(len(self.got), len(self.answers)) - 1]
            for start in range(0, len(data), PIECE):
                writer.write(data[start : start + PIECE])
                await writer.drain()
                self.sent += len(data[start : start + PIECE])
            if self.hold or data == NEVER:
                await reader.read()
        finally:
            self.at_once -= 1


@asynccontextmanager
async def receiving(*answers: bytes, hold: bool = False) -> AsyncIterator[Receiver]:
    """Run a receiver. With `hold` it leaves its connections open after the answer."""
    async with Receiver(answers or [OK], hold=hold) as receiver:
        yield receiver


def closed_port() -> int:
    """Return a port on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])

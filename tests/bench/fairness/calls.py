"""What the attacks are made of: connections that send, read or do not read, in many parallel loops."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from tests.whole.raw import chat, head, read_answer

TIMEOUT_S: Final = 20.0
READ: Final = 256 * 1024


class Target(msgspec.Struct):
    """The ports of the gateway and of the first caller's upstream, its tokens, and what happened since the attack began."""

    port: int
    apart: int
    tokens: list[str]
    tally: Counter[str] = msgspec.field(default_factory=Counter)
    turn: int = 0

    @property
    def token(self) -> str:
        """The token whose turn it is, of all accounts of the first caller."""
        self.turn += 1
        return self.tokens[self.turn % len(self.tokens)]

    def chat(self, plan: str, **fields: object) -> bytes:
        """Return a chat request that the upstream answers by `plan`."""
        return chat(self.token, {"user": plan, **fields})

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection."""
        return await asyncio.open_connection("127.0.0.1", self.port, limit=READ)


Once = Callable[[], Awaitable[str]]


async def many(target: Target, count: int, once: Once, pause_s: float = 0.0) -> None:
    """Run `once` in `count` parallel loops until cancelled, and count what each run returns or raises."""

    async def loop() -> None:
        while True:
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    target.tally[await once()] += 1
            except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
                target.tally[type(error).__name__] += 1
                await asyncio.sleep(0.01)
            await asyncio.sleep(pause_s)

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(loop())


def asking(target: Target, request: Callable[[], bytes]) -> Once:
    """Return a caller that sends a request on a new connection, and reads the whole response."""

    async def once() -> str:
        reader, writer = await target.connect()
        try:
            writer.write(request())
            return str((await read_answer(reader)).status)
        finally:
            writer.close()

    return once


def repeating(target: Target, request: Callable[[], bytes]) -> Callable[[], Once]:
    """Return a maker of callers that send request after request on one connection, while the gateway keeps it open."""

    def make() -> Once:
        opened: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

        async def once() -> str:
            if not opened:
                opened.append(await target.connect())
            reader, writer = opened[0]
            try:
                writer.write(request())
                answer = await read_answer(reader)
                if "connection" in answer.headers:
                    opened.pop()
                    writer.close()
                return str(answer.status)
            except BaseException:
                opened.clear()
                writer.close()
                raise

        return once

    return make


async def flood(target: Target, count: int, request: Callable[[], bytes], pause_s: float = 0.0) -> None:
    """Send requests as fast as they are answered, on `count` connections."""
    make = repeating(target, request)
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(many(target, 1, make(), pause_s))


def reading(target: Target, request: Callable[[], bytes]) -> Once:
    """Return a caller that reads a stream for as long as it goes on."""

    async def once() -> str:
        reader, writer = await target.connect()
        try:
            writer.write(request())
            status = (await reader.readuntil(b"\r\n\r\n"))[9:12].decode()
            while await reader.read(READ):
                pass
            return status
        finally:
            writer.close()

    return once


def holding(target: Target, sent: Callable[[], bytes], then: bytes = b"", pause_s: float = 0.0) -> Once:
    """Return a caller that sends something, then `then` byte after byte, and never reads."""

    async def once() -> str:
        loop = asyncio.get_running_loop()
        with socket.socket() as caller:
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            caller.setblocking(False)
            await loop.sock_connect(caller, ("127.0.0.1", target.port))
            await loop.sock_sendall(caller, sent())
            target.tally["opened"] += 1
            for byte in then:
                await loop.sock_sendall(caller, bytes([byte]))
                await asyncio.sleep(pause_s)
            await asyncio.sleep(TIMEOUT_S)
        return "held"

    return once


def sending(target: Target, head_lines: dict[str, str], body: bytes, piece: int) -> Once:
    """Return a caller that sends a large body in pieces until a response comes, and then reads it."""

    async def once() -> str:
        reader, writer = await target.connect()
        answering = asyncio.ensure_future(read_answer(reader))
        try:
            lines = {"Host": "gateway", "Content-Type": "application/json", "Authorization": f"Bearer {target.token}"}
            writer.write(head("POST", "/v1/chat/completions", lines | head_lines))
            for start in range(0, len(body), piece):
                if answering.done():
                    break
                writer.write(body[start : start + piece])
                await writer.drain()
            return str((await answering).status)
        finally:
            answering.cancel()
            writer.close()

    return once

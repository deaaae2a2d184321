"""Raw HTTP of a caller: one connection, requests written as bytes, answers read piece by piece into `Seen`."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from tests.bench.life.seen import Saw, Seen
from tests.whole.raw import CHAT, head

HANG_S: Final = 45.0
"""No timer of the gateway is longer, and a worker that died is there again by then."""
_FINISH: Final = re.compile(rb'"finish_reason":\s*"')
SHAPE: Final = {"message", "type", "param", "code", "request_id"}
SHORTAGE: Final = {"needed_micros", "available_micros", "max_tokens_that_fit"}
"""The fields of an error, and what one with status 402 has besides."""
_ERROR: Final = re.compile(rb'^data: (\{"error":\s*\{.*)$', re.MULTILINE)
_BARE: Final = re.compile(rb'^(event: error|data: \{"object":\s*"error")', re.MULTILINE)

Stop = Callable[[Seen], bool]
"""Called after each piece of an answer: whether the caller leaves now."""


def never(_: Seen) -> bool:
    return False


def request(token: str | None, body: dict[str, Any] | bytes, headers: dict[str, str] | None = None) -> bytes:
    """Return the bytes of a chat request."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = {"Host": "gateway", "Content-Type": "application/json", "Content-Length": str(len(raw))}
    if token is not None:
        lines["Authorization"] = f"Bearer {token}"
    return head("POST", CHAT, lines | (headers or {})) + raw


class Line:
    """A connection to the gateway. `receive_buffer` makes the kernel's buffer small, for callers that read slowly."""

    def __init__(self, port: int, receive_buffer: int = 0) -> None:
        self._port = port
        self._receive_buffer = receive_buffer
        self.closes = False

    async def open(self) -> None:
        """Connect. Raises `OSError`."""
        plain = socket.socket()
        plain.setblocking(False)
        if self._receive_buffer:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
        try:
            await asyncio.wait_for(asyncio.get_running_loop().sock_connect(plain, ("127.0.0.1", self._port)), HANG_S)
        except BaseException:
            plain.close()
            raise
        limit = self._receive_buffer or 1 << 16
        self.reader, self.writer = await asyncio.open_connection(sock=plain, limit=limit)

    def close(self, *, reset: bool = False) -> None:
        """Leave by FIN, or by RST."""
        if reset:
            plain = self.writer.get_extra_info("socket")
            with suppress(OSError):  # the gateway may have closed it
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.writer.transport.abort()
        else:
            self.writer.close()

    async def receive(self, seen: Seen, *, stop: Stop = never, pause_s: float = 0.0, hang_s: float = HANG_S) -> bytes:
        """Read one answer into `seen`, and return its body. `stop` says after each piece whether to leave."""
        body = bytearray()
        try:
            async with asyncio.timeout(hang_s):
                await self._receive(seen, body, stop, pause_s)
        except TimeoutError:
            seen.saw = Saw.HANG
        except (asyncio.IncompleteReadError, OSError):
            seen.saw = Saw.CUT if seen.status else Saw.NOTHING
        except (ValueError, IndexError, asyncio.LimitOverrunError) as error:
            seen.saw, seen.problem = Saw.UNREADABLE, f"{type(error).__name__}: {error}"
        judge_body(seen, bytes(body))
        return bytes(body)

    async def _receive(self, seen: Seen, body: bytearray, stop: Stop, pause_s: float) -> None:
        start = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = int(start[0].split(" ")[1])
        fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in start[1:] if line)}
        seen.status, seen.id = status, fields.get("x-request-id", "")
        seen.retry_after = fields.get("retry-after-ms", "")
        self.closes = fields.get("connection") == "close"
        if "content-length" in fields:
            body += await self.reader.readexactly(int(fields["content-length"]))
            seen.saw = Saw.WHOLE if status < 400 else Saw.ERROR
            return
        if fields.get("transfer-encoding") != "chunked":
            if not self.closes:
                raise ValueError("an answer without a length")
            body += await self.reader.read(-1)  # as HTTP/1.0 has it
            seen.finish = _FINISH.search(body) is not None
            seen.saw = Saw.WHOLE if b"[DONE]" in body else Saw.CUT
            return
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            piece = await self.reader.readexactly(size)
            body += piece
            await self.reader.readexactly(2)
            seen.events += piece.count(b"data: ")
            seen.finish = seen.finish or _FINISH.search(piece) is not None or b"[DONE]" in piece
            if stop(seen):
                seen.saw = Saw.LEFT
                return
            if pause_s:
                await asyncio.sleep(pause_s)
        await self.reader.readexactly(2)
        seen.saw = Saw.WHOLE


def judge_body(seen: Seen, body: bytes) -> None:
    """Set the code of an error answer or error event, and note a body that nobody could read."""
    if seen.saw is Saw.ERROR:
        try:
            error = json.loads(body)["error"]
            seen.code = error["code"]
            if error["request_id"] != seen.id or set(error) - (SHORTAGE if seen.status == 402 else set()) != SHAPE:
                seen.saw, seen.problem = Saw.UNREADABLE, f"an error in another shape: {body[:300]!r}"
        except (ValueError, KeyError, TypeError):
            seen.saw, seen.problem = Saw.UNREADABLE, f"an error in another shape: {body[:300]!r}"
    elif seen.status == 200:
        for found in _ERROR.findall(body):
            try:
                error = json.loads(found)["error"]
            except ValueError:
                continue
            seen.code = error["code"] if error.get("request_id") == seen.id else "of the upstream"
        if _BARE.search(body):
            seen.code = "of the upstream"


def close_quietly(line: Line) -> None:
    """Close a connection that may not have been opened."""
    if hasattr(line, "writer"):
        line.close()

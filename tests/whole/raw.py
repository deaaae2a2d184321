"""A caller that writes raw HTTP/1.1 and reads the response exactly as it was sent."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec

from tests.patience import PATIENCE_S

CHAT = "/v1/chat/completions"


class Answer(msgspec.Struct):
    """A response as it came over the socket. `whole`: its body is complete by its framing; `pieces`: its chunks."""

    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool
    pieces: list[bytes] = []

    @property
    def error(self) -> dict[str, Any]:
        """The error object of a JSON response."""
        error: dict[str, Any] = json.loads(self.body)["error"]
        return error


def chat(token: str | None, body: Any = None, *, headers: dict[str, str] | None = None, path: str = CHAT) -> bytes:
    """Return the bytes of a chat request. `body` is merged into a minimal one, or used unchanged if it is bytes."""
    minimal = {"model": "words", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    raw = body if isinstance(body, bytes) else json.dumps(minimal | (body or {})).encode()
    lines = {"Host": "gateway", "Content-Type": "application/json", "Content-Length": str(len(raw))}
    if token is not None:
        lines["Authorization"] = f"Bearer {token}"
    lines |= headers or {}
    return head("POST", path, lines) + raw


def head(method: str, path: str, headers: dict[str, str]) -> bytes:
    """Return a request line and headers. A header with an empty value is left out."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items() if value)
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1")


def get(path: str, token: str | None = None, method: str = "GET") -> bytes:
    """Return the bytes of a request without a body."""
    return head(method, path, {"Host": "gateway", "Authorization": f"Bearer {token}" if token else ""})


async def ask(port: int, request: bytes) -> Answer:
    """Send one request on a new connection and return the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        async with asyncio.timeout(PATIENCE_S):
            return await read_answer(reader)
    finally:
        writer.close()


async def read_answer(reader: asyncio.StreamReader, pieces: list[bytes] | None = None) -> Answer:
    """Read one response, whatever its framing. The pieces of its body are added to `pieces` as they come."""
    start = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    status = int(start[0].split(" ")[1])
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in start[1:] if line)}
    pieces = [] if pieces is None else pieces
    try:
        if headers.get("transfer-encoding") == "chunked":
            while size := int(await reader.readuntil(b"\r\n"), 16):
                pieces.append(await reader.readexactly(size))
                await reader.readexactly(2)
            await reader.readexactly(2)
        elif "content-length" in headers:
            pieces.append(await reader.readexactly(int(headers["content-length"])))
        else:
            pieces.append(await reader.read())
    except (asyncio.IncompleteReadError, ConnectionResetError):
        return Answer(status, headers, b"".join(pieces), whole=False, pieces=pieces)
    return Answer(status, headers, b"".join(pieces), whole=True, pieces=pieces)

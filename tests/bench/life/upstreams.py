"""The server of all upstreams: it answers by the model's name, and keeps its own account of what it served."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from contextlib import suppress
from typing import Any

import msgspec

from tests.bench.life.answers import KINDS, Call, Close, Served
from tests.tcp import TcpServer, read_request


class Upstreams(TcpServer):
    """A raw HTTP server on loopback. `served` has its account of each request by the tag that the caller sent as `user`."""

    def __init__(self) -> None:
        super().__init__(limit=1 << 20)
        self.served: dict[str, list[Served]] = defaultdict(list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests = 0
        with suppress(Close):
            while True:
                head, raw = await read_request(reader)
                requests += 1
                await self._answer(head, raw, reader, writer, requests)

    async def _answer(
        self, head: bytes, raw: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, requests: int
    ) -> None:
        body: dict[str, Any] = msgspec.json.decode(raw)
        tag, kind = str(body.get("user", "")), KINDS[body["model"]]
        served = Served(tag, kind.name, asyncio.get_running_loop().time(), *sizes(body, len(raw)))
        self.served[tag].append(served)
        credential = head.lower().partition(b"authorization: bearer ")[2].partition(b"\r\n")[0].decode()
        call = Call(body, served, reader, writer, requests, credential)
        gone = asyncio.create_task(_until_gone(reader))
        answering = asyncio.ensure_future(kind.answer(call))
        try:
            await asyncio.wait((gone, answering), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                served.left = True
                raise Close
            answering.result()
            served.finished = True
        finally:
            for task in (gone, answering):
                task.cancel()
            await asyncio.gather(gone, answering, return_exceptions=True)


async def _until_gone(reader: asyncio.StreamReader) -> None:
    """Wait until the gateway closes the connection, without reading from it."""
    while not reader.at_eof() and reader.exception() is None:
        await asyncio.sleep(0.02)


def sizes(body: dict[str, Any], raw: int) -> tuple[int, int, bool]:
    """Return the bytes of what a model reads as text, those of the body without inline pictures, and whether there are some."""
    pictures = text = 0
    for message in body["messages"]:
        for part in message["content"] if isinstance(message["content"], list) else [{"text": message["content"]}]:
            text += len(part.get("text", ""))
            pictures += len(part.get("image_url", {}).get("url", ""))
    text += len(json.dumps(body["tools"])) if "tools" in body else 0
    return text, raw - pictures, bool(pictures)

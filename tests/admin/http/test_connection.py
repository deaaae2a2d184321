"""The connections of the operator's port: what is sent is not decompressed, and an idle one is closed."""

from __future__ import annotations

import asyncio
import gzip

import pytest
from aiohttp import ClientSession, web

from gateway.admin.http import port
from gateway.admin.http.app import Admin, Callers
from gateway.metrics.exporter import Exporter
from tests.patience import soon


class Echo:
    """A site that answers with the body that it read, as both ports of the operator's process serve theirs."""

    def application(self) -> web.Application:
        async def answer(request: web.Request) -> web.Response:
            return web.Response(body=await request.read())

        application = web.Application()
        application.router.add_post("/", answer)
        return application


@pytest.mark.parametrize("body", [gzip.compress(bytes(1000), mtime=0), b"no gzip"])
async def test_a_body_is_not_decompressed(body: bytes) -> None:
    async with port.serving(Echo(), "127.0.0.1:0") as number, ClientSession() as session:
        headers = {"Content-Encoding": "gzip"}
        async with session.post(f"http://127.0.0.1:{number}/", data=body, headers=headers) as response:
            assert (response.status, await response.read()) == (200, body)


async def test_an_idle_connection_is_closed(callers: Callers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port, "IDLE_S", 0.3)
    async with port.serving(Admin(callers, Exporter({})), "127.0.0.1:0") as number:
        reader, writer = await asyncio.open_connection("127.0.0.1", number)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await soon(reader.read())).endswith(b"ok\n")
        writer.close()

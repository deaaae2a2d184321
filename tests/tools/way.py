"""What may be on the way from a caller to the gateway: a proxy that does one thing wrong, or something else that answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec
from aiohttp import ClientSession, web
from multidict import CIMultiDict

HOP_BY_HOP = ("Connection", "Keep-Alive", "Transfer-Encoding", "Content-Length", "Host", "Date")
PAGE = b"<!DOCTYPE html><HTML><head><title>Airport\nWiFi \x1b[2J</title></head><body>Please log in</body></HTML>"


class Says(msgspec.Struct, frozen=True):
    """A fixed answer, in place of the gateway's."""

    status: int
    headers: Mapping[str, str] = {}
    body: bytes = b""


class Proxy:
    """A proxy. `drop` and `add`: headers of requests; `hide`: headers of answers; `cut_prefix` and `put_prefix` change paths;
    `buffers`: it sends an answer when it has all of it; `cut_after`: it closes the connection after so many bytes of a stream;
    `closes`: requests with this method get no answer; `says`: it gives this answer, or only to requests with this `method`.
    """

    def __init__(
        self,
        gateway_port: int = 0,
        *,
        drop: Sequence[str] = (),
        add: Mapping[str, str] | None = None,
        hide: Sequence[str] = (),
        cut_prefix: str = "",
        put_prefix: str = "",
        buffers: bool = False,
        cut_after: int | None = None,
        closes: str = "",
        says: Says | None = None,
        method: str = "",
        software: str = "fake-proxy/1.0",
    ) -> None:
        self.gateway = f"http://127.0.0.1:{gateway_port}"
        self.drop, self.hide = drop, hide
        self.add: Mapping[str, str] = add or {}
        self.cut_prefix, self.put_prefix = cut_prefix, put_prefix
        self.buffers, self.cut_after = buffers, cut_after
        self.closes = closes
        self.says, self.method, self.software = says, method, software
        self.seen: list[tuple[str, str, str]] = []
        """Method, path and Authorization of each request."""
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        self.port = 0

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    def url(self, path: str = "/v1") -> str:
        """Return an address of this proxy."""
        return f"http://127.0.0.1:{self.port}{path}"

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append((request.method, request.path, request.headers.get("Authorization", "")))
        if request.method == self.closes:
            assert request.transport is not None
            request.transport.close()
        if self.says is not None and self.method in ("", request.method):
            headers = {"Server": self.software, "Content-Type": "text/html", **self.says.headers}
            return web.Response(status=self.says.status, headers=headers, body=self.says.body)
        passed = _passed(request.headers, self.drop)
        passed.update(self.add)
        path = self.put_prefix + request.raw_path.removeprefix(self.cut_prefix)
        async with (
            ClientSession() as session,
            session.request(request.method, self.gateway + path, headers=passed, data=await request.read()) as answer,
        ):
            response = web.StreamResponse(status=answer.status, headers=_passed(answer.headers, self.hide))
            response.headers["Server"] = self.software
            pieces: Any = [await answer.read()] if self.buffers else answer.content.iter_any()
            await self._pass(request, response, pieces)
        return response

    async def _pass(self, request: web.Request, response: web.StreamResponse, pieces: Any) -> None:
        await response.prepare(request)
        left = self.cut_after if response.content_type == "text/event-stream" else None
        if isinstance(pieces, list):
            await response.write(pieces[0])
            return
        async for piece in pieces:
            await response.write(piece if left is None else piece[:left])
            if left is not None:
                left -= len(piece)
                if left <= 0:
                    assert request.transport is not None
                    request.transport.close()
                    return


def _passed(headers: Mapping[str, str], without: Sequence[str]) -> CIMultiDict[str]:
    passed = CIMultiDict(headers)
    for name in (*HOP_BY_HOP, *without):
        passed.popall(name, None)
    return passed

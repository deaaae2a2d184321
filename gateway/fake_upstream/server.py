"""The fake upstream's sockets: whoever leaves or stops ends the answers that are still open."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler
from multidict import CIMultiDictProxy
from yarl import URL

from gateway.fake_upstream.answer import Ask, Completion, error, refusal
from gateway.fake_upstream.modes import ANSWERS, REFUSALS

MODEL = "fake-model"
MAX_BODY_BYTES = 64 << 20
REMEMBERED = 1_000


class Seen(msgspec.Struct, frozen=True):
    """A request as it arrived. `path` is raw, with its query; `headers` is case-insensitive."""

    method: str
    path: str
    headers: CIMultiDictProxy[str]
    body: bytes

    def __repr__(self) -> str:
        return f"<Seen {self.method} {self.path}, {len(self.body)} bytes>"


class FakeUpstream:
    """An OpenAI-compatible upstream on loopback that behaves, or misbehaves on purpose, by its mode.

    `pace_s` passes before each event. `words` is what it says, instead of something about the request. With
    a `key`, any other credential is refused with 401. `port` 0 takes a free one. Raises `ValueError` for an
    unknown mode.
    """

    def __init__(
        self,
        *,
        mode: str = "words",
        pace_s: float = 0.04,
        words: str | None = None,
        key: str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.mode = mode
        self.pace_s = pace_s
        self.base_url = ""
        """Ends in `/v1`; known once started."""
        self.requests: list[Seen] = []
        """What arrived, oldest first; the last thousand."""
        self._words = words
        self._key = key
        self._host = host
        self._port = port
        self._open: set[asyncio.Task[object]] = set()
        self._runner: web.AppRunner | None = None

    @property
    def mode(self) -> str:
        """May be assigned at any time; an answer that has begun keeps its mode."""
        return self._mode

    @mode.setter
    def mode(self, mode: str) -> None:
        if mode not in ANSWERS:
            raise ValueError(f"unknown mode {mode!r}: one of {', '.join(ANSWERS)}")
        self._mode = mode

    async def start(self) -> None:
        """Listen. Raises `OSError` where the port is taken."""
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._receive])
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.on_shutdown.append(self._leave)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port).start()
        port = self._runner.addresses[0][1]
        self.base_url = str(URL.build(scheme="http", host=self._host, port=port, path="/v1"))

    async def stop(self) -> None:
        """Stop listening and cut the streams that are open, without their ends; within a second."""
        if self._runner:
            await self._runner.cleanup()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _leave(self, _: web.Application) -> None:
        for answer in self._open:
            answer.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    @web.middleware
    async def _receive(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Remember what arrived, check the credential, and keep the answer where `stop` finds it."""
        if task := asyncio.current_task():
            self._open.add(task)
            task.add_done_callback(self._open.discard)
        self.requests.append(Seen(request.method, request.raw_path, request.headers, await request.read()))
        del self.requests[:-REMEMBERED]
        if self._key is not None and request.headers.get("Authorization") != f"Bearer {self._key}":
            return refusal(401, error(*REFUSALS[401]))
        return await handler(request)

    async def _models(self, request: web.Request) -> web.Response:
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "fake-upstream"}
        return web.json_response({"object": "list", "data": [model]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        try:
            ask = msgspec.json.decode(await request.read(), type=Ask)
        except msgspec.DecodeError as wrong:
            return refusal(400, error("invalid_request", str(wrong)))
        call = Completion(request, ask, pace_s=self.pace_s, words=self._words)
        return await ANSWERS[self.mode](call)


async def serve_forever(host: str, port: int, mode: str, pace_s: float) -> None:
    """A fake upstream until it is cancelled. Raises `OSError` where the port is taken."""
    async with FakeUpstream(mode=mode, pace_s=pace_s, host=host, port=port):
        await asyncio.get_running_loop().create_future()

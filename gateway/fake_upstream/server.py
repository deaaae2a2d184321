"""The fake upstream's HTTP server."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final, Self

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler
from multidict import CIMultiDictProxy
from yarl import URL

from gateway.fake_upstream.completion import ChatBody, Completion, error, refusal
from gateway.fake_upstream.modes import ANSWERS, REFUSALS
from gateway.fake_upstream.other_operations import (
    GivenTexts,
    KeptResponses,
    MessageCompletion,
    PromptBody,
    ResponseBody,
    ResponseCompletion,
    TextCompletion,
    counted,
    make,
    not_kept,
    read_texts,
)

MODEL: Final = "fake-model"
MAX_BODY_BYTES: Final = 64 << 20
MAX_REQUESTS: Final = 1_000
"""How many of the latest requests are kept in `FakeUpstream.requests`."""


class ReceivedRequest(msgspec.Struct, frozen=True):
    """A request as it arrived. `path` is raw, with its query; `headers` is case-insensitive."""

    method: str
    path: str
    headers: CIMultiDictProxy[str]
    body: bytes

    def __repr__(self) -> str:
        return f"<ReceivedRequest {self.method} {self.path}, {len(self.body)} bytes>"


class FakeUpstream:
    """An OpenAI-compatible upstream on loopback. Its mode says how it answers, or misbehaves.

    `pace_s` passes before each event. `words` is the text of every answer; without it, the answer quotes the request. With
    a `key`, requests with any other credential are refused with 401. With `caches`, the usage says how many tokens of a prompt's
    beginning came with the same credential before, a message at a time. `port` 0 takes a free port. Raises `ValueError` for an
    unknown mode.
    """

    def __init__(
        self,
        *,
        mode: str = "words",
        pace_s: float = 0.04,
        words: str | None = None,
        key: str | None = None,
        caches: bool = False,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.mode = mode
        self.pace_s = pace_s
        self.base_url = ""
        """The base address, which ends in `/v1`; empty before `start`."""
        self.requests: list[ReceivedRequest] = []
        """The latest requests, oldest first, a thousand at most."""
        self._words = words
        self._key = key
        self.refused: set[str] = set()
        """Credentials that it refuses with 401. It may change at any time."""
        self._caches = caches
        self._seen: set[tuple[str, str]] = set()
        """The beginnings of prompts, each with its credential."""
        self._host = host
        self._port = port
        self._answers: set[asyncio.Task[object]] = set()
        self._kept = KeptResponses()
        self._runner: web.AppRunner | None = None

    @property
    def mode(self) -> str:
        """The mode of the answers that begin from now on. It may be assigned at any time."""
        return self._mode

    @mode.setter
    def mode(self, mode: str) -> None:
        if mode not in ANSWERS:
            raise ValueError(f"unknown mode {mode!r}: one of {', '.join(ANSWERS)}")
        self._mode = mode

    def application(self) -> web.Application:
        """Return a new application that answers as this upstream, to be run by a server of the caller's."""
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._receive])
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_post("/v1/chat/completions", partial(self._complete, Completion, ChatBody))
        app.router.add_post("/v1/messages", partial(self._complete, MessageCompletion, ChatBody))
        app.router.add_post("/v1/messages/count_tokens", partial(self._count, ChatBody, "message_tokens"))
        app.router.add_post("/v1/responses", self._respond)
        for path in ("", "/input_items"):
            app.router.add_get(f"/v1/responses/{{name}}{path}", self._kept.answer)
        app.router.add_delete("/v1/responses/{name}", self._kept.answer)
        app.router.add_post("/v1/responses/{name}/cancel", self._kept.answer)
        app.router.add_post("/v1/responses/compact", partial(self._complete, ResponseCompletion, ResponseBody))
        app.router.add_post("/v1/responses/input_tokens", partial(self._count, ResponseBody, "response.input_tokens"))
        app.router.add_post("/v1/completions", partial(self._complete, TextCompletion, PromptBody))
        for path in ("/v1/embeddings", "/v1/rerank", "/v1/moderations"):
            app.router.add_post(path, self._read_texts)
        pictures, sound = ("generations", "edits", "variations"), ("speech", "transcriptions", "translations")
        for path in (*(f"images/{each}" for each in pictures), *(f"audio/{each}" for each in sound)):
            app.router.add_post(f"/v1/{path}", self._make)
        app.on_shutdown.append(self._cancel_answers)
        return app

    async def start(self) -> None:
        """Listen. Raises `OSError` if the port is taken."""
        self._runner = web.AppRunner(
            self.application(), handler_cancellation=True, access_log=None, shutdown_timeout=0.2, auto_decompress=False
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port).start()
        port = self._runner.addresses[0][1]
        self.base_url = str(URL.build(scheme="http", host=self._host, port=port, path="/v1"))

    async def stop(self) -> None:
        """Stop listening and cut open streams without their ends. Takes a second at most."""
        if self._runner:
            await self._runner.cleanup()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _cancel_answers(self, _: web.Application) -> None:
        for answer in self._answers:
            answer.cancel()
        await asyncio.gather(*self._answers, return_exceptions=True)

    @web.middleware
    async def _receive(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Record the request, check its credential, and register the task so that a shutdown can cancel it.

        A body that is not as the handler needs it is refused.
        """
        if task := asyncio.current_task():
            self._answers.add(task)
            task.add_done_callback(self._answers.discard)
        body = await request.read()
        self.requests.append(ReceivedRequest(request.method, request.raw_path, request.headers, body))
        del self.requests[:-MAX_REQUESTS]
        sent = (request.headers.get("Authorization"), request.headers.get("x-api-key"))
        wrong = self._key is not None and f"Bearer {self._key}" != sent[0] and self._key != sent[1]
        if wrong or credential_of(request) in self.refused:
            return refusal(401, error(*REFUSALS[401]))
        try:
            return await handler(request)
        except msgspec.DecodeError as wrong:
            return refusal(400, error("invalid_request", str(wrong)))

    async def _models(self, request: web.Request) -> web.Response:
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "fake-upstream"}
        return web.json_response({"object": "list", "data": [model]})

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"}, status=503 if self.mode == "loading" else 200)

    async def _complete(self, kind: type[Completion], body: type[ChatBody], request: web.Request) -> web.StreamResponse:
        chat = msgspec.json.decode(await request.read(), type=body)
        completion = kind(request, chat, pace_s=self.pace_s, words=self._words)
        if self._caches:
            completion.cached = self._cached(credential_of(request), chat)
        return await ANSWERS[self.mode](completion)

    def _cached(self, credential: str, chat: ChatBody) -> int:
        """Return how many tokens of the beginning of a prompt came with this credential before, and keep that it has come."""
        cached, words, text = 0, 0, ""
        for message in chat.messages:
            text += f"{message.role}: {' '.join(message.words())}\n"
            words += len(message.words())
            if (credential, text) in self._seen:
                cached = words
            self._seen.add((credential, text))
        return cached

    async def _respond(self, request: web.Request) -> web.StreamResponse:
        body = msgspec.json.decode(await request.read(), type=ResponseBody)
        try:
            self._kept.look_up(body)
        except KeyError as missing:
            return not_kept(missing.args[0])
        made = ResponseCompletion(request, body, pace_s=self.pace_s, words=self._words)
        if not self.mode.isdecimal():
            self._kept.keep(made)
        return await ANSWERS[self.mode](made)

    async def _count(self, body: type[ChatBody], kind: str, request: web.Request) -> web.StreamResponse:
        return counted(msgspec.json.decode(await request.read(), type=body), kind)

    async def _read_texts(self, request: web.Request) -> web.StreamResponse:
        return read_texts(msgspec.json.decode(await request.read(), type=GivenTexts), request.path, self.mode)

    async def _make(self, request: web.Request) -> web.StreamResponse:
        return await make(request, self.mode)


def credential_of(request: web.Request) -> str:
    """Return the credential of a request."""
    return request.headers.get("Authorization", "").removeprefix("Bearer ") or request.headers.get("x-api-key", "")

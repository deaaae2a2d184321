"""Each operation in each of its forms: fifty requests at once on a balance for five, and a worker that crashes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.base.crash_points import EXIT_CODE
from gateway.fake_upstream import FakeUpstream
from gateway.operations.form import FORM, written
from gateway.operations.operation import SERVED, Operation
from gateway.testing import running
from tests.patience import PATIENCE_S, wait_until
from tests.place import Place
from tests.whole.books import LEASE_S, Books
from tests.whole.conftest import CHAIN
from tests.whole.raw import Answer, ask, chat

PRICES = "input: 1, output: 2, request: 0.001, image: 0.04, second: 0.0001, character: 15"
SERVES = f"operations: [{', '.join(SERVED)}], on_caller_gone: cancel"
FILE = """
channels: {{fake: {{base_url: "{url}", {serves}}}}}
models: {{words: {{{prices}, max_output_tokens: 100, context_length: 1000, channels: [fake]}}}}
groups: {{default: {{}}}}
{chain}
"""
BILLED = [operation for operation, wire in SERVED.items() if not wire.free]
STREAMED = [operation for operation in BILLED if "stream" in SERVED[operation].sample("", "")]
KEPT = (Operation.RESPONSES, Operation.RESPONSES_COMPACT)
FORMS: dict[str, tuple[Operation, dict[str, Any]]] = {
    **{str(each): (each, {"stream": False} if each in STREAMED else {}) for each in BILLED},
    **{f"{each}, streamed": (each, {"stream": True}) for each in STREAMED},
    **{f"{each} after an answer": (each, {"previous_response_id": "?"}) for each in KEPT},
    "responses after an answer, streamed": (Operation.RESPONSES, {"previous_response_id": "?", "stream": True}),
}
AFTER_A_CRASH = ("settle.after", "upstream.sent", "answer.finished", "settle.before")
CHARGED = ("settle.after", "answer.finished")
CRASHES = list(zip(FORMS, cycle(AFTER_A_CRASH), strict=False))
SEEDS = int(os.environ.get("MONEY_SEEDS", "0"))


class Gated(FakeUpstream):
    """An upstream that answers nothing as long as its gate is closed."""

    def __init__(self) -> None:
        super().__init__(pace_s=0)
        self.gate = asyncio.Event()

    def application(self) -> web.Application:
        application = super().application()
        application.middlewares.append(self._wait)
        return application

    @web.middleware
    async def _wait(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        await self.gate.wait()
        return await handler(request)


@pytest.fixture
async def upstream() -> AsyncIterator[Gated]:
    async with Gated() as gated:
        yield gated


def request_of(form: str, token: str, answer: str = "") -> bytes:
    operation, more = FORMS[form]
    wire = SERVED[operation]
    body = {**wire.sample("words", "max_tokens"), **more}
    if operation in KEPT:
        body |= {"store": True, "previous_response_id": answer or None}
    if wire.accepts == FORM:
        media = {"Content-Type": f"{FORM}; boundary=b7"}
        return chat(token, written(body, "b7"), path=f"/v1{wire.path}", headers=media)
    return chat(token, json.dumps(body).encode(), path=f"/v1{wire.path}")


async def first_answer(port: int, token: str) -> str:
    return str(json.loads((await ask(port, request_of("responses", token))).body)["id"])


@pytest.mark.parametrize("form", FORMS)
async def test_of_fifty_at_once_a_balance_for_five_serves_five(upstream: Gated, place: Place, form: str) -> None:
    yaml = FILE.format(
        url=upstream.base_url, serves=SERVES, prices=PRICES, chain=CHAIN + "port: {allow_non_streaming: true}"
    )
    async with running(yaml, *place) as gateway:
        token = await gateway.token()
        wallet = gateway.store.wallet

        async def account() -> Any:
            return await gateway.store.accounts.get("tester")

        upstream.gate.set()
        sent = request_of(form, token, await first_answer(gateway.port, token) if "after" in form else "")
        upstream.gate.clear()
        upstream.requests.clear()
        alone = asyncio.create_task(ask(gateway.port, sent))
        await wait_until(lambda: bool(upstream.requests))
        held = (await account()).held_micros
        upstream.gate.set()
        assert (await alone).status == 200
        async with asyncio.timeout(PATIENCE_S):
            while (before := await account()).holds:
                await asyncio.sleep(0.01)
        await wallet.adjust("tester", "five", 5 * held - before.balance_micros, "test")
        upstream.gate.clear()
        upstream.requests.clear()
        calls = {asyncio.create_task(ask(gateway.port, sent)) for _ in range(50)}
        async with asyncio.timeout(PATIENCE_S):
            while sum(call.done() for call in calls) < 45 or len(upstream.requests) < 5:
                await asyncio.sleep(0.01)
        upstream.gate.set()
        answers: list[Answer] = await asyncio.gather(*calls)
        assert sorted(each.status for each in answers) == [200] * 5 + [402] * 45
        assert len(upstream.requests) == 5
        async with asyncio.timeout(PATIENCE_S):
            while (after := await account()).holds:
                await asyncio.sleep(0.01)
        assert 0 <= after.balance_micros < 5 * held
        assert await wallet.verify("tester") == []


@pytest.mark.skipif(sys.platform != "linux", reason="the store of a test ends with its thread")
@pytest.mark.parametrize(
    ("form", "label"), CRASHES if not SEEDS else [(form, label) for form in FORMS for label in AFTER_A_CRASH]
)
async def test_the_books_balance_after_a_crash(tmp_path: Path, form: str, label: str) -> None:
    async with FakeUpstream(pace_s=0) as upstream:
        books = Books(tmp_path, upstream.base_url)
        text = books.file.read_text().replace("fake: {", f"fake: {{{SERVES}, ").replace("input: 1, output: 2", PRICES)
        books.file.write_text(text)
        try:
            await books.open()
            async with books.worker():
                made = await first_answer(books.port, books.token) if "after" in form else ""
            earlier = sum(map(sum, (await books.charges()).values()))
            async with books.worker(crash_at=label) as worker:
                with suppress(OSError, EOFError):
                    await ask(books.port, request_of(form, books.token, made))
                assert await asyncio.wait_for(worker.wait(), PATIENCE_S) == EXIT_CODE
            async with books.worker():
                await asyncio.sleep(0 if label in CHARGED else LEASE_S)
            await books.records()
            await books.verify()
            charged = sum(map(sum, (await books.charges()).values())) - earlier
            assert (charged > 0) == (label in CHARGED)
        finally:
            books.embedded.stop()

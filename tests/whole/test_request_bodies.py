"""Bodies of requests: what is sent and charged for them, in which turns they are read, and that their bytes are freed.

In a worker the garbage collector runs once in thousands of requests, and counts objects: it does not know that a body has
megabytes. So a body is freed as its request ends, however it ends.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway import Caller, Exchange, Outcome, Plugin
from gateway.chat.prompt import ENCODED_TOKENS
from gateway.fake_upstream import FakeUpstream
from gateway.server.protocol import LARGE_READ, ServerProtocol
from gateway.testing import Running
from tests.cli.processes import free_port
from tests.patience import PATIENCE_S, wait_until
from tests.whole.aftermath import assert_ended, charged, last_end_record
from tests.whole.conftest import CHAIN, Serve
from tests.whole.raw import ask, chat, read_answer
from tests.whole.scripted import CHUNKED, LAST, Fin, Forever, Hold, Scripted, Step, chunk
from tests.whole.test_errors import assert_error
from tests.whole.test_stream import STREAM, WORDS

PICTURE = base64.b64encode(bytes(range(256)) * 3000).decode()
FOLDED = (
    b'{"model":"words","messages":[{"role":"user"}],"stream":true,"max_tokens":1,"Model":"hidden","Max_Tokens":100000,'
    b'"N":16,"Stream_Options":{"include_usage":false}}'
)


@pytest.mark.parametrize(
    ("channel", "name"), [("", "max_tokens"), (", ceiling_field: max_completion_tokens", "max_completion_tokens")]
)
@pytest.mark.parametrize("given", [{}, {"max_tokens": 7}, {"max_completion_tokens": 7}])
async def test_a_ceiling_is_sent_under_the_channels_name(
    upstream: FakeUpstream, serve: Serve, channel: str, name: str, given: dict[str, Any]
) -> None:
    async with serve(upstream.base_url, channel=channel) as gateway:
        assert (await ask(gateway.port, chat(await gateway.token(), given))).status == 200
    sent = json.loads(upstream.requests[0].body)
    assert {field: sent[field] for field in sent if field.startswith("max_")} == {name: 7 if given else 100}


async def test_a_field_in_another_spelling_reaches_no_upstream(gateway: Running, upstream: FakeUpstream) -> None:
    answer = await ask(gateway.port, chat(await gateway.token(), FOLDED))
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "invalid_request", "Model")
    assert upstream.requests == []
    assert await charged(gateway) == 0


async def test_a_field_that_names_other_models_is_sent_only_where_the_operator_allows_it(
    upstream: FakeUpstream, serve: Serve
) -> None:
    port = "port: {allow_fields: [models]}"
    async with serve(upstream.base_url, more=port) as gateway:
        token = await gateway.token()
        assert (await ask(gateway.port, chat(token, {"models": ["a"]}))).status == 200
        refused = await ask(gateway.port, chat(token, {"fallbacks": ["a"]}))
    assert (refused.status, refused.error["param"]) == (400, "fallbacks")
    assert [json.loads(sent.body)["models"] for sent in upstream.requests] == [["a"]]


@pytest.mark.parametrize(
    ("given", "least", "most"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f", "description": "x" * 1000}}] * 200}, 50_000, 60_000),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": "x" * 200_000}}}, 49_000, 51_000),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}},
                            {"type": "text", "text": "What is this?"},
                        ],
                    }
                ]
            },
            ENCODED_TOKENS,
            ENCODED_TOKENS + 100,
        ),
    ],
    ids=["tools", "response_format", "picture"],
)
async def test_input_of_which_the_upstream_reports_nothing_is_charged_by_every_field(
    gateway: Running, upstream: FakeUpstream, given: dict[str, Any], least: int, most: int
) -> None:
    upstream.mode = "no-usage"
    assert (await ask(gateway.port, chat(await gateway.token(), given))).status == 200
    record = await last_end_record(gateway)
    assert least <= record.prompt_tokens <= most
    assert record.charge_micros == record.prompt_tokens + 2 * record.completion_tokens


@pytest.mark.parametrize(("text", "status"), [("", 200), ("word " * 20_000, 429)])
async def test_a_large_picture_fits_a_limit_on_tokens_and_as_much_text_does_not(
    upstream: FakeUpstream, serve: Serve, text: str, status: int
) -> None:
    content = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}},
        {"type": "text", "text": text},
    ]
    chain = CHAIN.replace("tokens_per_minute: 1000000", "tokens_per_minute: 10000")
    async with serve(upstream.base_url, chain=chain) as gateway:
        body = {"messages": [{"role": "user", "content": content}]}
        assert (await ask(gateway.port, chat(await gateway.token(), body))).status == status


UPLOADS = 12
BODY = {"metadata": {"a": "x" * 2_000_000}}
GENEROUS = CHAIN.replace("tokens_per_minute: 1000000", "tokens_per_minute: 100000000")


class Turns:
    """Counts the large reads of each turn of the event loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.large: Counter[int] = Counter()
        self._number = 0
        received = ServerProtocol.data_received

        def data_received(handler: ServerProtocol, data: bytes) -> None:
            self.large[self._number] += len(data) > LARGE_READ
            received(handler, data)

        monkeypatch.setattr(ServerProtocol, "data_received", data_received)

    async def count(self) -> None:
        while True:
            self._number += 1
            await asyncio.sleep(0)


async def upload(gateway: Running, request: bytes, address: str) -> int:
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, local_addr=(address, 0))
        writer.write(request)
        answer = await read_answer(reader)
        writer.close()
        return answer.status


async def test_bodies_of_many_connections_are_read_in_turns(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeUpstream(pace_s=0) as upstream, serve(upstream.base_url, chain=GENEROUS) as gateway:
        token = await gateway.token(credit=10**9)
        assert await upload(gateway, chat(token), "127.0.0.2") == 200
        turns = Turns(monkeypatch)
        counting = asyncio.create_task(turns.count())
        for _ in range(3):  # where a processor is slow, a turn is long, and has more reads
            turns.large.clear()
            uploads = [asyncio.create_task(upload(gateway, chat(token, BODY), "127.0.0.1")) for _ in range(UPLOADS)]
            beside = 0
            while not all(upload.done() for upload in uploads):
                assert await upload(gateway, chat(token), "127.0.0.2") == 200
                beside += 1
            assert [upload.result() for upload in uploads] == UPLOADS * [200]
            assert beside > 3
            assert sum(turns.large.values()) > UPLOADS
            full = sum(large > 3 for large in turns.large.values())
            if full <= 3:
                break
        counting.cancel()
    assert full <= 3, "the first reads of the connections may be in one turn"


SIZE = 1_000_000
REQUESTS = 4
MORE = "port: {max_body: 2000000}"


@pytest.fixture
def taken() -> Iterator[Callable[[], int]]:
    """Disable the collector, and yield what returns the bytes that were allocated since and are not free."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    gc.enable()


@asynccontextmanager
async def in_front_of(base_url: str, serve: Serve) -> AsyncIterator[tuple[Running, str]]:
    """Yield a gateway that has served a request, so that all that stays is made, and a token."""
    async with serve(base_url, more=MORE) as gateway:
        token = await gateway.token(credit=10**9)
        await ask(gateway.port, chat(token))
        yield gateway, token


def large(token: str) -> bytes:
    return chat(token, {"messages": [{"role": "user", "content": "x" * SIZE}]})


ANSWERS: dict[str, list[Step]] = {
    "in full": [CHUNKED + chunk(STREAM) + LAST],
    "with an error": [b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\nContent-Type: application/json\r\n\r\n{}"],
    "with a page": [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: text/html\r\n\r\nhi"],
    "with no HTTP": [b"nonsense\r\n\r\n"],
    "not at all": [Fin],
}


@pytest.mark.parametrize("how", ANSWERS)
async def test_a_large_body_is_freed_where_the_upstream_answers(
    how: str, serve: Serve, taken: Callable[[], int]
) -> None:
    async with Scripted(ANSWERS[how]) as upstream, in_front_of(upstream.base_url, serve) as (gateway, token):
        before = taken()
        for _ in range(REQUESTS):
            await ask(gateway.port, large(token))
            upstream.requests.clear()
        await ended(gateway)
        assert taken() - before < SIZE // 2


async def test_a_large_body_is_freed_where_no_upstream_is_reached(serve: Serve, taken: Callable[[], int]) -> None:
    async with in_front_of(f"http://127.0.0.1:{free_port()}/v1", serve) as (gateway, token):
        before = taken()
        for _ in range(REQUESTS):
            assert (await ask(gateway.port, large(token))).status in (502, 503)  # the channel cools down at the end
        await ended(gateway)
        assert taken() - before < SIZE // 2


@pytest.mark.parametrize("wrong", [b"[" * SIZE, b'{"model": "words", "messages": "' + b"x" * SIZE + b'"}'])
async def test_a_large_body_that_is_refused_is_freed(wrong: bytes, serve: Serve, taken: Callable[[], int]) -> None:
    async with in_front_of("http://127.0.0.1:1/v1", serve) as (gateway, token):
        before = taken()
        for _ in range(REQUESTS):
            assert (await ask(gateway.port, chat(token, wrong))).status == 400
        await ended(gateway)
        assert taken() - before < SIZE // 2


async def test_what_was_read_of_a_body_is_freed_when_its_caller_leaves(serve: Serve, taken: Callable[[], int]) -> None:
    async with in_front_of("http://127.0.0.1:1/v1", serve) as (gateway, token):
        before = taken()
        for _ in range(REQUESTS):
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(large(token)[:-1])
            await wait_until(lambda: gateway.gateway.budget.reserved >= SIZE)
            writer.transport.abort()
            await ended(gateway)
        assert taken() - before < SIZE // 2


async def ended(gateway: Running) -> None:
    """Wait until no request is in progress, and its connection is closed on both sides."""
    await wait_until(lambda: not gateway.gateway.runner.open and not gateway.gateway.budget.reserved)
    await asyncio.sleep(0.05)


BIG = 5_000_000


class Keeper(Plugin):
    """A plugin that keeps the body from `on_request` on, and asks for it in its other hooks."""

    requires = (Caller,)

    async def on_request(self, exchange: Exchange) -> None:
        kept["first"] = await exchange.body()

    async def on_end(self, exchange: Exchange) -> None:
        kept["last"] = await exchange.body()


kept: dict[str, Any] = {}
KEEPING = CHAIN.replace("  - use: quota", f"  - use: {__name__}:Keeper\n  - use: quota").replace(
    "tokens_per_minute: 1000000", "tokens_per_minute: 100000000"
)


async def streaming(serve: Serve, body: dict[str, Any]) -> None:
    kept.clear()
    gate = asyncio.Event()
    steps: list[Step] = [CHUNKED + chunk(WORDS[0]), Forever(b"", 0.01, until=gate.is_set), chunk(STREAM) + LAST]
    async with Scripted(steps) as upstream, serve(upstream.base_url, chain=KEEPING) as gateway:
        token = await gateway.token(credit=10**9)
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        request = chat(token, body)
        size = len(request)
        writer.write(request)
        del request
        await reader.readuntil(b"\n\n")
        assert len(upstream.requests[0]) > size // 2
        upstream.requests.clear()
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < size // 5
        assert gateway.gateway.budget.reserved == 0
        gate.set()
        assert (await reader.readuntil(LAST)).endswith(LAST)
        await wait_until(lambda: "last" in kept)
        assert kept["first"] is kept["last"]
        assert (kept["last"].model, kept["last"].messages, dict(kept["last"].top)) == ("words", 1, {})
        assert kept["last"].size > size // 2
        writer.close()


async def test_a_large_body_is_gone_while_its_stream_runs(serve: Serve) -> None:
    body = {"messages": [{"role": "user", "content": "x" * BIG}]}
    tracemalloc.start()
    try:
        await streaming(serve, body)
    finally:
        tracemalloc.stop()


async def test_the_input_of_a_stream_without_usage_is_estimated_although_its_body_is_gone(serve: Serve) -> None:
    async with Scripted([CHUNKED + chunk(WORDS[0]), Hold]) as upstream, serve(upstream.base_url) as gateway:
        token = await gateway.token()
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(chat(token, {"messages": [{"role": "user", "content": "x" * 4000}]}))
        await reader.readuntil(b"\n\n")
        writer.transport.abort()
        record = await assert_ended(gateway, Outcome.CALLER_GONE, "input")  # the first event has no text
        assert 1000 <= record.prompt_tokens <= 1020


async def test_large_requests_in_progress_leave_the_budget_to_other_accounts(serve: Serve) -> None:
    """Eight streams whose bodies together are twice the budget run; a large request of another account is served."""
    size = 200_000
    more = f"port: {{body_budget: {4 * size}, drain: 0}}"
    script: list[Step] = [CHUNKED + chunk(WORDS[0]), Forever(b"", 0.01, until=lambda: False)]
    async with (
        Scripted(*[script] * 8, [CHUNKED + chunk(STREAM) + LAST]) as upstream,
        serve(upstream.base_url, more=more) as gateway,
    ):
        token, other = await gateway.token(), await gateway.token("other")
        writers = []
        for _ in range(8):
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writers.append(writer)
            writer.write(chat(token, {"user": "x" * size}))
            await reader.readuntil(b"\n\n")
        assert gateway.gateway.budget.reserved == 0
        answer = await ask(gateway.port, chat(other, {"user": "x" * 20_000}))
        assert (answer.status, answer.whole) == (200, True)
        for writer in writers:
            writer.transport.abort()


async def test_bodies_that_do_not_come_take_no_memory(serve: Serve) -> None:
    """Two accounts declare ten bodies, of which two fill the budget; a large request of another account is served."""
    size = 200_000
    async with (
        Scripted([CHUNKED + chunk(STREAM) + LAST]) as upstream,
        serve(upstream.base_url, more=f"port: {{body_budget: {11 * size // 5}, drain: 0}}") as gateway,
    ):
        tokens, other = [await gateway.token(name) for name in ("one", "two")], await gateway.token("other")
        writers = []
        for number in range(10):
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writers.append(writer)
            writer.write(chat(tokens[number % 2], {"user": "x" * size})[:-size])
        await wait_until(lambda: gateway.gateway.runner.open == 10)
        assert (await ask(gateway.port, chat(other, {"user": "x" * size}))).status == 200
        for writer in writers:
            writer.transport.abort()


async def test_a_body_for_which_the_memory_ends_while_it_arrives_is_refused(serve: Serve) -> None:
    size = 200_000
    more = f"port: {{body_budget: {3 * size // 2}, drain: 0}}"
    async with Scripted([CHUNKED + chunk(STREAM) + LAST]) as upstream, serve(upstream.base_url, more=more) as gateway:
        budget, request = gateway.gateway.budget, chat(await gateway.token(), {"user": "x" * size})
        cut, whole = [await asyncio.open_connection("127.0.0.1", gateway.port) for _ in range(2)]
        cut[1].write(request[:2000])
        await wait_until(lambda: budget.reserved > 1000)
        whole[1].write(request[: size // 2])
        await wait_until(lambda: budget.reserved > size // 3)
        cut[1].write(request[2000:-1])
        refused = await read_answer(cut[0])
        assert_error(refused, 429, "rate_limit_error", "too_many_concurrent")
        assert refused.headers["connection"] == "close"
        whole[1].write(request[size // 2 :])
        assert (await read_answer(whole[0])).status == 200
        await gateway.gateway.runner.wait_ended()
        assert budget.reserved == 0
        for _, writer in (cut, whole):
            writer.transport.abort()


async def test_an_account_takes_half_of_the_budget_before_the_first_byte(serve: Serve) -> None:
    size = 100_000
    more = f"port: {{body_budget: {5 * size}, drain: 0}}"
    async with Scripted([Hold]) as upstream, serve(upstream.base_url, more=more) as gateway:
        token, other = await gateway.token(), await gateway.token("other")
        writers = []

        async def send(whose: str) -> asyncio.StreamReader:
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writers.append(writer)
            writer.write(chat(whose, {"user": "x" * size}))
            return reader

        await send(token)
        await wait_until(lambda: len(upstream.requests) == 1)
        await send(token)
        await wait_until(lambda: len(upstream.requests) == 2)
        refused = await read_answer(await send(token))
        assert_error(refused, 429, "rate_limit_error", "too_many_concurrent")
        assert "memory" in refused.error["message"]
        await send(other)
        await wait_until(lambda: len(upstream.requests) == 3)
        for writer in writers:
            writer.transport.abort()
        await wait_until(lambda: not gateway.gateway.runner.open)
        assert gateway.gateway.budget.reserved == 0


@pytest.mark.parametrize("size", [300_000])
async def test_an_account_may_always_send_one_body(serve: Serve, size: int) -> None:
    async with (
        Scripted([CHUNKED + chunk(STREAM) + LAST]) as upstream,
        serve(upstream.base_url, more=f"port: {{body_budget: {size + 1000}}}") as gateway,
    ):
        answer = await ask(gateway.port, chat(await gateway.token(), {"user": "x" * size}))
        assert answer.status == 200

"""A stream reaches the caller byte for byte and in whole events, and is charged by its usage."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.fake_upstream import FakeUpstream
from gateway.store.client.client import Client
from gateway.testing import Running, running
from tests.patience import PATIENCE_S
from tests.whole.conftest import Serve, configuration
from tests.whole.raw import Answer, ask, chat, read_answer
from tests.whole.scripted import CHUNKED, HEAD, LAST, Fin, Forever, Scripted, Step, chunk


def event(delta: dict[str, object], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return (
        b"data: " + json.dumps({"id": "c", "object": "chat.completion.chunk", "choices": [choice]}).encode() + b"\n\n"
    )


WORDS = [
    event({"role": "assistant", "content": ""}),
    *(event({"content": f" word{n}"}) for n in range(6)),
    event({}, "stop"),
]
USAGE = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":11,"completion_tokens":6,"total_tokens":17}}\n\n'
DONE = b"data: [DONE]\n\n"
STREAM = b"".join([b": a comment first\n\n", *WORDS, USAGE, DONE])
PASSED = STREAM.replace(USAGE, b"")
CHARGE = 11 * 1 + 6 * 2


async def answered(gateway: Running, token: str, body: dict[str, object] | None = None) -> Answer:
    answer = await ask(gateway.port, chat(token, body))
    await gateway.gateway.runner.wait_ended()
    return answer


async def spent(gateway: Running) -> int:
    account = await gateway.store.accounts.get("tester")
    assert account is not None
    assert (account.held_micros, account.holds) == (0, 0)
    return 5_000_000 - account.balance_micros


async def send_through(script: Sequence[Step], url: str, folder: Path, channel: str = "") -> tuple[Answer, int]:
    async with (
        Scripted(script) as upstream,
        running(configuration(upstream.base_url, channel=channel), folder, url) as gateway,
    ):
        answer = await answered(gateway, await gateway.token())
        return answer, await spent(gateway)


async def test_the_stream_is_byte_identical_but_for_the_usage_chunk(
    store_url: str, client: Client, tmp_path: Path
) -> None:
    answer, charge = await send_through([CHUNKED + chunk(STREAM) + LAST], store_url, tmp_path)
    assert answer.body == PASSED
    assert answer.whole
    assert charge == CHARGE
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert (answer.headers["cache-control"], answer.headers["x-accel-buffering"]) == ("no-cache", "no")


async def test_the_usage_chunk_is_sent_to_a_caller_that_requests_it(serve: Serve) -> None:
    requested: dict[str, object] = {"stream_options": {"include_usage": True}}
    async with Scripted([CHUNKED + chunk(STREAM) + LAST]) as upstream, serve(upstream.base_url) as gateway:
        assert (await answered(gateway, await gateway.token(), requested)).body == STREAM


async def test_with_ask_usage_off_no_usage_is_requested_and_what_comes_is_dropped(serve: Serve) -> None:
    async with (
        Scripted([CHUNKED + chunk(STREAM) + LAST]) as upstream,
        serve(upstream.base_url, channel=", ask_usage: false") as gateway,
    ):
        assert (await answered(gateway, await gateway.token())).body == PASSED
        assert b"stream_options" not in upstream.requests[0]


@pytest.mark.parametrize("step", [1, 7])
async def test_cuts_at_every_offset_change_no_byte_and_split_no_event(serve: Serve, step: int) -> None:
    script: list[Step] = []
    async with Scripted(script) as upstream, serve(upstream.base_url) as gateway:
        token = await gateway.token()
        offsets = range(1, len(STREAM), 5 * step)
        for offset in offsets:
            script[:] = [CHUNKED + chunk(STREAM[:offset]), 0.001, chunk(STREAM[offset:]) + LAST]
            answer = await answered(gateway, token)
            assert answer.body == PASSED
            assert answer.whole
            assert all(piece.endswith(b"\n\n") for piece in answer.pieces)
        assert await spent(gateway) == CHARGE * len(offsets)
        assert upstream.connections == 1


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cuts=st.lists(st.integers(1, len(STREAM) - 1), max_size=12), framing=st.sampled_from(["chunked", "length", "close"])
)
def test_cuts_anywhere_in_any_framing_change_no_byte(
    store_url: str, tmp_path_factory: pytest.TempPathFactory, cuts: list[int], framing: str
) -> None:
    edges = [0, *sorted(set(cuts)), len(STREAM)]
    pieces = [STREAM[start:end] for start, end in itertools.pairwise(edges)]
    heads = {"chunked": CHUNKED, "length": HEAD + b"Content-Length: %d\r\n\r\n" % len(STREAM), "close": HEAD + b"\r\n"}
    script: list[Step] = [heads[framing]]
    for piece in pieces:
        script += [chunk(piece) if framing == "chunked" else piece, 0.0005]
    script.append(LAST if framing == "chunked" else Fin if framing == "close" else b"")

    async def scenario() -> None:
        client = Client.connect(store_url, timeout_s=PATIENCE_S)
        await client.call("FLUSHALL")
        await client.close()
        answer, charge = await send_through(script, store_url, tmp_path_factory.mktemp("cut"))
        assert answer.body == PASSED
        assert answer.whole
        assert charge == CHARGE

    asyncio.run(scenario())


@pytest.mark.parametrize("mode", ["words", "crlf", "usage-beside-finish", "two-usages", "no-done"])
async def test_every_way_of_reporting_usage_is_charged_exactly(
    gateway: Running, upstream: FakeUpstream, mode: str
) -> None:
    upstream.mode = mode
    answer = await answered(gateway, await gateway.token())
    assert answer.whole
    record = await gateway.store.usage.find(answer.headers["x-request-id"])
    assert record is not None
    assert (record.outcome, record.usage_source) == ("completed", "upstream")
    assert await spent(gateway) == record.charge_micros == record.prompt_tokens + 2 * record.completion_tokens


async def test_without_usage_the_charge_is_an_estimate_and_never_zero(gateway: Running, upstream: FakeUpstream) -> None:
    upstream.mode = "no-usage"
    answer = await answered(gateway, await gateway.token())
    record = await gateway.store.usage.find(answer.headers["x-request-id"])
    assert record is not None
    assert record.usage_source == "estimated"
    assert record.completion_tokens > 0
    assert await spent(gateway) == record.charge_micros > 0


async def test_the_model_is_renamed_and_nothing_else_is_changed(gateway: Running, upstream: FakeUpstream) -> None:
    await answered(gateway, await gateway.token(), {"model": "other", "seed": 7, "odd": {"x": [1.50, "é"]}})
    sent = upstream.requests[0]
    body = json.loads(sent.body)
    assert body["model"] == "renamed"
    assert body["stream_options"] == {"include_usage": True}
    assert (body["seed"], body["odd"]) == (7, {"x": [1.50, "é"]})
    assert b"1.5" in sent.body
    assert set(map(str.lower, sent.headers)) == {
        "host", "authorization", "content-type", "accept", "accept-encoding", "user-agent", "content-length",
    }  # fmt: skip


@pytest.mark.parametrize("framed", [lambda raw: raw, chunk], ids=["length", "chunked"])
async def test_a_large_body_reaches_the_upstream_unchanged(
    gateway: Running, upstream: FakeUpstream, framed: Callable[[bytes], bytes]
) -> None:
    given = {"model": "words", "messages": [{"role": "user", "content": "é" * 500_000}], "user": "x" * 100_000, "n": 1}
    raw = json.dumps({**given, "stream": True}, ensure_ascii=False).encode()
    request = chat(await gateway.token(), framed(raw) + (LAST if framed is chunk else b""))
    if framed is chunk:
        request = re.sub(rb"Content-Length: \d+", b"Transfer-Encoding: chunked", request, count=1)
    assert (await ask(gateway.port, request)).status == 200
    sent = json.loads(upstream.requests[0].body)
    assert sent == {**given, "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 100}


async def test_each_event_arrives_before_the_upstream_sends_the_next(serve: Serve) -> None:
    gates = [asyncio.Event() for _ in WORDS]
    script: list[Step] = [CHUNKED]
    for word, gate in zip(WORDS, gates, strict=True):
        script += [chunk(word), Forever(b"", 0.005, until=gate.is_set)]
    async with Scripted([*script, chunk(USAGE + DONE) + LAST]) as upstream, serve(upstream.base_url) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        with closing(writer):
            writer.write(chat(await gateway.token()))
            async with asyncio.timeout(PATIENCE_S):
                await reader.readuntil(b"\r\n\r\n")
                for number, (word, gate) in enumerate(zip(WORDS, gates, strict=True)):
                    assert await reader.readexactly(len(chunk(word))) == chunk(word)
                    assert upstream.sent == len(CHUNKED) + sum(len(chunk(sent)) for sent in WORDS[: number + 1])
                    gate.set()
                assert await reader.readexactly(len(chunk(DONE) + LAST)) == chunk(DONE) + LAST


async def test_two_requests_on_one_connection_are_answered_in_turn(gateway: Running) -> None:
    token = await gateway.token()
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(chat(token) + chat(token))
    first, second = await read_answer(reader), await read_answer(reader)
    writer.close()
    assert first.whole
    assert second.whole
    assert first.headers["x-request-id"] != second.headers["x-request-id"]


@pytest.mark.parametrize("credential", ["x", "ollama", "choices", "chat.comple"])
async def test_a_short_credential_changes_no_byte(
    store_url: str, client: Client, tmp_path: Path, credential: str
) -> None:
    async with FakeUpstream(pace_s=0) as upstream:
        yaml = configuration(upstream.base_url)
        async with running(yaml, tmp_path, store_url) as gateway:
            whole = await answered(gateway, await gateway.token())
        yaml = yaml.replace("channel-credential-4711", credential)
        async with running(yaml, tmp_path, store_url) as gateway:
            token = (await gateway.store.tokens.create("tester")).token
            short = await answered(gateway, token)
    assert b"redacted" not in short.body
    assert len(short.body.split(b"data: ")) == len(whole.body.split(b"data: "))


async def test_the_credential_is_redacted_where_the_upstream_echoes_it(
    gateway: Running, upstream: FakeUpstream
) -> None:
    upstream.mode = "echo-key"
    answer = await answered(gateway, await gateway.token())
    assert answer.status == 200
    assert b"channel-credential" not in answer.body
    assert b"[redacted]" in answer.body

"""A stream reaches the caller byte for byte and in whole events, is charged by its usage, and ends without a wait."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway import Outcome
from gateway.domain.exchange import Outcome as EmptyChoicesOutcome
from gateway.fake_upstream import FakeUpstream
from gateway.store.client.client import Client
from gateway.testing import Running, running
from tests.patience import PATIENCE_S
from tests.place import Place
from tests.whole.aftermath import assert_released, charged, last_end_record, tasks
from tests.whole.conftest import Serve, configuration
from tests.whole.raw import Answer, ask, chat, get, read_answer
from tests.whole.scripted import CHUNKED, HEAD, LAST, Fin, Forever, Hold, Reset, Scripted, Step, chunk


# A stream reaches the caller byte for byte and in whole events, and is charged by its usage.
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


async def send_through(script: Sequence[Step], folder: Path, url: str, channel: str = "") -> tuple[Answer, int]:
    async with (
        Scripted(script) as upstream,
        running(configuration(upstream.base_url, channel=channel), folder, url) as gateway,
    ):
        answer = await answered(gateway, await gateway.token())
        return answer, await spent(gateway)


async def test_the_stream_is_byte_identical_but_for_the_usage_chunk(place: Place) -> None:
    answer, charge = await send_through([CHUNKED + chunk(STREAM) + LAST], *place)
    assert answer.body == PASSED
    assert answer.whole
    assert charge == CHARGE
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert (answer.headers["cache-control"], answer.headers["x-accel-buffering"]) == ("no-cache", "no")


async def test_with_ask_usage_off_no_usage_is_requested_and_what_comes_is_dropped(serve: Serve) -> None:
    async with (
        Scripted([CHUNKED + chunk(STREAM) + LAST]) as upstream,
        serve(upstream.base_url, channel=", ask_usage: false") as gateway,
    ):
        token = await gateway.token()
        assert (await answered(gateway, token)).body == PASSED
        assert b"stream_options" not in upstream.requests[0]
        assert (await answered(gateway, token, ASKED)).body == STREAM
        assert await spent(gateway) == 2 * CHARGE


async def test_cuts_at_every_offset_change_no_byte_and_split_no_event(serve: Serve) -> None:
    script: list[Step] = []
    async with Scripted(script) as upstream, serve(upstream.base_url) as gateway:
        token = await gateway.token()
        offsets = range(1, len(STREAM), 5)
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
        answer, charge = await send_through(script, tmp_path_factory.mktemp("cut"), store_url)
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
    record = (await gateway.store.usage.ask(answer.headers["x-request-id"])).record
    assert record is not None
    assert (record.outcome, record.usage_source) == ("completed", "upstream")
    assert await spent(gateway) == record.charge_micros == record.prompt_tokens + 2 * record.completion_tokens


async def test_without_usage_the_charge_is_an_estimate_and_never_zero(gateway: Running, upstream: FakeUpstream) -> None:
    upstream.mode = "no-usage"
    answer = await answered(gateway, await gateway.token())
    record = (await gateway.store.usage.ask(answer.headers["x-request-id"])).record
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
async def test_a_short_credential_changes_no_byte(place: Place, credential: str) -> None:
    async with FakeUpstream(pace_s=0) as upstream:
        yaml = configuration(upstream.base_url)
        async with running(yaml, *place) as gateway:
            whole = await answered(gateway, await gateway.token())
        yaml = yaml.replace("channel-credential-4711", credential)
        async with running(yaml, *place) as gateway:
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


# When a stream is over: the caller does not wait for more than its answer, and loses nothing of it.
FINISHED = b"".join(WORDS)
LONG_IDLE = f", timers: {{idle: {10 * PATIENCE_S}, total: {20 * PATIENCE_S}}}"
"""Longer than a test waits."""


def choice(index: int, text: str, finish: str | None = None) -> bytes:
    whole = {"choices": [{"index": index, "delta": {"content": text}, "finish_reason": finish}]}
    return b"data: %b\n\n" % json.dumps(whole).encode()


@pytest.mark.parametrize(
    "rest",
    [[Hold], [Forever(chunk(b": x\n\n"), 0.05)], [Forever(chunk(b"x" * 5000), 0.001)]],
    ids=["silence", "comments", "more and more"],
)
async def test_after_done_the_caller_has_its_end_and_the_upstream_is_closed(rest: list[Step], serve: Serve) -> None:
    async with (
        Scripted([CHUNKED + chunk(STREAM), *rest]) as upstream,
        serve(upstream.base_url, channel=LONG_IDLE) as gateway,
    ):
        token = await gateway.token()
        before = tasks()
        answer = await ask(gateway.port, chat(token))
        assert answer.whole
        assert answer.body.replace(b": x\n\n", b"") == PASSED  # a comment may come with it
        assert await charged(gateway) == CHARGE
        assert (await last_end_record(gateway)).outcome is Outcome.COMPLETED
        await assert_released(gateway, upstream, before, 0)


@pytest.mark.parametrize("pause", [0.0, 0.1])
async def test_a_body_that_ends_soon_after_done_leaves_the_connection_usable(pause: float, serve: Serve) -> None:
    async with Scripted([CHUNKED + chunk(STREAM), pause, LAST]) as upstream, serve(upstream.base_url) as gateway:
        token = await gateway.token()
        for _ in range(3):
            assert (await ask(gateway.port, chat(token))).body == PASSED
            await asyncio.sleep(0.3)
        assert (len(upstream.requests), upstream.connections) == (3, 1)


@pytest.mark.parametrize("end", [Reset, Fin])
async def test_a_break_after_done_changes_nothing(end: type[Fin] | type[Reset], serve: Serve) -> None:
    async with Scripted([CHUNKED + chunk(STREAM), end]) as upstream, serve(upstream.base_url) as gateway:
        token = await gateway.token()
        before = tasks()
        answer = await ask(gateway.port, chat(token))
        assert (answer.body, answer.whole) == (PASSED, True)
        await assert_released(gateway, upstream, before, 0)


async def test_after_the_finish_and_the_usage_two_seconds_of_silence_end_the_answer(serve: Serve) -> None:
    async with (
        Scripted([CHUNKED + chunk(FINISHED + USAGE), Hold]) as upstream,
        serve(upstream.base_url, channel=LONG_IDLE) as gateway,
    ):
        answer = await ask(gateway.port, chat(await gateway.token()))
        assert (answer.body, answer.whole) == (FINISHED, True)
        assert (await last_end_record(gateway)).outcome is Outcome.COMPLETED
        assert await charged(gateway) == CHARGE


async def test_done_that_comes_a_second_after_the_usage_is_passed_on(serve: Serve) -> None:
    script: list[Step] = [CHUNKED + chunk(FINISHED + USAGE), 1.0, chunk(DONE), Hold]
    async with Scripted(script) as upstream, serve(upstream.base_url, channel=LONG_IDLE) as gateway:
        answer = await ask(gateway.port, chat(await gateway.token()))
        assert (answer.body, answer.whole) == (PASSED.removeprefix(b": a comment first\n\n"), True)


@pytest.mark.parametrize("middle", [b"", USAGE], ids=["no usage", "usage"])
async def test_the_finish_of_one_choice_does_not_end_the_others(middle: bytes, serve: Serve) -> None:
    first = choice(0, "a") + choice(1, "b") + choice(0, "", "stop")
    last = choice(1, "c") + choice(1, "", "stop")
    script: list[Step] = [CHUNKED + chunk(first + middle), 3.0, chunk(last + USAGE + DONE) + LAST]
    async with Scripted(script) as upstream, serve(upstream.base_url, channel=LONG_IDLE) as gateway:
        answer = await ask(gateway.port, chat(await gateway.token(), {"n": 2}))
        assert (answer.body, answer.whole) == (first + last + DONE, True)
        assert await charged(gateway) == CHARGE


async def test_without_usage_the_caller_waits_for_done_longer_than_two_seconds(serve: Serve) -> None:
    script: list[Step] = [CHUNKED + chunk(FINISHED), 3.0, chunk(USAGE + DONE) + LAST]
    async with Scripted(script) as upstream, serve(upstream.base_url) as gateway:
        answer = await ask(gateway.port, chat(await gateway.token()))
        assert (answer.body, answer.whole) == (FINISHED + DONE, True)
        assert await charged(gateway) == CHARGE


@pytest.mark.parametrize(
    ("script", "channel", "exact"),
    [
        ([CHUNKED + chunk(FINISHED), 1.0, chunk(USAGE), Hold], "", True),
        ([CHUNKED + chunk(FINISHED), 1.0, chunk(USAGE), Hold], ", on_caller_gone: drain, drain_limit: 0.1", True),
        ([CHUNKED + chunk(FINISHED), 3.0, chunk(USAGE), Hold], ", on_caller_gone: drain, drain_limit: 9", True),
        ([CHUNKED + chunk(FINISHED), Hold], "", False),
        ([CHUNKED + chunk(FINISHED), 0.2, Reset], "", False),
    ],
    ids=["usage soon", "a short drain", "a long drain", "no usage", "a break"],
)
async def test_after_the_finish_the_upstream_is_read_on_for_usage_when_the_caller_leaves(
    script: list[Step], channel: str, exact: bool, serve: Serve
) -> None:
    async with Scripted(script) as upstream, serve(upstream.base_url, channel=LONG_IDLE + channel) as gateway:
        token = await gateway.token()
        before = tasks()
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(chat(token))
        async with asyncio.timeout(PATIENCE_S):
            await reader.readuntil(b'"stop"')
        writer.close()
        record = await last_end_record(gateway)
        assert record.outcome is Outcome.COMPLETED
        assert (record.usage_source == "upstream", await charged(gateway) == CHARGE) == (exact, exact)
        await assert_released(gateway, upstream, before, 0)


async def test_a_caller_that_leaves_between_two_choices_leaves_an_unfinished_answer(serve: Serve) -> None:
    script: list[Step] = [CHUNKED + chunk(choice(0, "a") + choice(1, "b") + choice(0, "", "stop")), Hold]
    async with Scripted(script) as upstream, serve(upstream.base_url, channel=LONG_IDLE) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(chat(await gateway.token(), {"n": 2}))
        async with asyncio.timeout(PATIENCE_S):
            await reader.readuntil(b'"stop"')
        writer.close()
        assert (await last_end_record(gateway)).outcome is Outcome.CALLER_GONE


async def test_an_error_event_ends_the_stream_without_waiting_for_the_upstream(serve: Serve) -> None:
    failing = b'data: {"error":{"message":"no"}}\n\n'
    async with (
        Scripted([CHUNKED + chunk(FINISHED), 0.01, chunk(failing), Hold]) as upstream,
        serve(upstream.base_url, channel=LONG_IDLE) as gateway,
    ):
        answer = await ask(gateway.port, chat(await gateway.token()))
        assert (answer.body, answer.whole) == (FINISHED + failing, False)


async def test_an_estimate_is_never_above_the_ceiling_of_the_model(serve: Serve) -> None:
    body = event({"content": "x" * 4000}) + event({}, "stop") + DONE
    async with Scripted([CHUNKED + chunk(body) + LAST]) as upstream, serve(upstream.base_url) as gateway:
        token = await gateway.token()
        for asked, ceiling in (({}, 100), ({"n": 3}, 300), ({"n": 3, "max_tokens": 5}, 15)):
            assert (await ask(gateway.port, chat(token, asked))).whole
            assert (await last_end_record(gateway)).completion_tokens == ceiling


async def test_usage_that_the_clean_end_completes_is_charged(serve: Serve) -> None:
    """A carriage return at the end may be half of a line end, so that the last event is complete only at the end."""
    body = (FINISHED + USAGE).replace(b"\n", b"\r")
    async with Scripted([CHUNKED + chunk(body) + LAST]) as upstream, serve(upstream.base_url) as gateway:
        assert (await ask(gateway.port, chat(await gateway.token()))).whole
        await last_end_record(gateway)
        assert await charged(gateway) == CHARGE


# Chunks without a choice: they are dropped unless the channel passes them on, and a stream does not begin with them.
AZURE = (
    b'data: {"choices":[],"created":0,"id":"","model":"","object":"","prompt_filter_results":[{"prompt_index":0,'
    b'"content_filter_results":{"hate":{"filtered":false,"severity":"safe"}}}]}\n\n'
)
NO_CHOICES = b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m"}\n\n'
EMPTY = (AZURE, NO_CHOICES, AZURE.replace(b"[]", b"null", 1), AZURE.replace(b":[]", b": []", 1))
TEXT = b"".join(WORDS)
ASKED: dict[str, object] = {"stream_options": {"include_usage": True}}


@asynccontextmanager
async def playing(
    scripts: Sequence[Sequence[Step]], folder: Path, url: str, channel: str = "", second: str = ""
) -> AsyncIterator[tuple[Running, str]]:
    """Yield a gateway in front of an upstream that plays the scripts, and a token. `second`: a channel behind the first."""
    async with Scripted(*scripts) as upstream:
        yaml = configuration(upstream.base_url, channel=channel)
        if second:
            yaml = yaml.replace("\nmodels:", f'\n  spare: {{base_url: "{second}"}}\nmodels:', 1)
            yaml = yaml.replace("channels: [fake]}", "channels: [fake, {use: spare, priority: 1}]}", 1)
        async with running(yaml, folder, url) as gateway:
            yield gateway, await gateway.token()


async def test_they_are_dropped_wherever_they_are(place: Place) -> None:
    script: list[Step] = []
    async with playing([script], *place) as (gateway, token):
        spent = 0
        for empty in EMPTY:
            for body, passed in (({}, TEXT + DONE), (ASKED, TEXT + USAGE + DONE)):
                sent = empty + WORDS[0] + empty + b"".join(WORDS[1:]) + empty + USAGE + DONE
                for steps in ([chunk(sent)], [chunk(sent[: len(empty)]), 0.01, chunk(sent[len(empty) :])]):
                    script[:] = [CHUNKED, *steps, LAST]
                    answer = await ask(gateway.port, chat(token, body))
                    assert (answer.status, answer.whole, answer.body) == (200, True, passed)
                    record = await last_end_record(gateway)
                    assert (record.outcome, record.events) == (EmptyChoicesOutcome.COMPLETED, passed.count(b"data:"))
                    spent += CHARGE
                    assert await charged(gateway) == spent


async def test_a_channel_may_pass_them_on(place: Place) -> None:
    sent = AZURE + TEXT + NO_CHOICES + USAGE + DONE
    script = [CHUNKED + chunk(sent) + LAST]
    async with playing([script], *place, ", empty_choices: pass") as (gateway, token):
        assert (await ask(gateway.port, chat(token))).body == sent.replace(USAGE, b"")
        assert (await ask(gateway.port, chat(token, ASKED))).body == sent
        assert await charged(gateway) == 2 * CHARGE


@pytest.mark.parametrize(
    "after",
    [[chunk(b'data: {"error":{"message":"filtered","type":"x","param":null,"code":"x"}}\n\n') + LAST], [LAST], [Hold]],
    ids=["error", "end", "silence"],
)
async def test_another_channel_answers_where_nothing_else_came(place: Place, after: list[Step]) -> None:
    first: list[Step] = [CHUNKED + chunk(AZURE), 0.01, *after]
    async with Scripted([CHUNKED + chunk(TEXT + USAGE + DONE) + LAST]) as spare:
        timers = ", timers: {first_byte: 0.5}"
        async with playing([first], *place, timers, spare.base_url) as (gateway, token):
            answer = await ask(gateway.port, chat(token))
            assert (answer.status, answer.whole, answer.body) == (200, True, TEXT + DONE)
            record = await last_end_record(gateway)
            assert (record.outcome, record.channel) == (EmptyChoicesOutcome.COMPLETED, "spare")
            assert len(record.attempts) == 2


async def test_the_first_byte_is_that_of_the_first_choice(place: Place) -> None:
    script: list[Step] = [CHUNKED + chunk(AZURE), 0.3, chunk(TEXT + USAGE + DONE) + LAST]
    async with playing([script], *place) as (gateway, token):
        began = time.monotonic()
        await ask(gateway.port, chat(token))
        record = await last_end_record(gateway)
        assert record.first_byte_ms is not None
        assert 290 <= record.first_byte_ms <= (time.monotonic() - began) * 1000


async def test_upstreams_that_send_nothing_else_are_ended(place: Place) -> None:
    script: list[Step] = [CHUNKED + chunk(AZURE) + LAST]
    async with playing([script], *place) as (gateway, token):
        answer = await ask(gateway.port, chat(token))
        assert (answer.status, answer.error["code"]) == (502, "upstream_error")
        assert await charged(gateway) == 0


async def test_every_example_on_the_web_works(place: Place) -> None:
    """Take the first choice of each chunk without looking, as the interface promises that it may."""
    script: list[Step] = [CHUNKED + chunk(AZURE), 0.01, chunk(TEXT + AZURE + USAGE + DONE) + LAST]
    async with playing([script], *place) as (gateway, token):
        async with openai.AsyncOpenAI(base_url=gateway.base_url, api_key=token, max_retries=0) as library:
            stream = await library.chat.completions.create(
                model="words", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            text = "".join([part.choices[0].delta.content or "" async for part in stream])
        assert text == "".join(json.loads(word[6:])["choices"][0]["delta"].get("content", "") for word in WORDS)


# Upstreams that send odd or very many events: other callers are served meanwhile, and no byte is changed.
TURNS_TEXT = b'data: {"choices":[{"index":0,"delta":{"content":"word "}}]}\n\n'
FINISH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
END = FINISH + b"data: [DONE]\n\n"
SHAPES = {
    "comments": b":\n\n",
    "blank-lines": b"\n",
    "carriage-returns": b"\r",
    "parsed": b'data: {"choices":[{}]}\n\n',
    "windows": TURNS_TEXT.replace(b"\n", b"\r\n"),
    "mixed": TURNS_TEXT
    + b": ping\n\n"
    + TURNS_TEXT.replace(b"\n", b"\r\n")
    + b'id: 1\n\ndata: {"choices":[{}]}\r\n\r\n',
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("framing", ["chunked", "until-close", "in-two"])
async def test_a_long_read_is_relayed_whole_and_in_order(shape: str, framing: str, serve: Serve) -> None:
    unit = SHAPES[shape]
    body = TURNS_TEXT + unit * (60_000 // len(unit) // 2 * 2) + END
    scripts: dict[str, list[Step]] = {
        "chunked": [CHUNKED + chunk(body) + LAST],
        "until-close": [HEAD + b"\r\n" + body, Fin],
        "in-two": [CHUNKED + chunk(body[:5000]), 0.01, chunk(body[5000:]), 0.01, LAST],
    }
    async with Scripted(scripts[framing]) as upstream, serve(upstream.base_url) as gateway:
        token = await gateway.token()
        async with asyncio.timeout(PATIENCE_S):
            while upstream.connections == len(upstream.requests):  # until one is used again
                answer = await ask(gateway.port, chat(token))
                assert (answer.status, answer.whole) == (200, True)
                assert answer.body == body
                if framing == "until-close":
                    break


async def test_other_callers_are_served_beside_streams_of_events_that_must_be_parsed(serve: Serve) -> None:
    flood: list[Step] = [CHUNKED, Forever(chunk(TURNS_TEXT + b'data: {"choices":[{}]}\n\n' * 7000))]
    async with Scripted(flood) as upstream, serve(upstream.base_url) as gateway:
        token = await gateway.token()
        floods = [asyncio.create_task(ask(gateway.port, chat(token))) for _ in range(4)]
        await asyncio.wait_for(upstream.arrived.wait(), PATIENCE_S)
        longest = 0.0
        loop = asyncio.get_running_loop()
        for _ in range(20):
            began = loop.time()
            assert (await ask(gateway.port, get("/healthz"))).status == 200
            longest = max(longest, loop.time() - began)
        for task in floods:
            task.cancel()
        await asyncio.wait(floods)
    assert longest < 5

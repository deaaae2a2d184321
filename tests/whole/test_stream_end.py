"""When a stream is over: the caller does not wait for more than its answer, and loses nothing of it."""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway import Outcome
from tests.patience import PATIENCE_S
from tests.whole.aftermath import assert_released, charged, last_end_record, tasks
from tests.whole.conftest import Serve
from tests.whole.raw import ask, chat
from tests.whole.scripted import CHUNKED, LAST, Fin, Forever, Hold, Reset, Scripted, Step, chunk
from tests.whole.test_stream import CHARGE, DONE, PASSED, STREAM, USAGE, WORDS, event

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

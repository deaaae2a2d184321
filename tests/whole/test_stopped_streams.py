"""A plugin ends a stream: the caller has what came before, an error event and no end; it is charged for that, and recorded."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway import Exchange, Outcome, Plugin, Refused
from gateway.chat.events import EventStream
from gateway.testing import Running, running
from gateway.usage.record import Record
from tests.place import Place
from tests.whole.aftermath import assert_released, charged, last_end_record, tasks
from tests.whole.conftest import CHAIN, configuration
from tests.whole.raw import Answer, ask, chat
from tests.whole.scripted import CHUNKED, LAST, Scripted, Step, chunk
from tests.whole.test_stream import CHARGE, PASSED, STREAM, USAGE, WORDS, event

STOPS = "{use: stop-words, with: {words: [forbidden, 'two words']}}"
FINISH = event({}, "stop") + USAGE + b"data: [DONE]\n\n"
ROLE = event({"role": "assistant", "content": ""})


class Fails(Plugin):
    """Fails at the text FAIL, and raises its own refusal at RAISE."""

    def on_chunk(self, exchange: Exchange, chunk: bytes) -> None:
        if b"FAIL" in chunk:
            raise ZeroDivisionError
        if b"RAISE" in chunk:
            raise Refused(403, "not_here", "Not from here.")


@asynccontextmanager
async def playing(
    scripts: Sequence[Sequence[Step]], folder: Path, url: str, plugins: Sequence[str] = (STOPS,)
) -> AsyncIterator[tuple[Running, str, Scripted]]:
    lines = "".join(f"  - {plugin}\n" for plugin in plugins)
    chain = CHAIN.replace("  - use: quota\n", f"{lines}  - use: quota\n")
    more = "port: {allow_non_streaming: true}"
    async with (
        Scripted(*scripts) as upstream,
        running(configuration(upstream.base_url, chain=chain, more=more), folder, url) as gateway,
    ):
        yield gateway, await gateway.token(), upstream


def script(*reads: bytes) -> list[Step]:
    """Return an answer whose reads are told apart by a pause."""
    steps: list[Step] = [CHUNKED + chunk(reads[0])]
    for read in reads[1:]:
        steps += [0.05, chunk(read)]
    return [*steps, LAST]


def error_of(answer: Answer) -> dict[str, Any]:
    last = answer.body.rpartition(b"data: ")[2]
    error: dict[str, Any] = json.loads(last)["error"]
    return error


def tokens(delivered: bytes) -> int:
    stream = EventStream(drop_usage=False)
    stream.feed(delivered)
    return stream.output.tokens()


def assert_stopped(answer: Answer, record: Record, delivered: bytes) -> None:
    assert not answer.whole
    assert answer.body.startswith(delivered + b'data: {"error":')
    assert b"[DONE]" not in answer.body
    assert error_of(answer)["code"] == record.error_code == "content_stopped"
    assert (record.outcome, record.refused_by, record.status) == (Outcome.STOPPED, "stop-words", 200)
    assert record.completion_tokens == tokens(delivered)
    assert record.charge_micros == record.prompt_tokens + 2 * record.completion_tokens


async def test_a_word_is_caught_before_its_last_part_however_it_is_cut(place: Place) -> None:
    first, second = event({"content": "this is for"}), event({"content": "bidden fruit"})
    before = ROLE + event({"content": "well, "}) + first
    call = [{"index": 0, "function": {"name": "f", "arguments": '{"a":"FORBID'}}]
    rest = [{"index": 0, "function": {"arguments": 'DEN"}'}}]
    in_call = ROLE + event({"tool_calls": call})
    refusal = ROLE + event({"refusal": "No two"})
    cases: list[tuple[bytes, list[Step]]] = [
        (before, script(before, second, FINISH)),
        (before, script(before + second + FINISH)),
        (before, script(before[:-30], before[-30:] + second[:20], second[20:] + FINISH)),
        (in_call, script(in_call, event({"tool_calls": rest}) + FINISH)),
        (refusal, script(refusal, event({"refusal": " words"}) + FINISH)),
    ]
    async with playing([steps for _, steps in cases], *place) as (gateway, token, _):
        running_before, total = tasks(), 0
        for delivered, _ in cases:
            answer = await ask(gateway.port, chat(token))
            record = await last_end_record(gateway)
            assert_stopped(answer, record, delivered)
            total += record.charge_micros
            assert await charged(gateway) == total
        await assert_released(gateway, None, running_before, 0)


async def test_several_choices_are_told_apart(place: Place) -> None:
    def of(index: int, text: str) -> bytes:
        return b"data: %b\n\n" % json.dumps({"choices": [{"index": index, "delta": {"content": text}}]}).encode()

    mixed = of(0, "for") + of(1, "bidden") + of(0, "tune ") + of(1, " for")
    done = b"".join(event_end(index) for index in (0, 1)) + USAGE + b"data: [DONE]\n\n"
    async with playing([script(mixed + done), script(mixed, of(1, "bidden"), done)], *place) as (
        gateway,
        token,
        _,
    ):
        assert (await ask(gateway.port, chat(token, {"n": 2}))).whole is True
        assert (await last_end_record(gateway)).usage_source == "upstream"
        assert_stopped(await ask(gateway.port, chat(token, {"n": 2})), await last_end_record(gateway), mixed)


def event_end(index: int) -> bytes:
    return b"data: %b\n\n" % json.dumps({"choices": [{"index": index, "delta": {}, "finish_reason": "stop"}]}).encode()


async def test_before_the_first_byte_the_caller_gets_an_error_with_a_status(place: Place) -> None:
    async with playing([script(event({"content": "forbidden"}), FINISH), script(STREAM)], *place) as (
        gateway,
        token,
        _,
    ):
        answer = await ask(gateway.port, chat(token))
        assert (answer.status, answer.error["code"]) == (400, "content_stopped")
        record = await last_end_record(gateway)
        assert (record.outcome, record.refused_by, record.error_code) == (
            Outcome.STOPPED,
            "stop-words",
            "content_stopped",
        )
        assert (record.completion_tokens, record.first_byte_ms, record.status) == (0, None, 400)
        assert record.charge_micros == record.prompt_tokens > 0
        spent = await charged(gateway)

        whole = await ask(gateway.port, chat(token))
        assert whole.whole and whole.body == PASSED
        await last_end_record(gateway)
        assert await charged(gateway) == spent + CHARGE


async def test_what_is_held_back_to_the_end_is_seen_too(place: Place) -> None:
    """The end of an event by carriage returns is only seen with the end of the answer."""
    last = event({"content": "forbidden"}, "stop").rstrip() + b"\r\r"
    async with playing([script(ROLE, last)], *place) as (gateway, token, _):
        assert_stopped(await ask(gateway.port, chat(token)), await last_end_record(gateway), ROLE)


@pytest.mark.parametrize("ignored", [False, True])
async def test_a_plugin_that_raises_ends_the_stream_unless_it_is_ignored(ignored: bool, place: Place) -> None:
    use = f"{{use: 'tests.whole.test_stopped_streams:Fails', name: fails{', on_error: ignore' * ignored}}}"
    failing, raising = event({"content": "FAIL"}), event({"content": "RAISE"})
    scripts = [script(WORDS[0], failing, FINISH), script(WORDS[0], raising, FINISH)]
    async with playing(scripts, *place, [use]) as (gateway, token, _):
        answer, record = await ask(gateway.port, chat(token)), await last_end_record(gateway)
        if ignored:
            assert answer.whole
            assert record.outcome is Outcome.COMPLETED
        else:
            assert answer.body.startswith(WORDS[0] + b'data: {"error":') and not answer.whole
            assert error_of(answer)["code"] == record.error_code == "internal_error"
            assert (record.outcome, record.refused_by) == (Outcome.INTERNAL_ERROR, "fails")
        answer, record = await ask(gateway.port, chat(token)), await last_end_record(gateway)
        assert answer.body.startswith(WORDS[0] + b'data: {"error":') and not answer.whole
        assert (error_of(answer)["code"], error_of(answer)["message"]) == ("not_here", "Not from here.")
        assert (record.outcome, record.refused_by, record.error_code) == (Outcome.STOPPED, "fails", "not_here")


class KeepsAll(Plugin):
    """Ends a stream at its end, and lets all of it pass."""

    def on_chunk(self, exchange: Exchange, chunk: bytes) -> None:
        if b"[DONE]" in chunk:
            exchange.stop(Refused(400, "content_stopped", "Not whole."), keep=len(chunk))


async def test_an_answer_that_a_plugin_ends_at_its_end_is_not_told_to_be_whole(place: Place) -> None:
    async with playing([script(STREAM)], *place, ["use: tests.whole.test_stopped_streams:KeepsAll"]) as (
        gateway,
        token,
        _,
    ):
        answer = await ask(gateway.port, chat(token))
        assert error_of(answer)["code"] == "content_stopped"
        assert b"[DONE]" not in answer.body
        assert not answer.whole
        assert (await last_end_record(gateway)).outcome is Outcome.STOPPED

"""A plugin that answers with events: the caller gets them as from an upstream, and is charged by the plugin's rule."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway import Caller, Exchange, Operation, Outcome, Plugin, Refused, Reply, Usage
from gateway.proxy import plugin_streams
from gateway.testing import Running, running
from tests.patience import wait_until
from tests.place import Place
from tests.whole.aftermath import assert_released, charged, last_end_record, tasks
from tests.whole.conftest import CHAIN, Serve, configuration
from tests.whole.raw import Answer, ask, chat
from tests.whole.scripted import CHUNKED, LAST, Hold, Scripted, chunk
from tests.whole.test_stopped_streams import STOPS, error_of, tokens
from tests.whole.test_stream import CHARGE, DONE, PASSED, STREAM, USAGE, WORDS, event

CLOSED: list[str] = []
"""How the iterators of the requests so far were left."""
TALK = b"".join(WORDS)
AFTER = (
    event({"content": "more " * 1000}) * 30 + USAGE.replace(b'"completion_tokens":6', b'"completion_tokens":999') + DONE
)
"""What follows `[DONE]`."""


class Answers(Plugin):
    """Answers as the header `x-answer` says."""

    requires = (Caller,)

    async def on_request(self, exchange: Exchange) -> Reply | None:
        how = exchange.request.headers.get("x-answer", "")
        if not how or exchange.request.operation is not Operation.CHAT:
            return None
        usage = Usage(11, 600) if "cut" in how else Usage(11, 6) if "given" in how else None
        return Reply(
            events=play(how),
            headers={"x-by": "answers"},
            usage=usage,
            charge="none" if "free" in how else "as-upstream",
        )


async def play(how: str) -> AsyncIterator[bytes]:
    try:
        if "refused-at-once" in how:
            raise Refused(409, "not_now", "Not now.")
        if "fails-at-once" in how:
            raise ZeroDivisionError
        yield b": a comment first\n\n"
        for word in WORDS[:4]:
            yield word
        if "hangs" in how:
            await asyncio.Event().wait()
        if "refused" in how:
            raise Refused(409, "not_now", "Not now.")
        if "fails" in how:
            raise ZeroDivisionError
        if "ends" in how:
            return
        if "text" in how:
            yield "text"  # type: ignore[misc]
        if "word" in how:
            yield event({"content": "forbid"})
            yield event({"content": "den"})
        while "floods" in how:
            yield event({"content": "x" * 60_000})
        rest = b"".join(WORDS[4:]) + (USAGE if "reported" in how else b"") + DONE
        if "beside" in how:
            rest += AFTER
        yield rest[:50]
        yield rest[50:]
        if "after" in how:
            yield AFTER
            yield AFTER
        if "late" in how:
            raise ZeroDivisionError if "failure" in how else Refused(409, "too_late", "Too late.")
        if "lingers" in how:
            await asyncio.Event().wait()
        CLOSED.append("whole")
    except GeneratorExit:
        CLOSED.append("closed")
        raise
    except asyncio.CancelledError:
        CLOSED.append("cancelled")
        raise


@pytest.fixture
async def gateway(serve: Serve) -> AsyncIterator[Running]:
    CLOSED.clear()
    answers = f"  - {STOPS}\n  - use: quota\n  - {{use: 'tests.whole.test_event_replies:Answers', name: answers}}\n"
    chain = CHAIN.replace("  - use: quota\n", answers)
    async with serve("http://127.0.0.1:1/v1", chain=chain, more="port: {allow_non_streaming: true}") as whole:
        yield whole


async def answered(gateway: Running, token: str, how: str, **body: object) -> Answer:
    return await ask(gateway.port, chat(token, body, headers={"x-answer": how}))


async def test_the_caller_gets_the_events_and_is_charged_by_the_rule_of_the_plugin(gateway: Running) -> None:
    token, before = await gateway.token(), tasks()
    expected = [
        ("free", 0, "none"),
        ("free given", 0, "none"),
        ("given", CHARGE, "upstream"),
        ("reported", CHARGE, "upstream"),
    ]
    for how, charge, source in expected:
        spent = await charged(gateway)
        answer, record = await answered(gateway, token, how), await last_end_record(gateway)
        assert (answer.status, answer.whole, answer.body) == (200, True, PASSED)
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-by"] == "answers"
        assert (record.outcome, record.answered_by, record.attempts) == (Outcome.COMPLETED, "answers", [])
        assert (record.charge_micros, record.usage_source) == (charge, source)
        assert await charged(gateway) == spent + charge
        assert record.events == 9 and record.bytes == len(PASSED) and record.first_byte_ms is not None
    estimated = await answered(gateway, token, "estimated")
    record = await last_end_record(gateway)
    assert estimated.whole
    assert (record.usage_source, record.charge_micros) == (
        "estimated",
        record.prompt_tokens + 2 * record.completion_tokens,
    )
    asked = await answered(gateway, token, "reported", stream_options={"include_usage": True})
    assert USAGE in asked.body
    assert set(CLOSED) == {"whole"}
    await assert_released(gateway, None, before, 0)


@pytest.mark.parametrize("how", ["beside", "after", "beside after", "late refusal", "late failure", "lingers"])
async def test_what_follows_the_end_reaches_nobody_and_is_not_charged(
    gateway: Running, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(plugin_streams, "CLOSE_S", 0.2)
    token, before = await gateway.token(), tasks()
    for charge, source in (("reported", "upstream"), ("given", "upstream"), ("estimated", "estimated")):
        plain, end = await answered(gateway, token, charge), await last_end_record(gateway)
        answer, record = await answered(gateway, token, f"{charge} {how}"), await last_end_record(gateway)
        assert answer.whole and answer.body == plain.body == PASSED
        assert (record.outcome, record.usage_source, record.charge_micros) == (
            Outcome.COMPLETED,
            source,
            end.charge_micros,
        )
        assert (record.events, record.bytes) == (end.events, end.bytes)
        left = "closed" if "after" in how else "cancelled" if "lingers" in how else None
        assert CLOSED[-1] == left or "beside" in how or "late" in how
    await assert_released(gateway, None, before, 0)


async def test_a_caller_that_does_not_stream_gets_the_answer_in_one_piece(serve: Serve) -> None:
    chain = CHAIN + "  - {use: 'tests.whole.test_event_replies:Answers', name: answers}\n"
    async with serve("http://127.0.0.1:1/v1", chain=chain, more="port: {allow_non_streaming: true}") as gateway:
        token = await gateway.token()
        answer = await answered(gateway, token, "reported", stream=False)
        assert (answer.status, answer.headers["content-type"], answer.whole) == (200, "application/json", True)
        whole = json.loads(answer.body)
        assert whole["choices"][0]["message"]["content"] == "".join(f" word{number}" for number in range(6))
        assert whole["usage"]["completion_tokens"] == 6
        record = await last_end_record(gateway)
        assert (record.outcome, record.charge_micros, record.answered_by) == (Outcome.COMPLETED, CHARGE, "answers")
        for how in ("fails", "ends", "text"):
            answer = await answered(gateway, token, how, stream=False)
            assert (answer.status, answer.error["code"]) == (500, "internal_error")
            assert (await last_end_record(gateway)).charge_micros == 0
        assert (await answered(gateway, token, "refused", stream=False)).error["code"] == "not_now"


async def test_a_failing_iterator_is_an_error_before_the_first_byte_and_an_error_event_after_it(
    gateway: Running,
) -> None:
    token = await gateway.token()
    for how, status, code, outcome in (
        ("fails-at-once", 500, "internal_error", Outcome.INTERNAL_ERROR),
        ("refused-at-once", 409, "not_now", Outcome.REFUSED),
    ):
        answer, record = await answered(gateway, token, how), await last_end_record(gateway)
        assert (answer.status, answer.error["code"]) == (status, code)
        assert (record.outcome, record.refused_by, record.charge_micros) == (outcome, "answers", 0)
    delivered = b": a comment first\n\n" + b"".join(WORDS[:4])
    for how, code, outcome in (
        ("fails", "internal_error", Outcome.INTERNAL_ERROR),
        ("ends", "internal_error", Outcome.INTERNAL_ERROR),
        ("text", "internal_error", Outcome.INTERNAL_ERROR),
        ("refused", "not_now", Outcome.STOPPED),
        ("word", "content_stopped", Outcome.STOPPED),
    ):
        answer, record = await answered(gateway, token, f"{how} given cut"), await last_end_record(gateway)
        assert answer.body.startswith(delivered) and not answer.whole, how
        assert (error_of(answer)["code"], record.error_code) == (code, code), how
        assert (record.outcome, record.status) == (outcome, 200)
        assert record.refused_by == ("stop-words" if how == "word" else "answers")
        assert record.charge_micros == 11 + 2 * record.completion_tokens
        more = event({"content": "forbid"}) if how == "word" else b""
        assert record.completion_tokens == tokens(delivered + more)


@pytest.mark.parametrize("how", ["hangs", "floods"])
async def test_the_iterator_is_closed_when_the_caller_leaves(gateway: Running, how: str) -> None:
    token, before = await gateway.token(), tasks()
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(chat(token, {"max_tokens": 50}, headers={"x-answer": how}))
    await reader.readuntil(b"word0")
    if how == "floods":
        await wait_until(lambda: any(stream.unsent for stream in gateway.gateway.runner.failover.relays))
    writer.close()
    record = await last_end_record(gateway)
    assert record.outcome is Outcome.CALLER_GONE
    assert record.charge_micros == record.prompt_tokens + 2 * record.completion_tokens
    assert record.completion_tokens == (50 if how == "floods" else tokens(b"".join(WORDS[:4])))
    await wait_until(lambda: bool(CLOSED))
    assert ["cancelled" if how == "hangs" else "closed"] == CLOSED
    await assert_released(gateway, None, before, 0)


async def test_a_gateway_that_stops_ends_the_answer(gateway: Running) -> None:
    token = await gateway.token()
    asking = asyncio.ensure_future(answered(gateway, token, "hangs"))
    await wait_until(lambda: any(stream.events.events for stream in gateway.gateway.runner.failover.relays))
    gateway.gateway.runner.failover.stop_relays()
    answer = await asking
    assert (answer.whole, error_of(answer)["code"]) == (False, "service_unavailable")
    assert (await last_end_record(gateway)).outcome is Outcome.STOPPED


@asynccontextmanager
async def with_a_cache(serve: Serve, settings: str = "") -> AsyncIterator[tuple[Running, Scripted]]:
    chain = CHAIN + f"  - {{use: answer-cache, with: {{{settings}}}}}\n"
    async with (
        Scripted([CHUNKED + chunk(STREAM[:300]), 0.05, chunk(STREAM[300:]) + LAST]) as upstream,
        serve(upstream.base_url, chain=chain) as gateway,
    ):
        yield gateway, upstream


async def test_a_cached_answer_is_the_upstreams_byte_for_byte(serve: Serve) -> None:
    async with with_a_cache(serve) as (gateway, upstream):
        token = await gateway.token()
        zero = {"temperature": 0}
        first = await ask(gateway.port, chat(token, zero))
        await last_end_record(gateway)
        assert (first.body, "x-answer-cache" in first.headers) == (PASSED, False)
        again = await ask(gateway.port, chat(token, zero))
        record = await last_end_record(gateway)
        assert (again.body, again.headers["x-answer-cache"], again.whole) == (PASSED, "hit", True)
        assert (record.answered_by, record.charge_micros, len(upstream.requests)) == ("answer-cache", 0, 1)
        assert await charged(gateway) == CHARGE
        for other in ({"temperature": 1}, {}, zero | {"seed": 1}, zero | {"stream_options": {"include_usage": True}}):
            assert "x-answer-cache" not in (await ask(gateway.port, chat(token, other))).headers
        await gateway.store.accounts.create("other")
        await gateway.store.wallet.credit("other", "opening", 1_000_000)
        foreign = (await gateway.store.tokens.create("other")).token
        assert "x-answer-cache" not in (await ask(gateway.port, chat(foreign, zero))).headers
        closed = (await gateway.store.tokens.create("tester", models=("other",))).token
        assert (await ask(gateway.port, chat(closed, zero))).error["code"] == "token_restricted"


async def test_a_shared_cache_may_charge_as_the_upstream_does(serve: Serve) -> None:
    async with with_a_cache(serve, "shared: true, charge: as-upstream") as (gateway, upstream):
        token = await gateway.token()
        await ask(gateway.port, chat(token, {"temperature": 0.0, "n": 1}))
        await last_end_record(gateway)
        await gateway.store.accounts.create("other")
        await gateway.store.wallet.credit("other", "opening", 1_000_000)
        other = (await gateway.store.tokens.create("other")).token
        assert (await ask(gateway.port, chat(other, {"temperature": 0.0, "n": 1}))).headers["x-answer-cache"] == "hit"
        record = await last_end_record(gateway)
        assert (record.account, record.charge_micros, record.usage_source) == ("other", CHARGE, "upstream")
        assert len(upstream.requests) == 1
        assert json.loads(json.dumps(record.cost_micros)) == 0


async def test_a_kept_answer_costs_nothing_of_the_attempts_that_failed_before_it(place: Place) -> None:
    chain = CHAIN + "  - {use: answer-cache, with: {charge: as-upstream}}\n"
    async with (
        Scripted([CHUNKED + chunk(b": working\n\n"), Hold]) as slow,
        Scripted([CHUNKED + chunk(STREAM) + LAST]) as upstream,
    ):
        yaml = configuration(slow.base_url, channel=", timers: {first_byte: 0.3}", chain=chain)
        yaml = yaml.replace("\nmodels:", f'\n  spare: {{base_url: "{upstream.base_url}"}}\nmodels:', 1)
        yaml = yaml.replace("channels: [fake]}", "channels: [fake, {use: spare, priority: 2}]}", 1)
        async with running(yaml, *place) as gateway:
            token = await gateway.token()
            first = await ask(gateway.port, chat(token, {"temperature": 0}))
            record = await last_end_record(gateway)
            assert (first.whole, [attempt.error for attempt in record.attempts]) == (True, ["upstream_timeout", ""])
            assert record.charge_micros > CHARGE
            again = await ask(gateway.port, chat(token, {"temperature": 0}))
            assert again.headers["x-answer-cache"] == "hit"
            assert (await last_end_record(gateway)).charge_micros == CHARGE

"""The shipped plugins that look at requests and answers do so however the answer comes: as a stream or not, and from whom."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from gateway import Delta, Exchange, Operation, Outcome, Plugin, Refused, Reply
from gateway.fake_upstream import FakeUpstream
from gateway.testing import Running
from tests.whole.aftermath import last_end_record
from tests.whole.conftest import CHAIN, Serve
from tests.whole.raw import Answer, ask, chat

CARD = "4111 1111 1111 1111"

SHAPES = {
    "stream": ("", True),
    "json": ("", False),
    "gathered": ("", False),
    "events of a plugin": ("events", True),
    "events of a plugin in one piece": ("events", False),
    "whole answer of a plugin": ("whole", False),
    "whole answer of a plugin to a caller that streams": ("whole", True),
}
"""How a plugin answers, if it does, and whether the caller streams."""


class Echo(Plugin):
    """Says what it was asked, as the header `x-answer` says: in events, as a whole, or as a text that is no JSON."""

    async def on_request(self, exchange: Exchange) -> Reply | None:
        how = exchange.request.headers.get("x-answer")
        if not how or exchange.request.operation is not Operation.CHAT:
            return None
        text = msgspec.json.decode((await exchange.body()).top["messages"])[-1]["content"]
        if how == "events":
            return Reply(events=said(text))
        if how == "text":
            return Reply(body=text.encode(), content_type="text/plain")
        message = {"role": "assistant", "content": text}
        return Reply(body=msgspec.json.encode({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}))


class Refuses(Plugin):
    """Ends the exchange from `on_response` as the header `x-refuse` says."""

    def on_response(self, exchange: Exchange) -> None:
        how = exchange.request.headers.get("x-refuse")
        if how == "stop":
            exchange.stop(Refused(409, "not_now", "Not now."))
        elif how:
            raise Refused(409, "not_now", "Not now.") if how == "raise" else ZeroDivisionError


class Rewrites(Plugin):
    """Changes a word, or ends the exchange from `on_delta`, as the header `x-rewrite` says."""

    def on_delta(self, exchange: Exchange, delta: Delta, last: bool) -> tuple[str, str]:
        if "quince" in delta.text and (how := exchange.request.headers.get("x-rewrite")):
            raise Refused(409, "not_now", "Not now.") if how == "raise" else ZeroDivisionError
        return (delta.text.replace("quince", "*"), "") if last else ("", delta.text)


async def said(text: str) -> AsyncIterator[bytes]:
    middle = len(text) // 2
    for piece in (text[:middle], text[middle:]):
        yield b'data: {"choices":[{"index":0,"delta":{"content":%b}}]}\n\n' % msgspec.json.encode(piece)
    yield b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


@asynccontextmanager
async def serving(
    plugins: Sequence[str], serve: Serve, shape: str = ""
) -> AsyncIterator[tuple[Running, str, FakeUpstream]]:
    """Yield a gateway with some plugins below `auth`, and `Echo` below everything."""
    lines = "".join(f"  - {plugin}\n" for plugin in plugins)
    if "answer-cache" in lines:
        chain = f"{CHAIN}{lines}"
    else:
        chain = CHAIN.replace("  - use: rate-limit\n", f"{lines}  - use: rate-limit\n")
    chain += "  - use: tests.whole.test_filters:Echo\n"
    channel = ", upstream_stream: true" if shape == "gathered" else ""
    async with (
        FakeUpstream(pace_s=0, key="channel-credential-4711") as upstream,
        serve(upstream.base_url, chain=chain, channel=channel, more="port: {allow_non_streaming: true}") as gateway,
    ):
        yield gateway, await gateway.token(), upstream


async def asked(gateway: Running, token: str, shape: str, text: str, **headers: str) -> Answer:
    how, streams = SHAPES[shape]
    body = {"stream": streams, "temperature": 0, "messages": [{"role": "user", "content": text}]}
    return await ask(gateway.port, chat(token, body, headers={"x-answer": how, **headers}))


def content(answer: Answer) -> str:
    """Return what an answer says, streamed or not."""
    if answer.headers["content-type"].startswith("application/json"):
        return str(json.loads(answer.body)["choices"][0]["message"]["content"])
    events = [json.loads(line[6:]) for line in answer.body.splitlines() if line.startswith(b'data: {"')]
    return "".join(event["choices"][0]["delta"].get("content", "") for event in events if event.get("choices"))


@pytest.mark.parametrize("shape", SHAPES)
async def test_stop_words_ends_each_answer(serve: Serve, shape: str) -> None:
    stops = "{use: stop-words, with: {words: [xylophone, 'no stop']}}"
    async with serving([stops], serve, shape) as (gateway, token, _):
        whole = await asked(gateway, token, shape, "harmless")
        assert (whole.status, whole.whole, "harmless" in content(whole)) == (200, True, True)
        assert (await last_end_record(gateway)).outcome is Outcome.COMPLETED
        answer = await asked(gateway, token, shape, "a big xylophone here")
        assert b"xylophone" not in answer.body
        assert b'"code":"content_stopped"' in answer.body
        record = await last_end_record(gateway)
        assert (record.refused_by, record.error_code) == ("stop-words", "content_stopped")
        by_plugin = bool(SHAPES[shape][0])
        if shape in ("json", "gathered"):
            assert answer.status == 400
            assert record.outcome is Outcome.STOPPED
            assert record.completion_tokens == 0
            assert record.charge_micros == record.prompt_tokens > 0
        elif shape == "stream":
            assert (answer.status, answer.whole, record.outcome) == (200, False, Outcome.STOPPED)
        else:
            assert record.charge_micros == 0
            assert answer.status == (200 if shape == "events of a plugin" else 400)
        assert by_plugin is bool(record.answered_by)


async def test_stop_words_sends_nothing_that_is_no_json(serve: Serve) -> None:
    async with serving(["{use: stop-words, with: {words: [x]}}"], serve) as (gateway, token, _):
        request = chat(token, {"stream": False}, headers={"x-answer": "text"})
        answer = await ask(gateway.port, request)
        assert (answer.status, answer.error["code"]) == (400, "content_stopped")
        assert "cannot be checked" in answer.error["message"]


@pytest.mark.parametrize("shape", SHAPES)
async def test_redact_changes_what_each_answer_is_made_from(serve: Serve, shape: str) -> None:
    async with serving(["use: redact"], serve, shape) as (gateway, token, _):
        answer = await asked(gateway, token, shape, f"pay with {CARD} now")
        assert "pay with [card-number] now" in content(answer)
        assert b"4111" not in answer.body
        assert (await last_end_record(gateway)).changed_by == ["redact"]


REWRITES = "{use: 'tests.whole.test_filters:Rewrites', name: rewrites}"


@pytest.mark.parametrize("shape", SHAPES)
async def test_on_delta_changes_each_answer(serve: Serve, shape: str) -> None:
    async with serving([REWRITES], serve, shape) as (gateway, token, _):
        answer = await asked(gateway, token, shape, "a quince here")
        assert (answer.status, answer.whole) == (200, True)
        assert "a * here" in content(answer) and b"quince" not in answer.body
        assert (await last_end_record(gateway)).changed_by == ["rewrites"]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("how", "status", "code"), [("raise", 409, "not_now"), ("fail", 500, "internal_error")])
async def test_on_delta_ends_each_answer(serve: Serve, shape: str, how: str, status: int, code: str) -> None:
    async with serving([REWRITES], serve, shape) as (gateway, token, _):
        answer = await asked(gateway, token, shape, "a quince here", **{"x-rewrite": how})
        assert b"a quince" not in answer.body and f'"code":"{code}"'.encode() in answer.body
        streamed = shape in ("stream", "events of a plugin")
        assert (answer.status, answer.whole) == ((200, False) if streamed else (status, True))
        record = await last_end_record(gateway)
        assert (record.refused_by, record.error_code) == ("rewrites", code)
        if how == "fail":
            assert record.outcome is Outcome.INTERNAL_ERROR
        elif not streamed:
            assert record.completion_tokens == 0


@pytest.mark.parametrize("shape", SHAPES)
async def test_content_log_keeps_each_answer(serve: Serve, tmp_path: Path, shape: str) -> None:
    log = "{use: content-log, with: {folder: ./kept, accounts: [tester], redact: [secret]}}"
    async with serving([log], serve, shape) as (gateway, token, _):
        answer = await asked(gateway, token, shape, "a secret here")
        assert answer.status == 200
        await last_end_record(gateway)
    ((line,),) = [file.read_bytes().splitlines() for file in (tmp_path / "kept").glob("*.jsonl")]
    kept = json.loads(line)
    assert kept["prompt"] == [{"role": "user", "content": "a [redacted] here"}]
    assert kept["answers"] == [content(answer).replace("secret", "[redacted]")]


@pytest.mark.parametrize("shape", SHAPES)
async def test_otel_content_sends_each_answer(serve: Serve, shape: str) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra `otel` is not installed")
    from tests.plugins.collector import collecting

    async with collecting() as collector:
        plugins = [f"{{use: otel, with: {{endpoint: '{collector.url}'}}}}", "use: otel-content"]
        async with serving(plugins, serve, shape) as (gateway, token, _):
            answer = await asked(gateway, token, shape, "hello")
            await last_end_record(gateway)
        spans = await collector.wait(1)
    (span,) = [span for span in spans if "gen_ai.output.messages" in span.attributes]
    assert (span.name == "chat words") is (not SHAPES[shape][0])
    (said,) = json.loads(span.attributes["gen_ai.output.messages"])
    assert said["parts"] == [{"type": "text", "content": content(answer)}]
    assert json.loads(span.attributes["gen_ai.input.messages"])[0]["parts"][0]["content"] == "hello"


@pytest.mark.parametrize("shape", SHAPES)
async def test_answer_cache_keeps_streams_alone_whoever_answers(serve: Serve, shape: str) -> None:
    async with serving(["{use: answer-cache, name: cache}"], serve, shape) as (gateway, token, _):
        answers = []
        for _ in range(2):
            answers.append(await asked(gateway, token, shape, "again"))
            await last_end_record(gateway)
        hits = ["x-answer-cache" in answer.headers for answer in answers]
        assert hits == [False, shape in ("stream", "events of a plugin")]
        assert content(answers[0]) == content(answers[1])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("how", "status", "code"), [("stop", 409, "not_now"), ("raise", 409, "not_now"), ("fail", 500, "internal_error")]
)
async def test_a_plugin_ends_each_answer_from_on_response(
    serve: Serve, shape: str, how: str, status: int, code: str
) -> None:
    refuses = "{use: 'tests.whole.test_filters:Refuses', name: refuses}"
    async with serving([refuses], serve, shape) as (gateway, token, _):
        answer = await asked(gateway, token, shape, "hello", **{"x-refuse": how})
        assert (answer.status, answer.error["code"]) == (status, code)
        record = await last_end_record(gateway)
        assert (record.refused_by, record.error_code) == ("refuses", code)
        by_plugin = SHAPES[shape][0]
        outcome = Outcome.INTERNAL_ERROR if how == "fail" else Outcome.REFUSED if by_plugin else Outcome.STOPPED
        assert record.outcome is outcome
        assert record.completion_tokens == 0
        assert bool(record.charge_micros) is (how != "fail" and not by_plugin)

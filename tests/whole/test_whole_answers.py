"""`stream: false`: one JSON answer, whether the upstream gives one or streams it, and what each of its faults leads to."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.domain.exchange import Outcome
from gateway.testing import Running, running
from tests.patience import PATIENCE_S, soon
from tests.place import Place
from tests.whole.aftermath import assert_released, charged, last_end_record, tasks
from tests.whole.conftest import configuration
from tests.whole.raw import Answer, ask, chat
from tests.whole.scripted import CHUNKED, LAST, Fin, Forever, Hold, Reset, Scripted, Step, chunk
from tests.whole.test_stream import CHARGE, DONE, USAGE, WORDS, event
from tests.whole.test_upstream_faults import ANSWER, INPUT

MORE = "port: {allow_non_streaming: true}"
GATHERED = ", upstream_stream: true"
BODY = json.dumps({**ANSWER, "usage": {"prompt_tokens": 11, "completion_tokens": 6}}).encode()
TEXT = b"".join(WORDS)
ERROR = b'data: {"error":{"message":"overloaded","type":"x","param":null,"code":"x"}}\n\n'


def json_head(length: int | None, more: str = "") -> bytes:
    framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n{more}{framing}\r\n\r\n".encode()


UNFRAMED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"


class Stage:
    """A gateway in front of scripted upstreams, and a token."""

    def __init__(self, gateway: Running, upstream: Scripted, token: str) -> None:
        self.gateway, self.upstream, self.token = gateway, upstream, token

    async def ask(self, **body: Any) -> Answer:
        return await ask(self.gateway.port, chat(self.token, {"stream": False, **body}))


@asynccontextmanager
async def staged(
    script: Sequence[Step], folder: Path, url: str, channel: str = "", spare: str = ""
) -> AsyncIterator[Stage]:
    async with Scripted(script) as upstream:
        yaml = configuration(upstream.base_url, channel=channel, more=MORE)
        if spare:
            yaml = yaml.replace("\nmodels:", f'\n  spare: {{base_url: "{spare}"{channel}}}\nmodels:', 1)
            yaml = yaml.replace("channels: [fake]}", "channels: [fake, {use: spare, priority: 1}]}", 1)
        async with running(yaml, folder, url) as gateway:
            yield Stage(gateway, upstream, await gateway.token())


async def test_the_first_byte_timer_judges_a_stream_and_not_a_json_answer(place: Place) -> None:
    script: list[Step] = [0.5, json_head(len(BODY)) + BODY]
    async with staged(script, *place, ", timers: {first_byte: 0.2, total: 30}") as stage:
        answer = await stage.ask()
        assert (answer.status, answer.body) == (200, BODY)
        assert (await ask(stage.gateway.port, chat(stage.token))).error["code"] == "upstream_timeout"


@pytest.mark.parametrize("steps", [[Hold], [json_head(len(BODY)) + BODY[:9], Hold]], ids=["no head", "half"])
async def test_the_total_timer_ends_one_and_no_other_channel_is_called_when_no_time_is_left(
    place: Place, steps: list[Step]
) -> None:
    async with Scripted([json_head(len(BODY)) + BODY]) as spare:
        timers = ", timers: {first_byte: 20, total: 0.5}"
        async with staged(steps, *place, timers, spare.base_url) as stage:
            before = tasks()
            answer = await stage.ask()
            assert (answer.status, answer.error["code"]) == (504, "upstream_timeout")
            assert answer.error["message"].startswith("The upstream took too long to answer.")
            record = await last_end_record(stage.gateway)
            assert (record.outcome, len(record.attempts), spare.requests) == (Outcome.UPSTREAM_FAILED, 1, [])
            assert await charged(stage.gateway) == INPUT
            await assert_released(stage.gateway, stage.upstream, before, 0)


FAULTS: dict[str, tuple[list[Step], str, int]] = {
    "cut": ([json_head(len(BODY)) + BODY[:-9], Fin], "The upstream ended the answer before", INPUT),
    "reset": ([json_head(len(BODY)) + BODY[:-9], 0.05, Reset], "The upstream ended the answer before", INPUT),
    "cut within chunks": ([json_head(None) + chunk(BODY), Fin], "The upstream ended the answer before", INPUT),
    "cut without framing": ([UNFRAMED + BODY[:-9], Fin], "The upstream ended the answer before", INPUT),
    "too large": ([json_head(None), Forever(chunk(b" " * 999)), LAST], "The answer is larger than this", INPUT),
    "compressed": (
        [json_head(len(gzip.compress(BODY)), "Content-Encoding: gzip\r\n") + gzip.compress(BODY)],
        "The upstream's answer is not JSON.",
        0,
    ),
    "html": (
        [b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nhi"],
        "The upstream's answer is not JSON.",
        0,
    ),
    "a stream": ([CHUNKED + chunk(TEXT + USAGE + DONE) + LAST], "The upstream's answer is not JSON.", 0),
    "longer than stated": ([json_head(len(BODY) - 9) + BODY, Hold], "The upstream ended the answer before", INPUT),
}


@pytest.mark.parametrize(("script", "message", "due"), FAULTS.values(), ids=FAULTS)
async def test_a_json_answer_that_is_not_whole_is_an_error_and_another_channel_is_called(
    place: Place, script: list[Step], message: str, due: int
) -> None:
    channel = ", max_response_bytes: 5000"
    async with staged(script, *place, channel) as stage:
        before = tasks()
        answer = await stage.ask()
        code = "upstream_truncated" if message.startswith("The upstream ended") else "upstream_error"
        assert (answer.status, answer.error["code"]) == (502, code)
        assert answer.error["message"].startswith(message)
        await last_end_record(stage.gateway)
        assert await charged(stage.gateway) == due
        may_stay = isinstance(script[-1], bytes) and not any(isinstance(step, Forever) for step in script)
        await assert_released(stage.gateway, None if may_stay else stage.upstream, before, 0)


ODD = BODY.replace(b"xxxx", b"\xff\xed\xa0\x80", 1)
CANARY = ODD.replace(b'"id"', b'"canary": "channel-credential-4711", "id"', 1)


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        (b"\xef\xbb\xbf" + BODY, b"\xef\xbb\xbf" + BODY),
        (ODD, ODD),
        (CANARY, CANARY.replace(b"channel-credential-4711", b"[redacted]")),
    ],
    ids=["mark", "no UTF-8", "credential"],
)
@pytest.mark.parametrize("framed", [True, False])
async def test_a_json_answer_passes_byte_for_byte(place: Place, sent: bytes, shown: bytes, framed: bool) -> None:
    async with staged([(json_head(len(sent)) if framed else UNFRAMED) + sent, Fin], *place) as stage:
        answer = await stage.ask()
        assert (answer.status, answer.body) == (200, shown)
        await last_end_record(stage.gateway)
        assert await charged(stage.gateway) == CHARGE


async def test_plugins_see_that_a_json_answer_begins(place: Place) -> None:
    yaml_of = configuration
    async with Scripted([json_head(len(BODY)) + BODY]) as upstream:
        yaml = yaml_of(upstream.base_url, more=MORE) + "  - use: plugins.examples.response_stamp:ResponseStamp\n"
        yaml += "    with: {headers: {x-channel: '{channel}'}}\n"
        async with running(yaml, *place) as gateway:
            answer = await ask(gateway.port, chat(await gateway.token(), {"stream": False}))
            assert answer.headers["x-channel"] == "fake"


def content(answer: Answer) -> str:
    return str(json.loads(answer.body)["choices"][0]["message"]["content"])


@pytest.mark.parametrize(
    "steps",
    [
        [CHUNKED + chunk(b": wait\n\n" + TEXT + USAGE + DONE) + LAST],
        [CHUNKED, *(step for word in [*WORDS, USAGE] for step in (chunk(word), 0.002)), chunk(DONE) + LAST],
        [CHUNKED + chunk((TEXT + USAGE + DONE).replace(b"\n", b"\r\n")) + LAST],
        [CHUNKED + chunk((TEXT + USAGE + DONE).replace(b"\n", b"\r")) + LAST],
        [
            CHUNKED,
            *(chunk((TEXT + USAGE + DONE)[at : at + 7]) for at in range(0, 2000, 7) if at < len(TEXT + USAGE + DONE)),
            LAST,
        ],
        [CHUNKED + chunk(TEXT + USAGE) + LAST],
        [CHUNKED + chunk(TEXT + USAGE + DONE + TEXT) + LAST],
    ],
    ids=["at once", "event by event", "crlf", "cr", "in pieces", "without the last event", "more after the last event"],
)
async def test_a_gathered_stream_is_one_answer_and_charged_exactly(place: Place, steps: list[Step]) -> None:
    async with staged(steps, *place, GATHERED) as stage:
        answer = await stage.ask()
        assert (answer.status, answer.whole, answer.headers["content-type"]) == (200, True, "application/json")
        assert content(answer) == "".join(f" word{n}" for n in range(6))
        body = json.loads(answer.body)
        assert (body["object"], body["usage"]["total_tokens"]) == ("chat.completion", 17)
        assert body["choices"][0]["finish_reason"] == "stop"
        sent = stage.upstream.requests[0]
        assert b"Accept: text/event-stream" in sent
        asked = json.loads(sent.partition(b"\r\n\r\n")[2])
        assert (asked["stream"], asked["stream_options"]) == (True, {"include_usage": True})
        record = await last_end_record(stage.gateway)
        assert (record.outcome, record.status, record.charge_micros) == (Outcome.COMPLETED, 200, CHARGE)
        assert (record.bytes, record.events) == (len(answer.body), 0)
        assert await charged(stage.gateway) == CHARGE


async def test_a_request_without_stream_and_one_for_a_stream_get_what_they_ask_for(place: Place) -> None:
    async with staged([CHUNKED + chunk(TEXT + USAGE + DONE) + LAST], *place, GATHERED) as stage:
        raw = b'{"model":"words","messages":[{"role":"user","content":"hi"}]}'
        assert content(await ask(stage.gateway.port, chat(stage.token, raw))).startswith(" word0")
        assert (await ask(stage.gateway.port, chat(stage.token))).body == TEXT + DONE


async def test_an_upstream_that_answers_in_json_all_the_same_is_passed_on(place: Place) -> None:
    async with staged([json_head(len(BODY)) + BODY], *place, GATHERED) as stage:
        assert (await stage.ask()).body == BODY
        await last_end_record(stage.gateway)
        assert await charged(stage.gateway) == CHARGE


async def test_choices_and_tool_calls_reach_the_official_client(place: Place) -> None:
    def call(**fields: Any) -> bytes:
        return event({"tool_calls": [{"index": 0, **fields}]})

    second = event({"content": "b"}, "stop").replace(b'"index": 0', b'"index": 1')
    made = call(id="call_a", type="function", function={"name": "get", "arguments": ""})
    stream = made + call(function={"arguments": '{"a":'}) + second + call(function={"arguments": "1}"})
    script = [CHUNKED + chunk(stream + event({}, "tool_calls") + USAGE + DONE) + LAST]
    async with staged(script, *place, GATHERED) as stage:
        async with openai.AsyncOpenAI(base_url=stage.gateway.base_url, api_key=stage.token, max_retries=0) as library:
            answer = await library.chat.completions.create(
                model="words", messages=[{"role": "user", "content": "hi"}], n=2
            )
        first, other = answer.choices
        assert first.message.tool_calls is not None
        (tool,) = first.message.tool_calls
        assert tool.to_dict() == {
            "id": "call_a",
            "type": "function",
            "function": {"name": "get", "arguments": '{"a":1}'},
        }
        assert (first.finish_reason, other.message.content, other.finish_reason) == ("tool_calls", "b", "stop")


BROKEN: dict[str, tuple[list[Step], int, str, int]] = {
    "error first": ([CHUNKED + chunk(ERROR) + LAST], 502, "upstream_error", 0),
    "error later": (
        [CHUNKED + chunk(TEXT[:700]), 0.02, chunk(TEXT[700:] + ERROR) + LAST],
        *(502, "upstream_error", INPUT),
    ),
    "error before output": ([CHUNKED + chunk(WORDS[0]), 0.02, chunk(ERROR) + LAST], 502, "upstream_error", 0),
    "end": ([CHUNKED + chunk(TEXT[:700]), LAST], 502, "upstream_truncated", INPUT),
    "cut": ([CHUNKED + chunk(TEXT[:700]), Fin], 502, "upstream_truncated", INPUT),
    "reset": ([CHUNKED + chunk(TEXT[:700]), 0.05, Reset], 502, "upstream_truncated", INPUT),
    "silence": ([CHUNKED + chunk(TEXT[:700]), Hold], 504, "upstream_timeout", INPUT),
    "silence before the first": ([CHUNKED, Hold], 504, "upstream_timeout", INPUT),
    "endless": ([CHUNKED, Forever(chunk(WORDS[1]), 0.01)], 504, "upstream_timeout", INPUT),
    "too large": ([CHUNKED, Forever(chunk(WORDS[1] * 50))], 502, "upstream_error", INPUT),
    "no json": ([CHUNKED + chunk(WORDS[1] + b"data: nonsense\n\n"), Hold], 502, "upstream_error", INPUT),
    "no choice": ([CHUNKED + chunk(b'data: {"choices":[]}\n\n' + DONE) + LAST], 502, "upstream_error", INPUT),
    "nothing": ([CHUNKED + LAST], 502, "upstream_error", 0),
    "only done": ([CHUNKED + chunk(DONE) + LAST], 502, "upstream_error", INPUT),
}


@pytest.mark.parametrize(("script", "status", "code", "due"), BROKEN.values(), ids=BROKEN)
async def test_a_gathered_stream_that_is_not_whole_is_an_error_of_its_own_status(
    place: Place, script: list[Step], status: int, code: str, due: int
) -> None:
    channel = f"{GATHERED}, max_response_bytes: 50000, timers: {{first_byte: 0.3, idle: 0.3, total: 0.8}}"
    async with staged(script, *place, channel) as stage:
        before = tasks()
        answer = await stage.ask()
        assert (answer.status, answer.error["code"], answer.whole) == (status, code, True)
        assert "word" not in answer.error["message"]
        record = await last_end_record(stage.gateway)
        assert (record.outcome, record.error_code) == (Outcome.UPSTREAM_FAILED, code)
        assert record.completion_tokens == 0
        assert await charged(stage.gateway) == due
        may_stay = isinstance(script[-1], bytes) and not any(isinstance(step, Forever) for step in script)
        await assert_released(stage.gateway, None if may_stay else stage.upstream, before, 0)


@pytest.mark.parametrize(
    ("cut", "channel"), [(json_head(len(BODY)) + BODY[:-9], ""), (CHUNKED + chunk(TEXT[:700]), GATHERED)]
)
async def test_the_next_channel_answers_after_an_answer_that_is_charged_its_input_broke_off(
    place: Place, cut: bytes, channel: str
) -> None:
    async with (
        Scripted([json_head(len(BODY)) + BODY]) as spare,
        staged([cut, Fin], *place, channel, spare.base_url) as stage,
    ):
        assert (await stage.ask()).body == BODY
        record = await last_end_record(stage.gateway)
        assert [attempt.error for attempt in record.attempts] == ["upstream_truncated", ""]
        assert await charged(stage.gateway) == INPUT + CHARGE


async def test_a_caller_that_leaves_ends_the_upstream_and_pays_for_what_was_made(place: Place) -> None:
    script: list[Step] = [CHUNKED + chunk(b"".join(WORDS[:5])), Hold]
    async with staged(script, *place, GATHERED) as stage:
        before = tasks()
        _, writer = await asyncio.open_connection("127.0.0.1", stage.gateway.port)
        writer.write(chat(stage.token, {"stream": False}))
        await stage.upstream.arrived.wait()
        async with asyncio.timeout(PATIENCE_S):
            while not any(relay.events.events >= 5 for relay in stage.gateway.gateway.runner.failover.relays):
                await asyncio.sleep(0.01)
        writer.close()
        await soon(stage.upstream.gone.wait())
        record = await last_end_record(stage.gateway)
        assert (record.outcome, record.usage_source, record.first_byte_ms) == (Outcome.CALLER_GONE, "estimated", None)
        assert record.completion_tokens > 0
        assert await charged(stage.gateway) == INPUT + 2 * record.completion_tokens
        await assert_released(stage.gateway, stage.upstream, before, 0)


async def test_a_stop_of_the_gateway_ends_a_gathered_stream_with_503(place: Place) -> None:
    async with staged([CHUNKED + chunk(WORDS[1]), Hold], *place, GATHERED) as stage:
        asking = asyncio.create_task(stage.ask())
        async with asyncio.timeout(PATIENCE_S):
            while not any(relay.events.events for relay in stage.gateway.gateway.runner.failover.relays):
                await asyncio.sleep(0.01)
        stage.gateway.gateway.runner.failover.stop_relays()
        answer = await asking
        assert (answer.status, answer.error["code"]) == (503, "service_unavailable")
        await last_end_record(stage.gateway)
        assert await charged(stage.gateway) == INPUT


async def test_the_credential_is_redacted_also_where_two_events_split_it(place: Place) -> None:
    stream = event({"content": "channel-cred"}) + event({"content": "ential-4711"}, "stop") + DONE
    async with staged([CHUNKED + chunk(stream) + LAST], *place, GATHERED) as stage:
        assert content(await stage.ask()) == "[redacted]"


async def test_one_event_may_be_as_large_as_the_answer(place: Place) -> None:
    large = event({"content": "x" * 3_000_000}, "stop")
    script: list[Step] = [CHUNKED, *(chunk(large[at : at + 65536]) for at in range(0, len(large), 65536)), LAST]
    async with staged(script, *place, GATHERED) as stage:
        assert content(await stage.ask()) == "x" * 3_000_000

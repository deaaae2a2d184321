"""A collector gets a span for each request and one for each call of an upstream, as today's conventions name what is in them."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import ClientSession
from multidict import CIMultiDict

from gateway.plugin_kit import broken, check
from gateway.store.client.client import Client
from gateway.testing import FakeUpstream, Running, running, services, started
from gateway.testing import configuration as plain
from plugins.otel import STOP_S, Otel, OtelContent, SpanContent
from tests.patience import PATIENCE_S, wait_until
from tests.place import Place

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra `otel` is not installed")

from plugins import spans
from tests.plugins.collector import collecting

SERVER, CLIENT = 2, 3
CALLER = {"trace": "0af7651916cd43dd8448eb211c80319c", "id": "b7ad6b7169203331"}


def configuration(failing: str, serving: str, endpoint: str, *more: dict[str, Any], **settings: Any) -> str:
    """Return a gateway whose first channel fails, with traces at the top, and more plugins below `auth`."""
    otel = {"endpoint": endpoint, "headers": {"x-api-key": "sesame"}, "providers": {"west": "mistral_ai"}} | settings
    document = {
        "channels": {"east": {"base_url": failing}, "west": {"base_url": serving}},
        "models": {
            "words": {
                **{"input": 1, "output": 2, "max_output_tokens": 100},
                "channels": [{"use": "east", "model": "big"}, {"use": "west", "priority": 2}],
            }
        },
        "groups": {"default": {}},
        "store": {"timeout": 10},
        "plugins": [
            {"use": "usage-logger"},
            {"use": "otel", "with": otel},
            {"use": "auth"},
            *more,
            *({"use": name} for name in ("rate-limit", "quota", "model-routing")),
        ],
        "port": {"allow_non_streaming": True},
    }
    return msgspec.json.encode(document).decode()


async def test_a_request_with_one_failed_attempt_is_three_spans(store_url: str, client: Client, tmp_path: Path) -> None:
    before = time.time_ns()
    async with (
        collecting() as collector,
        FakeUpstream(mode="500", pace_s=0) as failing,
        FakeUpstream(pace_s=0.01, words="the secret answer") as serving,
        running(configuration(failing.base_url, serving.base_url, collector.url), tmp_path, store_url) as gateway,
    ):
        token = await gateway.token("alice")
        headers = {"Authorization": f"Bearer {token}", "traceparent": f"00-{CALLER['trace']}-{CALLER['id']}-01"}
        body = {
            "model": "words",
            "messages": [{"role": "user", "content": "a secret"}],
            "stream": True,
            "max_tokens": 9,
        }
        async with (
            ClientSession() as session,
            session.post(f"{gateway.base_url}/chat/completions", json=body, headers=headers) as answer,
        ):
            assert answer.status == 200
            await answer.read()
        assert (await gateway.ask("sk-wrong")).status == 401
        spans = await collector.wait(4)
    server = next(span for span in spans if span.kind == SERVER)
    failed, served = [span for span in spans if span.kind == CLIENT]
    refused = next(span for span in spans if span.kind == SERVER and span is not server)

    assert {span.trace for span in (server, failed, served)} == {CALLER["trace"]} != {refused.trace}
    assert (server.parent, failed.parent, served.parent) == (CALLER["id"], server.id, server.id)
    assert before < server.began <= failed.began < failed.ended <= served.began < served.ended <= server.ended
    assert server.ended < time.time_ns()

    assert (server.name, server.error) == ("POST /v1/chat/completions", False)
    expected = {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "client.address": "127.0.0.1",
        "sluicegate.account": "alice",
        "sluicegate.model": "words",
        "sluicegate.request.id": answer.headers["x-request-id"],
        "sluicegate.outcome": "completed",
    }
    assert server.attributes.items() >= expected.items()
    assert server.resource.items() >= {"service.name": "sluicegate"}.items()

    assert (failed.name, failed.error) == ("chat big", True)
    assert failed.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "big",
        "gen_ai.request.stream": True,
        "gen_ai.request.max_tokens": 9,
        "server.address": "127.0.0.1",
        "server.port": int(failing.base_url.rpartition(":")[2].removesuffix("/v1")),
        "http.response.status_code": 500,
        "error.type": "upstream_error",
        "sluicegate.channel": "east",
    }

    assert (served.name, served.error) == ("chat words", False)
    first_s = served.attributes.pop("gen_ai.response.time_to_first_chunk")
    assert 0 < first_s <= (served.ended - served.began) / 1e9
    assert served.attributes.pop("gen_ai.response.id").startswith("chatcmpl-")
    assert served.attributes.pop("gen_ai.usage.input_tokens") > 0
    assert served.attributes.pop("gen_ai.usage.output_tokens") > 0
    assert served.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "mistral_ai",
        "gen_ai.request.model": "words",
        "gen_ai.request.stream": True,
        "gen_ai.request.max_tokens": 9,
        "server.address": "127.0.0.1",
        "server.port": int(serving.base_url.rpartition(":")[2].removesuffix("/v1")),
        "http.response.status_code": 200,
        "sluicegate.channel": "west",
    }

    assert (refused.error, refused.attributes["sluicegate.error.code"]) == (False, "token_invalid")
    assert refused.attributes["http.response.status_code"] == 401
    assert "secret" not in repr(spans)
    assert {sent["x-api-key"] for sent in collector.headers} == {"sesame"}


def told(upstream: FakeUpstream) -> list[tuple[str, str]]:
    """Return what an upstream was told of the trace of each request."""
    return [
        (request.headers.get("traceparent", ""), ",".join(request.headers.getall("tracestate", ())))
        for request in upstream.requests
        if request.method == "POST"
    ]


TRACED = f"00-{CALLER['trace']}-{CALLER['id']}-01"
STATES = [("tracestate", "a=1,b=2"), ("tracestate", "c=3")]


async def test_an_upstream_is_told_the_span_that_calls_it(place: Place) -> None:
    async with (
        collecting() as collector,
        FakeUpstream(mode="500", pace_s=0) as failing,
        FakeUpstream(pace_s=0) as serving,
        running(configuration(failing.base_url, serving.base_url, collector.url), *place) as gateway,
    ):
        await asked(gateway, [("traceparent", TRACED), *STATES])
        _, failed, served = await collector.wait(3)
        assert told(failing) == [(f"00-{CALLER['trace']}-{failed.id}-01", "a=1,b=2,c=3")]
        assert told(serving) == [(f"00-{CALLER['trace']}-{served.id}-01", "a=1,b=2,c=3")]


@pytest.mark.parametrize(
    ("settings", "headers", "same", "flags", "states"),
    [
        ({}, [("traceparent", TRACED.replace("-01", "-03")), *STATES], True, "03", "a=1,b=2,c=3"),
        ({}, [("traceparent", TRACED.replace("-01", "-00")), *STATES], True, "00", "a=1,b=2,c=3"),
        ({}, [("traceparent", TRACED.replace("00-", "cc-", 1) + "-more"), *STATES], True, "01", "a=1,b=2,c=3"),
        ({}, [], False, "01", ""),
        ({"ratio": 0.0}, [], False, "00", ""),
        ({}, [("traceparent", "00-" + "0" * 32 + "-" + CALLER["id"] + "-01"), *STATES], False, "01", ""),
        ({}, [("traceparent", "ff" + TRACED[2:]), *STATES], False, "01", ""),
        ({}, [("traceparent", TRACED), ("traceparent", TRACED), *STATES], False, "01", ""),
        ({}, STATES, False, "01", ""),
        ({"continues": False}, [("traceparent", TRACED), *STATES], False, "01", ""),
    ],
    ids=["random", "not sampled", "later version", "new", "ratio", "zero", "ff", "two", "no parent", "strangers"],
)
async def test_a_trace_goes_on_as_trace_context_says(
    place: Place, settings: dict[str, Any], headers: list[tuple[str, str]], same: bool, flags: str, states: str
) -> None:
    async with collecting() as collector, FakeUpstream(pace_s=0) as upstream:
        yaml = configuration(upstream.base_url, upstream.base_url, collector.url, **settings)
        async with running(yaml, *place) as gateway:
            await asked(gateway, headers)
        ((parent, state),) = told(upstream)
        version, trace, span, sent = parent.split("-")
        assert (version, trace == CALLER["trace"], state) == ("00", same, states)
        # An id that is made here is random, which newer libraries say in the next bit.
        assert int(sent, 16) & (3 if same else 1) == int(flags, 16)
        assert span != CALLER["id"]
        spans = {each.id: each.parent for each in collector.spans}
        recorded = flags in ("01", "03")
        assert (span in spans) is recorded
        assert (CALLER["id"] in spans.values()) is (same and recorded)


async def test_without_it_an_upstream_is_told_what_the_caller_says(place: Place) -> None:
    cases: list[tuple[list[tuple[str, str]], tuple[str, str]]] = [
        ([("traceparent", TRACED), *STATES], (TRACED, "a=1,b=2,c=3")),
        ([("traceparent", TRACED)], (TRACED, "")),
        (STATES, ("", "")),
        ([("traceparent", TRACED), ("traceparent", "x"), *STATES], ("", "")),
    ]
    async with FakeUpstream(pace_s=0) as upstream:
        async with running(plain(upstream.base_url), *place) as gateway:
            for headers, _ in cases:
                await asked(gateway, headers)
        assert told(upstream) == [expected for _, expected in cases]


async def asked(gateway: Running, headers: list[tuple[str, str]]) -> None:
    """Ask once, with an account of its own the first time."""
    if await gateway.store.accounts.get("alice") is None:
        await gateway.token("alice")
    token = (await gateway.store.tokens.create("alice")).token
    body = {"model": "words", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    given = CIMultiDict([*headers, ("Authorization", f"Bearer {token}")])
    async with (
        ClientSession() as session,
        session.post(f"{gateway.base_url}/chat/completions", json=body, headers=given) as answer,
    ):
        assert answer.status == 200
        await answer.read()


@asynccontextmanager
async def dripping(pace_s: float) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Yield the address of a collector that answers byte by byte and never ends, or, without a pace, that says nothing."""
    received: list[bytes] = []
    serving: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        with suppress(ConnectionError, asyncio.CancelledError):
            received.append(await reader.readuntil(b"\r\n\r\n"))
            for byte in itertools.cycle(b"HTTP/1.1 200 OK\r\nX: ") if pace_s else ():
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(pace_s)
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/traces", received
        for task in serving:
            if task is not None:
                task.cancel()


@pytest.mark.parametrize("pace_s", [0.05, 0.0], ids=["drips", "is silent"])
async def test_a_collector_that_never_answers_holds_nothing(place: Place, pace_s: float) -> None:
    async with dripping(pace_s) as (endpoint, received), FakeUpstream(pace_s=0) as upstream:
        async with running(configuration(upstream.base_url, upstream.base_url, endpoint, queue=4), *place) as gateway:
            token = await gateway.token("alice")
            await gateway.ask(token)
            await wait_until(lambda: bool(received))
            began = time.monotonic()
            for _ in range(20):
                assert (await gateway.ask(token)).status == 200
            assert time.monotonic() - began < PATIENCE_S / 2
            began = time.monotonic()
        assert time.monotonic() - began < STOP_S + PATIENCE_S / 4
        threads = [thread for thread in threading.enumerate() if "Otel" in thread.name]
        assert all(thread.daemon for thread in threads)


async def test_it_keeps_the_contract_where_no_collector_answers(
    store_url: str,
) -> None:
    assert broken(await check("otel", {"endpoint": "http://127.0.0.1:9/v1/traces"}, url=store_url)) == []


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"ratio": 2.0}, "from 0 to 1"),
        ({"ratio": float("nan")}, "from 0 to 1"),
        ({"queue": 0}, "queue must be 1 or more"),
        ({"endpoint": "x"}, "endpoint must be like"),
        ({"endpoint": "localhost:4318"}, "endpoint must be like"),
        ({"endpoint": "http://h:x/v1/traces"}, "endpoint must be like"),
        ({"headers": {"a b": "c"}}, "headers: 'a b' is no name"),
        ({"headers": {"a": "c\nd"}}, "headers: 'a' is no name of a header, or its value"),
        ({"service": " "}, "service must not be empty"),
    ],
)
def test_a_wrong_setting_is_refused(settings: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error) as caught:
        Otel(**settings)
    assert "c\nd" not in str(caught.value)


async def test_a_provider_of_no_channel_is_refused_at_the_start(place: Place) -> None:
    async with services(*place) as given:
        with pytest.raises(ValueError, match="providers: there is no channel `west`"):
            await started(Otel(providers={"west": "mistral_ai"}), given)


CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"location":"Paris"}'}}


def messages(prompt: list[dict[str, Any]]) -> Any:
    return msgspec.json.decode(SpanContent(msgspec.json.encode(prompt)).attributes()["gen_ai.input.messages"])


def event(index: int = 0, finish: str | None = None, **delta: Any) -> bytes:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return b"data: %b\n\n" % msgspec.json.encode({"choices": [choice]})


def test_a_conversation_is_written_in_parts() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    content = [
        {"type": "text", "text": "what is this?"},
        picture,
        {"type": "image_url", "image_url": {"url": "https://x.example/a.png"}},
        {"type": "input_audio", "input_audio": {"data": "BBBB", "format": "wav"}},
        {"type": "file", "file": {"file_id": "f1"}},
        {"type": "odd", "more": 1},
    ]
    assert messages(
        [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": content, "name": "ann"},
            {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "rainy, 57F"},
            {
                "role": "assistant",
                "content": "no",
                "refusal": "never",
                "function_call": {"name": "f", "arguments": "{"},
            },
        ]
    ) == [
        {"role": "system", "parts": [{"type": "text", "content": "be brief"}]},
        {
            "role": "user",
            "name": "ann",
            "parts": [
                {"type": "text", "content": "what is this?"},
                {"type": "blob", "modality": "image", "mime_type": "image/png", "content": "AAAA"},
                {"type": "uri", "modality": "image", "uri": "https://x.example/a.png"},
                {"type": "blob", "modality": "audio", "mime_type": "audio/wav", "content": "BBBB"},
                {"type": "file", "modality": "document", "file_id": "f1"},
                {"type": "odd", "more": 1},
            ],
        },
        {
            "role": "assistant",
            "parts": [
                {"type": "reasoning", "content": "hm"},
                {"type": "tool_call", "id": "c1", "name": "get_weather", "arguments": {"location": "Paris"}},
            ],
        },
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "rainy, 57F"}]},
        {
            "role": "assistant",
            "parts": [
                {"type": "text", "content": "no"},
                {"type": "tool_call", "name": "f", "arguments": "{"},
                {"type": "refusal", "content": "never"},
            ],
        },
    ]


def test_an_answer_is_one_message_for_each_choice_streamed_or_not() -> None:
    function = {"name": "get_weather", "arguments": '{"loc'}
    streamed = [
        event(reasoning="why"),
        event(tool_calls=[{"index": 0, "id": "c1", "function": function}]),
        event(1, content="so "),
        event(tool_calls=[{"index": 0, "function": {"arguments": 'ation":"Paris"}'}}]),
        event(1, content="it is"),
        event(finish="tool_calls"),
        event(1, finish="stop"),
        b"data: [DONE]\n\n",
    ]
    whole = {
        "choices": [
            {"index": 0, "finish_reason": "tool_calls", "message": {"reasoning": "why", "tool_calls": [CALL]}},
            {"index": 1, "finish_reason": "stop", "message": {"content": "so it is"}},
        ]
    }
    for content in (SpanContent(events=streamed), SpanContent(whole=msgspec.json.encode(whole))):
        attributes = content.attributes()
        assert attributes["gen_ai.response.finish_reasons"] == ["tool_calls", "stop"]
        assert msgspec.json.decode(attributes["gen_ai.output.messages"]) == [
            {
                "role": "assistant",
                "finish_reason": "tool_call",
                "parts": [
                    {"type": "reasoning", "content": "why"},
                    {"type": "tool_call", "id": "c1", "name": "get_weather", "arguments": {"location": "Paris"}},
                ],
            },
            {"role": "assistant", "finish_reason": "stop", "parts": [{"type": "text", "content": "so it is"}]},
        ]


def test_what_cannot_be_read_is_left_out() -> None:
    assert SpanContent().attributes() == {}
    content = SpanContent(b'[{"role":"user","content":1e999}]', [b"data: {", b": x\n\n"], tools=b"7")
    assert content.attributes() == {}


async def test_it_is_in_the_span_of_the_upstream_that_answered(place: Place) -> None:
    tools = [{"type": "function", "function": {"name": "get_weather", "description": "secret", "parameters": {}}}]
    async with (
        collecting() as collector,
        FakeUpstream(mode="500", pace_s=0) as failing,
        FakeUpstream(pace_s=0, words="it rains") as serving,
    ):
        yaml = configuration(
            *(failing.base_url, serving.base_url, collector.url), {"use": "otel-content", "with": {"max_bytes": 900}}
        )
        async with running(yaml, *place) as gateway:
            token = await gateway.token()
            await gateway.ask(token, "weather?", tools=tools)
            await gateway.ask(token, "x" * 1000)
        spans = await collector.wait(6)
    (first, second) = [
        [span for span in spans if span.trace == trace] for trace in dict.fromkeys(s.trace for s in spans)
    ]
    server, failed, served = first
    assert (server.kind, failed.kind, served.kind) == (SERVER, CLIENT, CLIENT)
    assert "gen_ai.input.messages" not in server.attributes.keys() | failed.attributes.keys()
    attributes = served.attributes
    assert msgspec.json.decode(attributes["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "weather?"}]}
    ]
    assert msgspec.json.decode(attributes["gen_ai.output.messages"]) == [
        {"role": "assistant", "parts": [{"type": "text", "content": "it rains"}], "finish_reason": "stop"}
    ]
    assert msgspec.json.decode(attributes["gen_ai.tool.definitions"]) == [{"type": "function", "name": "get_weather"}]
    assert "secret" not in repr(attributes)
    assert "gen_ai.input.messages" not in second[-1].attributes  # too large
    assert "gen_ai.output.messages" in second[-1].attributes


@pytest.mark.parametrize(
    ("otel", "content"), [({"ratio": 0.0}, {}), ({}, {"groups": ["other"]})], ids=["not sampled", "another group"]
)
async def test_of_others_nothing_is_kept(place: Place, otel: dict[str, Any], content: dict[str, Any]) -> None:
    async with collecting() as collector, FakeUpstream(pace_s=0, words="the answer") as upstream:
        yaml = configuration(
            *(upstream.base_url, upstream.base_url, collector.url), {"use": "otel-content", "with": content}, **otel
        )
        async with running(yaml, *place) as gateway:
            assert (await gateway.ask(await gateway.token(), "a question")).status == 200
        assert "question" not in repr(collector.spans)
        assert "answer" not in repr(collector.spans).replace("answered", "")


def queue_of(gateway: Running) -> spans.SpanQueue:
    """Return what waits in the plugin `otel` of a gateway."""
    (otel,) = [entry.plugin for entry in gateway.gateway.chain.entries if isinstance(entry.plugin, Otel)]
    return otel._spans._queue


async def test_content_that_no_collector_takes_is_bounded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "MOST_CONTENT", 5000)
    async with dripping(0.05) as (endpoint, received), FakeUpstream(pace_s=0, words="yes") as upstream:
        yaml = configuration(upstream.base_url, upstream.base_url, endpoint, {"use": "otel-content"}, queue=40)
        async with running(yaml, *place) as gateway:
            queue, token = queue_of(gateway), await gateway.token()
            for _ in range(10):
                await gateway.ask(token, "x" * 1000)
            await wait_until(lambda: bool(received))
            assert 3000 < queue._total <= 5000
            for _ in range(30):  # of those that wait, the oldest are dropped, and their content with them
                await gateway.ask(token, "y")
            assert queue._total == sum(queue._sizes) < 3 * 1300
            assert len(queue._sizes) <= 40
            await gateway.ask(token, "x" * 1000)
            assert queue._total > 1000


async def test_content_that_was_sent_makes_room(place: Place) -> None:
    async with collecting() as collector, FakeUpstream(pace_s=0, words="yes") as upstream:
        yaml = configuration(upstream.base_url, upstream.base_url, collector.url, {"use": "otel-content"})
        async with running(yaml, *place) as gateway:
            await gateway.ask(await gateway.token(), "x" * 1000)
            await collector.wait(2)
            await wait_until(lambda: queue_of(gateway)._total == 0)


async def test_it_keeps_the_contract(
    store_url: str,
) -> None:
    assert broken(await check("otel-content", url=store_url)) == []


def test_a_bound_is_above_zero() -> None:
    with pytest.raises(ValueError, match="max_bytes must be 1 or more"):
        OtelContent(max_bytes=0)

"""Prompts and answers are in the spans as the semantic conventions for generative AI write them, where they are asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.plugin_kit import broken, check
from gateway.store.client.client import Client
from gateway.testing import FakeUpstream, Running, running
from plugins.otel import Otel
from plugins.otel_content import OtelContent
from plugins.span_content import SpanContent

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra `otel` is not installed")

from plugins import span_queue
from tests.patience import wait_until
from tests.plugins.collector import collecting
from tests.plugins.test_otel import CLIENT, SERVER, configuration, dripping

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
    assert SpanContent(b'[{"role":"user","content":1e999}]', b"7", [b"data: {", b": x\n\n"]).attributes() == {}


async def test_it_is_in_the_span_of_the_upstream_that_answered(store_url: str, client: Client, tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "get_weather", "description": "secret", "parameters": {}}}]
    async with (
        collecting() as collector,
        FakeUpstream(mode="500", pace_s=0) as failing,
        FakeUpstream(pace_s=0, words="it rains") as serving,
    ):
        yaml = configuration(
            *(failing.base_url, serving.base_url, collector.url), {"use": "otel-content", "with": {"max_bytes": 900}}
        )
        async with running(yaml, tmp_path, store_url) as gateway:
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
async def test_of_others_nothing_is_kept(
    store_url: str, client: Client, tmp_path: Path, otel: dict[str, Any], content: dict[str, Any]
) -> None:
    async with collecting() as collector, FakeUpstream(pace_s=0, words="the answer") as upstream:
        yaml = configuration(
            *(upstream.base_url, upstream.base_url, collector.url), {"use": "otel-content", "with": content}, **otel
        )
        async with running(yaml, tmp_path, store_url) as gateway:
            assert (await gateway.ask(await gateway.token(), "a question")).status == 200
        assert "question" not in repr(collector.spans)
        assert "answer" not in repr(collector.spans).replace("answered", "")


def queue_of(gateway: Running) -> span_queue.SpanQueue:
    """Return what waits in the plugin `otel` of a gateway."""
    (otel,) = [entry.plugin for entry in gateway.gateway.chain.entries if isinstance(entry.plugin, Otel)]
    return otel._spans._queue


async def test_content_that_no_collector_takes_is_bounded(
    store_url: str, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_queue, "MOST_CONTENT", 5000)
    async with dripping(0.05) as (endpoint, received), FakeUpstream(pace_s=0, words="yes") as upstream:
        yaml = configuration(upstream.base_url, upstream.base_url, endpoint, {"use": "otel-content"}, queue=40)
        async with running(yaml, tmp_path, store_url) as gateway:
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


async def test_content_that_was_sent_makes_room(store_url: str, client: Client, tmp_path: Path) -> None:
    async with collecting() as collector, FakeUpstream(pace_s=0, words="yes") as upstream:
        yaml = configuration(upstream.base_url, upstream.base_url, collector.url, {"use": "otel-content"})
        async with running(yaml, tmp_path, store_url) as gateway:
            await gateway.ask(await gateway.token(), "x" * 1000)
            await collector.wait(2)
            await wait_until(lambda: queue_of(gateway)._total == 0)


async def test_it_keeps_the_contract(store_url: str, client: Client) -> None:
    assert broken(await check("otel-content", url=store_url)) == []


def test_a_bound_is_above_zero() -> None:
    with pytest.raises(ValueError, match="max_bytes must be 1 or more"):
        OtelContent(max_bytes=0)

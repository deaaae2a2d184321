"""A collector gets a span for each request and one for each call of an upstream, as today's conventions name what is in them."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest
from aiohttp import ClientSession

from gateway.contract import broken, check
from gateway.store.client.client import Client
from gateway.testing import FakeUpstream, running
from plugins.otel import Otel

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra `otel` is not installed")

from tests.plugins.collector import collecting

SERVER, CLIENT = 2, 3
CALLER = {"trace": "0af7651916cd43dd8448eb211c80319c", "id": "b7ad6b7169203331"}


def configuration(failing: str, serving: str, endpoint: str) -> str:
    """Return a gateway whose first channel fails, with traces at the top."""
    otel = {"endpoint": endpoint, "headers": {"x-api-key": "sesame"}, "providers": {"west": "mistral_ai"}}
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
            *({"use": name} for name in ("auth", "rate-limit", "quota", "model-routing")),
        ],
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


async def test_it_keeps_the_contract_where_no_collector_answers(store_url: str, client: Client) -> None:
    assert broken(await check("otel", {"endpoint": "http://127.0.0.1:9/v1/traces"}, url=store_url)) == []


@pytest.mark.parametrize(
    ("settings", "error"), [({"ratio": 2.0}, "from 0 to 1"), ({"queue": 0}, "queue must be 1 or more")]
)
def test_a_setting_out_of_range_is_refused(settings: dict[str, float], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        Otel(**settings)  # type: ignore[arg-type]

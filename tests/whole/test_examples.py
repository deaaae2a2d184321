"""The example plugins, and the dialect of the author's guide, in the chain of a whole gateway."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from gateway.testing import FakeUpstream, configuration, running
from tests.patience import PATIENCE_S
from tests.place import Place
from tests.test_docs import named
from tests.whole.aftermath import last_end_record
from tests.whole.conftest import CHAIN
from tests.whole.raw import ask, chat
from tests.whole.scripted import CHUNKED, LAST, Scripted, Step, chunk

EXAMPLES: list[dict[str, object]] = [
    {"use": "plugins.examples.address_allow_list:AddressAllowList", "with": {"networks": ["127.0.0.0/8"]}},
    {"use": "plugins.examples.prompt_size:PromptSize", "with": {"tokens": 1000, "groups": {"default": 100}}},
    {"use": "plugins.examples.prompt_patterns:PromptPatterns"},
    {"use": "plugins.examples.response_stamp:ResponseStamp"},
    {"use": "plugins.examples.first_token_alarm:FirstTokenAlarm"},
]


async def test_the_five_examples_work_together_and_refuse_in_the_common_error_shape(place: Place) -> None:
    async with FakeUpstream(pace_s=0) as upstream:
        async with running(configuration(upstream.base_url, *EXAMPLES), *place) as gateway:
            token = await gateway.token()
            good = await gateway.ask(token, "Tell me a story")
            assert (good.status, good.headers["x-served-by"]) == (200, "fake")
            large = await gateway.ask(token, "x" * 1000)
            assert (large.status, b'"code":"prompt_too_large"' in large.body) == (413, True)
            card = await gateway.ask(token, "4111 1111 1111 1111")
            assert (card.status, b'"code":"prompt_forbidden"' in card.body) == (400, True)
        assert len(upstream.requests) == 1


async def test_a_forbidden_address_is_refused_before_the_token_is_checked(place: Place) -> None:
    closed = {**EXAMPLES[0], "with": {"networks": ["192.0.2.0/24"]}}
    async with FakeUpstream(pace_s=0) as upstream:
        chain = configuration(upstream.base_url).replace('{"use":"auth"}', f'{_json(closed)},{{"use":"auth"}}')
        async with running(chain, *place) as gateway:
            refused = await gateway.ask("no token at all")
            assert (refused.status, b'"code":"address_forbidden"' in refused.body) == (403, True)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


TEXT = [{"text": "Hello"}, {"text": " you"}]
END = {"end": "stop", "in": 3, "out": 2}
FAILURE = {"failure": "out of order"}


def answered(*events: dict[str, Any]) -> list[Step]:
    return [CHUNKED + chunk(b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events)) + LAST]


async def test_the_dialect_of_the_guide(store_url: str, tmp_path: Path) -> None:
    (tmp_path / "plain_dialect.py").write_text(named("plugins")["plain_dialect.py"])
    whole, broken, cut = answered(*TEXT, END), answered(*TEXT, FAILURE), answered(*TEXT)
    async with Scripted(whole, whole, broken, cut, answered(FAILURE)) as upstream:
        text = f"""
channels: {{theirs: {{base_url: "{upstream.base_url}", api_key: key-4711, dialect: generate}}}}
models: {{words: {{input: 1, output: 2, channels: [{{use: theirs, model: large}}]}}}}
groups: {{default: {{}}}}
port: {{allow_non_streaming: true}}
store: {{timeout: {PATIENCE_S}}}
{CHAIN}
  - use: plain_dialect:PlainDialect
"""
        async with running(text, tmp_path, store_url) as gateway:
            token = await gateway.token()
            streamed = await ask(gateway.port, chat(token, {"max_tokens": 50}))
            assert streamed.whole
            assert streamed.body.endswith(b"data: [DONE]\n\n")
            assert (await last_end_record(gateway)).charge_micros == 3 + 2 * 2
            plain = await ask(gateway.port, chat(token, {"stream": False}))
            assert json.loads(plain.body)["choices"][0]["message"]["content"] == "Hello you"
            refused = await ask(
                gateway.port, chat(token, {"messages": [{"role": "user", "content": [{"type": "text"}]}]})
            )
            assert (refused.status, refused.error["param"]) == (400, "messages")
            for outcome in ("upstream_error_in_stream", "upstream_truncated"):
                assert not (await ask(gateway.port, chat(token))).whole
                record = await last_end_record(gateway)
                assert (record.outcome, record.usage_source) == (outcome, "estimated")
            assert (await ask(gateway.port, chat(token))).status == 502
        sent, body = upstream.requests[0].split(b"\r\n\r\n", 1)
        assert sent.startswith(b"POST /v1/generate HTTP/1.1\r\n")
        assert b"x-key: key-4711\r\n" in sent
        assert json.loads(body) == {"model": "large", "prompt": "hi", "limit": 50}

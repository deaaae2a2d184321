"""What a whole gateway sends upstream and charges for a body, and which bodies it refuses before anything is spent."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from gateway.chat.prompt import ENCODED_TOKENS
from gateway.fake_upstream import FakeUpstream
from gateway.testing import Running
from tests.whole.aftermath import charged, last_end_record
from tests.whole.conftest import CHAIN, Serve
from tests.whole.raw import ask, chat

PICTURE = base64.b64encode(bytes(range(256)) * 3000).decode()
FOLDED = (
    b'{"model":"words","messages":[{"role":"user"}],"stream":true,"max_tokens":1,"Model":"hidden","Max_Tokens":100000,'
    b'"N":16,"Stream_Options":{"include_usage":false}}'
)


@pytest.mark.parametrize(
    ("channel", "name"),
    [("", "max_tokens"), (", ceiling_field: max_completion_tokens", "max_completion_tokens")],
)
@pytest.mark.parametrize("given", [{}, {"max_tokens": 7}, {"max_completion_tokens": 7}])
async def test_a_ceiling_is_sent_under_the_channels_name(
    upstream: FakeUpstream, serve: Serve, channel: str, name: str, given: dict[str, Any]
) -> None:
    async with serve(upstream.base_url, channel=channel) as gateway:
        assert (await ask(gateway.port, chat(await gateway.token(), given))).status == 200
    sent = json.loads(upstream.requests[0].body)
    assert {field: sent[field] for field in sent if field.startswith("max_")} == {name: 7 if given else 100}


async def test_a_field_in_another_spelling_reaches_no_upstream(gateway: Running, upstream: FakeUpstream) -> None:
    answer = await ask(gateway.port, chat(await gateway.token(), FOLDED))
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "invalid_request", "Model")
    assert upstream.requests == []
    assert await charged(gateway) == 0


async def test_a_field_that_names_other_models_is_sent_only_where_the_operator_allows_it(
    upstream: FakeUpstream, serve: Serve
) -> None:
    port = "port: {allow_fields: [models]}"
    async with serve(upstream.base_url, more=port) as gateway:
        token = await gateway.token()
        assert (await ask(gateway.port, chat(token, {"models": ["a"]}))).status == 200
        refused = await ask(gateway.port, chat(token, {"fallbacks": ["a"]}))
    assert (refused.status, refused.error["param"]) == (400, "fallbacks")
    assert [json.loads(sent.body)["models"] for sent in upstream.requests] == [["a"]]


@pytest.mark.parametrize(
    ("given", "least", "most"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f", "description": "x" * 1000}}] * 200}, 50_000, 60_000),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": "x" * 200_000}}}, 49_000, 51_000),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}},
                            {"type": "text", "text": "What is this?"},
                        ],
                    }
                ]
            },
            ENCODED_TOKENS,
            ENCODED_TOKENS + 100,
        ),
    ],
    ids=["tools", "response_format", "picture"],
)
async def test_input_of_which_the_upstream_reports_nothing_is_charged_by_every_field(
    gateway: Running, upstream: FakeUpstream, given: dict[str, Any], least: int, most: int
) -> None:
    upstream.mode = "no-usage"
    assert (await ask(gateway.port, chat(await gateway.token(), given))).status == 200
    record = await last_end_record(gateway)
    assert least <= record.prompt_tokens <= most
    assert record.charge_micros == record.prompt_tokens + 2 * record.completion_tokens


@pytest.mark.parametrize(("text", "status"), [("", 200), ("word " * 20_000, 429)])
async def test_a_large_picture_fits_a_limit_on_tokens_and_as_much_text_does_not(
    upstream: FakeUpstream, serve: Serve, text: str, status: int
) -> None:
    content = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}},
        {"type": "text", "text": text},
    ]
    chain = CHAIN.replace("tokens_per_minute: 1000000", "tokens_per_minute: 10000")
    async with serve(upstream.base_url, chain=chain) as gateway:
        body = {"messages": [{"role": "user", "content": content}]}
        assert (await ask(gateway.port, chat(await gateway.token(), body))).status == status

"""What `GET /v1/models` tells a caller of each model: what that caller pays, and the ceilings."""

from __future__ import annotations

import json
from decimal import ROUND_CEILING, Decimal
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.base.errors import Refused
from gateway.chat.usage import Usage
from gateway.config.schema import Config, load
from gateway.domain.catalogue import Catalogue
from gateway.domain.facts import Caller
from gateway.server.routes import ModelList
from gateway.store.client.client import Client
from gateway.testing import running
from tests.whole.raw import ask, get

FILE = """
channels:
  secret-channel: {base_url: "http://127.0.0.1:9/v1", api_key: channel-credential-4711}
models:
  large:
    input: 2.5
    cached_input: 0.25
    cache_write: 3.125
    output: 10
    request: 0.0005
    tiers: [{above: 200000, input: 5, output: 15}, {above: 400000, output: 20}]
    max_output_tokens: 16384
    context_length: 1000000
    channels: [{use: secret-channel, model: hidden-name, cost: {input: 1.25, output: 5}}]
  small: {input: 0.05, output: 0.000001, channels: [secret-channel]}
  gift: {free: true, channels: [secret-channel]}
  other: {input: 1, output: 1, channels: [secret-channel]}
groups:
  default: {models: [large, small, gift]}
  dear: {ratio: 1.333333}
  nothing: {ratio: 0}
plugins: [{use: auth}, {use: quota}, {use: model-routing}]
"""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    path = tmp_path / "gateway.yaml"
    path.write_text(FILE)
    return load(path).config


def listed(config: Config, group: str, **restrictions: Any) -> dict[str, dict[str, Any]]:
    models = ModelList(Catalogue(config))
    caller = Caller("alice", "t", group, **restrictions)
    found = json.loads(models.all(caller))
    assert found == json.loads(models.all(caller))
    assert found["object"] == "list"
    for model in found["data"]:
        assert json.loads(models.one(model["id"], caller)) == model
    return {model["id"]: model for model in found["data"]}


def test_a_model_has_its_prices_and_ceilings_as_openrouter_names_them(config: Config) -> None:
    assert listed(config, "default")["large"] == {
        "id": "large",
        "object": "model",
        "created": 0,
        "owned_by": "sluicegate",
        "type": "model",
        "display_name": "large",
        "created_at": "1970-01-01T00:00:00Z",
        "context_length": 1_000_000,
        "max_output_tokens": 16384,
        "top_provider": {"context_length": 1_000_000, "max_completion_tokens": 16384},
        "pricing": {
            "prompt": "0.0000025",
            "completion": "0.00001",
            "request": "0.0005",
            "input_cache_read": "0.00000025",
            "input_cache_write": "0.000003125",
            "overrides": [
                {
                    "min_prompt_tokens": 200_001,
                    "prompt": "0.000005",
                    "completion": "0.000015",
                    "input_cache_read": "0.00000025",
                    "input_cache_write": "0.000003125",
                },
                {
                    "min_prompt_tokens": 400_001,
                    "prompt": "0.0000025",
                    "completion": "0.00002",
                    "input_cache_read": "0.00000025",
                    "input_cache_write": "0.000003125",
                },
            ],
        },
    }


def test_what_is_not_known_is_left_out_and_what_is_free_is_zero(config: Config) -> None:
    small, gift = (listed(config, "default")[name] for name in ("small", "gift"))
    assert "context_length" not in small
    assert small["top_provider"] == {"max_completion_tokens": 4096}
    assert small["pricing"] == {
        "prompt": "0.00000005",
        "completion": "0.000000000001",
        "request": "0",
        "input_cache_read": "0.00000005",
        "input_cache_write": "0.00000005",
    }
    assert set(gift["pricing"].values()) == {"0"}


@pytest.mark.parametrize("group", ["default", "dear", "nothing"])
def test_the_prices_are_those_that_this_group_is_charged(config: Config, group: str) -> None:
    pricing = {
        name: Decimal(text) for name, text in listed(config, group)["large"]["pricing"].items() if name != "overrides"
    }
    usage = Usage(100_000, 30_000, "upstream", cached_tokens=20_000, cache_write_tokens=10_000, answers=1)
    due = pricing["request"] + 30_000 * pricing["completion"] + 70_000 * pricing["prompt"]
    due += 20_000 * pricing["input_cache_read"] + 10_000 * pricing["input_cache_write"]
    price = Catalogue(config).price("large", group)
    assert price is not None
    assert price.of(usage) == (due * 1_000_000).to_integral_value(ROUND_CEILING)


def test_a_caller_sees_what_it_may_use_and_no_channel_or_cost(config: Config) -> None:
    assert list(listed(config, "default")) == ["large", "small", "gift"]
    assert list(listed(config, "dear", account_models=("o*", "small"), token_models=("other",))) == ["other"]
    models = ModelList(Catalogue(config))
    with pytest.raises(Refused) as refused:
        models.one("other", Caller("alice", "t", "default"))
    assert refused.value.code == "model_not_found"
    for text in (models.all(None), models.all(Caller("alice", "t", "default"))):
        assert not [secret for secret in (b"channel", b"hidden", b"1.25", b"0.00000125", b"cost") if secret in text]


async def test_the_port_and_the_official_client_show_them(tmp_path: Path, store_url: str, client: Client) -> None:
    async with running(FILE, tmp_path, store_url) as gateway:
        token = await gateway.token()
        answer = await ask(gateway.port, get("/v1/models/large", token))
        assert (answer.status, answer.headers["content-type"]) == (200, "application/json; charset=utf-8")
        assert json.loads(answer.body)["pricing"]["completion"] == "0.00001"
        assert (await ask(gateway.port, get("/v1/models/other", token))).error["code"] == "model_not_found"
        async with openai.AsyncOpenAI(base_url=gateway.base_url, api_key=token, max_retries=0) as library:
            models = [model async for model in library.models.list()]
        assert [model.id for model in models] == ["large", "small", "gift"]
        assert models[0].model_extra is not None
        assert models[0].model_extra["context_length"] == 1_000_000

"""What callers are told of models, of paths that are not served, and of what a list lacks; the turns of queries."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from decimal import ROUND_CEILING, Decimal
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.base.errors import Refused, StoreAway
from gateway.chat.usage import Usage
from gateway.config.schema import Config, load
from gateway.domain.catalogue import Catalogue
from gateway.domain.facts import Caller
from gateway.operations.operation import Operation
from gateway.server.own_records import MAX_QUERIES, THREADS, Lookups, notes_of
from gateway.server.routes import KNOWN_PATHS, ModelList, misdirected, operation_of
from gateway.testing import running
from gateway.usage.completeness import About, KnownGateway, save
from gateway.usage.database import UsageFiles
from tests.patience import PATIENCE_S
from tests.place import Place
from tests.whole.raw import ask, get

# What `GET /v1/models` tells a caller of each model: what that caller pays, and the ceilings.
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


async def test_the_port_and_the_official_client_show_them(place: Place) -> None:
    async with running(FILE, *place) as gateway:
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


# What a caller is told about paths that are not served.
@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/chat/completions/chat/completions", "/chat/completions"),
        ("/v1/chat/completions/models", "/chat/completions"),
        ("/v1/chat/completions/v1/chat/completions", "/chat/completions"),
        ("/v1/chat/completions/responses", "/chat/completions"),
        ("/v1/chat/chat/completions", "/chat"),
        ("/v1/models/chat/completions", "/models"),
        ("/chat/completions/chat/completions", "/chat/completions"),
    ],
)
def test_a_base_address_with_the_path_of_a_request_is_told_what_to_remove(path: str, more: str) -> None:
    refused = misdirected("POST", path)
    assert (refused.status, refused.code) == (404, "unknown_path")
    assert refused.message.endswith(f"Remove {more} from the end of the base address.")


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions/chatcmpl-1", "/v1/chatter/completions", "/v1/chat/completions2"]
)
def test_a_path_that_only_begins_alike_is_unknown(path: str) -> None:
    assert misdirected("POST", path).message.startswith(f"There is no {path} here. Known here: ")


@pytest.mark.parametrize("path", ["/v1/images/upscale", "/v1/messages/batches", "/v1/embeddings/1", "/v1/audio/voices"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_another_api_is_told_what_is_served(method: str, path: str) -> None:
    refused = misdirected(method, path)
    assert (refused.status, refused.code) == (404, "unknown_path")
    assert refused.message.endswith(KNOWN_PATHS)


@pytest.mark.parametrize(
    ("method", "path", "stored"),
    [
        ("GET", "/v1/responses/resp_1", "resp_1"),
        ("HEAD", "/v1/responses/resp_1", "resp_1"),
        ("DELETE", "/v1/responses/resp_1", "resp_1"),
        ("GET", "/v1/responses/resp_1/input_items", "resp_1/input_items"),
        *(("POST", "/v1/responses/resp_1/cancel", "resp_1/cancel"), ("POST", "/v1/responses/resp_1", "")),
        *(("DELETE", "/v1/responses/resp_1/input_items", ""), ("GET", "/v1/responses/resp_1/cancel", "")),
        *(("GET", "/v1/responses/compact", ""), ("GET", "/v1/responses/..", "")),
        *(("GET", "/v1/responses/../models", ""), ("GET", "/v1/responses/a%2Fb", "")),
        ("GET", "/v1/responses/", ""),
    ],
)
def test_an_answer_that_is_kept_has_a_path(method: str, path: str, stored: str) -> None:
    found = (Operation.STORED_RESPONSES, stored) if stored else (Operation.MISDIRECTED, "")
    assert operation_of(method, path) == found


def test_a_slash_at_the_end_is_named() -> None:
    assert misdirected("POST", "/v1/chat/completions/").message == "Remove the slash at the end of the path."


def test_a_model_may_be_called_like_an_api() -> None:
    assert operation_of("GET", "/v1/models/embeddings")[1] == "embeddings"


# What a list may lack is said in words for callers.
DAY_MS = 86_400_000


def test_other_gateways_that_may_have_more_are_named_without_their_hosts(tmp_path: Path) -> None:
    one, two = About("host-one"), About("host-two", forgotten_ms=3 * DAY_MS)
    pairs = (("0a1b2c3d", one, 10 * DAY_MS), ("4e5f6a7b", two, 2 * DAY_MS))
    save(tmp_path, [KnownGateway(*each, now_ms=20 * DAY_MS) for each in pairs])
    assert notes_of(UsageFiles(tmp_path), [], 4 * DAY_MS, 18 * DAY_MS) == [
        "Gateway 0a1b2c3d was last heard of at 1970-01-11T00:00:00.000Z: requests of it may be missing here."
    ]
    assert notes_of(UsageFiles(tmp_path), [], 0, 5 * DAY_MS) == [
        "Gateway 4e5f6a7b was last heard of at 1970-01-03T00:00:00.000Z and forgotten at 1970-01-04T00:00:00.000Z: "
        "what it had then is lost."
    ]
    assert len(notes_of(UsageFiles(tmp_path), [])) == 2


# The turns of queries: one of an account at a time, a few that wait, and threads of their own.
class Gate:
    """Queries that wait in their threads until they are let through."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.running = 0
        self.most = 0
        self._lock = threading.Lock()

    def query(self, result: object = None) -> Callable[[], object]:
        def run() -> object:
            with self._lock:
                self.running += 1
                self.most = max(self.most, self.running)
            assert self.open.wait(PATIENCE_S)
            with self._lock:
                self.running -= 1
            return result

        return run


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.001)


async def test_one_query_of_an_account_runs_at_a_time_in_their_order() -> None:
    lookups, order = Lookups(), list[int]()
    await asyncio.gather(*(lookups.in_thread("alice", partial(order.append, number)) for number in range(8)))
    assert order == list(range(8))


async def test_another_account_does_not_wait_for_one_that_asks_much_and_too_many_are_refused() -> None:
    lookups, gate = Lookups(), Gate()
    asked = [asyncio.create_task(lookups.in_thread("alice", gate.query(number))) for number in range(MAX_QUERIES)]
    await until(lambda: gate.running == 1)
    with pytest.raises(Refused, match="8 requests for lists") as refused:
        await lookups.in_thread("alice", gate.query())
    assert (refused.value.status, refused.value.code, refused.value.retry_after_s) == (429, "too_many_concurrent", 1)
    assert await lookups.in_thread("bob", lambda: "answered") == "answered"
    gate.open.set()
    assert await asyncio.gather(*asked) == list(range(MAX_QUERIES))
    assert gate.most == 1
    assert await lookups.in_thread("alice", lambda: "answered") == "answered"


async def test_a_process_runs_a_few_at_once() -> None:
    lookups, gate = Lookups(), Gate()
    asked = [asyncio.create_task(lookups.in_thread(f"account{number}", gate.query())) for number in range(2 * THREADS)]
    await until(lambda: gate.running == THREADS)
    gate.open.set()
    await asyncio.gather(*asked)
    assert gate.most == THREADS


async def test_a_caller_that_leaves_does_not_free_its_turn_before_its_query_has_ended() -> None:
    lookups, gate = Lookups(), Gate()
    for _ in range(MAX_QUERIES):
        asked = asyncio.create_task(lookups.in_thread("alice", gate.query()))
        await asyncio.sleep(0)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
    with pytest.raises(Refused):
        await lookups.in_thread("alice", gate.query())
    gate.open.set()
    await until(lambda: not lookups._accounts)
    assert gate.most == 1


async def test_a_failed_query_does_not_stop_the_next_one() -> None:
    lookups = Lookups()

    async def fail() -> None:
        raise StoreAway("away")

    async def answer() -> str:
        return "answered"

    failed, answered = await asyncio.gather(
        lookups.run("alice", fail), lookups.run("alice", answer), return_exceptions=True
    )
    assert isinstance(failed, StoreAway)
    assert answered == "answered"

"""Responses that upstreams keep: who may name them, which upstream is asked, and the price of a conversation that is kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.fake_upstream import FakeUpstream
from gateway.operations.kept import KeptId
from gateway.operations.operation import SERVED
from gateway.server.own_records import MAX_QUERIES
from gateway.store.channels import fingerprint_of
from gateway.testing import Running, running
from tests.patience import PATIENCE_S
from tests.place import Place
from tests.whole.conftest import CHAIN
from tests.whole.raw import Answer, ask, chat, get
from tests.whole.scripted import Fin, Hold, Scripted

KEYS = ("key-of-the-first-1", "key-of-the-second")
EVERY = f"operations: [{', '.join(SERVED)}]"
RESPONSES = "/v1/responses"
ABOUT = ("GET {}", "GET {}/input_items", "POST {}/cancel", "DELETE {}")


def configuration(
    *addresses: str, context: str = ", context_length: 1000", keys: tuple[str, ...] = KEYS, more: str = ""
) -> str:
    channels = "\n".join(
        f'  up{number}: {{base_url: "{address}", api_keys: [{", ".join(keys)}], {EVERY}, on_caller_gone: cancel{more}}}'
        for number, address in enumerate(addresses)
    )
    names = ", ".join(f"up{number}" for number in range(len(addresses)))
    return f"""
channels:
{channels}
models:
  words: {{input: 1, output: 2, max_output_tokens: 100, channels: [{names}]{context}}}
  other: {{input: 1, output: 2, max_output_tokens: 100, channels: [{names}]}}
groups: {{default: {{models: [words, other]}}}}
{CHAIN}
"""


@pytest.fixture
async def upstreams() -> AsyncIterator[list[FakeUpstream]]:
    async with FakeUpstream(pace_s=0) as one, FakeUpstream(pace_s=0) as other:
        yield [one, other]


@asynccontextmanager
async def serving(
    upstreams: list[FakeUpstream], folder: Path, url: str, credit: int = 5_000_000, **options: Any
) -> AsyncIterator[tuple[Running, str]]:
    yaml = configuration(*(each.base_url for each in upstreams), **options)
    async with running(yaml, folder, url) as gateway:
        yield gateway, await gateway.token(credit=credit)


async def post(gateway: Running, token: str, body: dict[str, Any], path: str = RESPONSES) -> Answer:
    return await ask(gateway.port, chat(token, json.dumps({"model": "words", **body}).encode(), path=path))


async def about(gateway: Running, token: str, request: str, name: str) -> Answer:
    method, _, path = request.format(f"{RESPONSES}/{name}").partition(" ")
    return await ask(gateway.port, get(path, token, method=method))


async def first(gateway: Running, token: str, **fields: Any) -> dict[str, Any]:
    answer = await post(gateway, token, {"input": "one two three", **fields})
    assert answer.status == 200, answer.body
    if not fields.get("stream"):
        made: dict[str, Any] = json.loads(answer.body)
        return made
    return dict(json.loads(answer.body.rpartition(b"data: ")[2])["response"])


class Nobody:
    holds = balance_micros = 0


async def balance(gateway: Running) -> int:
    return (await gateway.store.accounts.get("tester") or Nobody).balance_micros


def naming(made: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the bodies that name an answer, or an item of it, in each way that there is."""
    (item,) = made["output"]
    told = {"role": "user", "content": "four"}
    return [
        {"input": "four", "previous_response_id": made["id"]},
        {"input": [told, {"type": "item_reference", "id": item["id"]}]},
        {"input": [told, {"id": item["id"]}]},
        {"input": [told, {"type": "reasoning", "id": item["id"], "summary": [], "encrypted_content": None}]},
    ]


def code(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.error["code"]


def asked_last(upstreams: list[FakeUpstream]) -> tuple[str, str]:
    """Return which upstream was asked, and with which credential. It was asked once."""
    ((upstream, request),) = [(each, request) for each in upstreams for request in each.requests]
    upstream.requests.clear()
    return upstream.base_url, request.headers["Authorization"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_goes_back_to_the_channel_and_credential_that_keep_it(
    upstreams: list[FakeUpstream], place: Place, stream: bool
) -> None:
    async with serving(upstreams, *place) as (gateway, token):
        for _ in range(4):  # another channel or credential would be as likely
            made = await first(gateway, token, stream=stream)
            where = asked_last(upstreams)
            for named in naming(made):
                assert (await post(gateway, token, named | {"stream": stream})).status == 200
                assert asked_last(upstreams) == where
            for path in ("compact", "input_tokens"):
                assert (await post(gateway, token, naming(made)[0], f"{RESPONSES}/{path}")).status == 200
                assert asked_last(upstreams) == where
            statuses = []
            for request in ABOUT:
                statuses.append((await about(gateway, token, request, made["id"])).status)
                assert asked_last(upstreams) == where
            assert statuses == [200, 200, 400, 200]  # an answer that has ended cannot be cancelled
            assert code(await about(gateway, token, ABOUT[0], made["id"])) == (404, "response_not_found")
            of_a_deleted_one = [code(await post(gateway, token, named)) for named in naming(made)]
            assert of_a_deleted_one == [(404, "response_not_found")] * 4
            assert all(each.requests == [] for each in upstreams)


async def test_it_is_read_again_as_the_upstream_has_it(upstreams: list[FakeUpstream], place: Place) -> None:
    async with serving(upstreams, *place) as (gateway, token):
        made = await first(gateway, token)
        asked_last(upstreams)
        told = await about(gateway, token, "GET {}?include[]=reasoning.encrypted_content&stream=false", made["id"])
        assert json.loads(told.body) == made
        request = next(request for each in upstreams for request in each.requests)
        assert request.path == f"{RESPONSES}/{made['id']}?include[]=reasoning.encrypted_content&stream=false"
        assert (request.method, request.body) == ("GET", b"")
        for query, expected in (("stream=true", "not_served"), ("api-version=1", "invalid_request")):
            assert code(await about(gateway, token, f"GET {{}}?{query}", made["id"])) == (400, expected)
        account = await gateway.store.accounts.get("tester")
        assert account is not None
        usage = made["usage"]
        cost = usage["input_tokens"] + 2 * usage["output_tokens"]
        assert (account.balance_micros, account.holds) == (5_000_000 - cost, 0)  # to read it again is free


async def test_nobody_elses_answer_can_be_named(upstreams: list[FakeUpstream], place: Place) -> None:
    async with serving(upstreams, *place) as (gateway, token):
        made, other = await first(gateway, token), await gateway.token("another")
        kept = await first(gateway, token, store=False)
        for each in upstreams:
            each.requests.clear()
        refused = [await post(gateway, other, named) for named in naming(made)]
        never = [await post(gateway, other, named) for named in naming({"id": "r", "output": [{"id": "i"}]})]
        refused += [await about(gateway, other, request, made["id"]) for request in ABOUT]
        never += [await about(gateway, other, request, "r") for request in ABOUT]
        assert {code(each) for each in refused} == {(404, "response_not_found")}

        def shown(answer: Answer, *names: str) -> str:
            told = str(answer.error | {"request_id": ""})
            return told.replace(f" '{names[0]}'", "").replace(f" '{names[1]}'", "")

        ids = (made["id"], made["output"][0]["id"])
        assert [shown(each, *ids) for each in refused] == [shown(each, "r", "i") for each in never]
        unkept = [await post(gateway, token, named) for named in naming(kept)]
        assert {code(each) for each in unkept} == {(404, "response_not_found")}
        assert all(each.requests == [] for each in upstreams)
        account = await gateway.store.accounts.get("another")
        assert account is not None
        assert (account.balance_micros, account.holds) == (5_000_000, 0)


async def test_the_tokens_that_a_conversation_adds_are_held_and_charged(
    upstreams: list[FakeUpstream], place: Place
) -> None:
    async with serving(upstreams[:1], *place, credit=50_000) as (gateway, token):
        made = await first(gateway, token)
        total, output = made["usage"]["total_tokens"], made["usage"]["output_tokens"]
        long = {"instructions": "x" * 100_000}
        for named, added in zip(naming(made), (total, output, output, output), strict=True):
            with_it = await post(gateway, token, named | long)
            told = {"role": "user", "content": "four"}
            size = len(json.dumps(named)) - len(json.dumps({"input": [told]}))
            items = len(named["input"]) - 1 if isinstance(named["input"], list) else 0
            plain = await post(gateway, token, {"input": [told], "instructions": long["instructions"] + "x" * size})
            assert {code(with_it), code(plain)} == {(402, "insufficient_balance")}
            between = with_it.error["needed_micros"] - plain.error["needed_micros"]
            assert between == added + 16 * (1 + items) - (0 if items else 16)
            # Of another model it may have other tokens, and this one has no `context_length`.
            assert code(await post(gateway, token, named | {"model": "other"})) == (400, "not_served")
            before = await gateway.store.accounts.get("tester")
            usage = json.loads((await post(gateway, token, named)).body)["usage"]
            after = await gateway.store.accounts.get("tester")
            assert before is not None
            assert after is not None
            assert usage["input_tokens"] == added + 1
            assert before.balance_micros - after.balance_micros == usage["input_tokens"] + 2 * usage["output_tokens"]


async def test_where_the_tokens_are_not_known_the_whole_context_is_held(
    upstreams: list[FakeUpstream], place: Place
) -> None:
    upstreams[0].mode = "truncate"
    context = ", context_length: 7000000"
    async with serving(upstreams[:1], *place, context=context) as (gateway, token):
        answer = await post(gateway, token, {"input": "one two three", "stream": True})
        name = json.loads(answer.body.split(b"data: ")[1].partition(b"\n")[0])["response"]["id"]
        upstreams[0].mode = "words"
        refused = await post(gateway, token, {"input": "four", "previous_response_id": name, "max_output_tokens": 16})
        assert code(refused) == (402, "insufficient_balance")
        assert refused.error["needed_micros"] == 7_000_000 + 2 * 16


TRUNCATIONS = [
    *(("auto", "", True), ("auto", ", set: {truncation: disabled}", True)),
    *((None, ", set: {truncation: auto}", True), ("disabled", "", False), (None, "", False)),
]


@pytest.mark.parametrize(("truncation", "more", "unknown"), TRUNCATIONS)
async def test_of_a_turn_that_was_truncated_the_whole_context_is_held(
    upstreams: list[FakeUpstream], place: Place, truncation: str | None, more: str, unknown: bool
) -> None:
    context = ", context_length: 7000000"
    async with serving(upstreams[:1], *place, context=context, more=more) as (gateway, token):
        made = await first(gateway, token, truncation=truncation)
        by_id, by_item, *_ = naming(made)
        refused = await post(gateway, token, by_id)
        assert refused.status == (402 if unknown else 200)
        assert not unknown or refused.error["needed_micros"] >= 7_000_000 + 2 * 100
        # An item is a part of the answer, which was told whole.
        went_on = json.loads((await post(gateway, token, by_item)).body)
        assert (await post(gateway, token, naming(went_on)[0])).status == (402 if more else 200)


async def test_a_token_that_is_restricted_names_no_answer_of_another_model(
    upstreams: list[FakeUpstream], place: Place
) -> None:
    async with serving(upstreams, *place) as (gateway, token):
        made = await first(gateway, token)
        restricted = (await gateway.store.tokens.create("tester", models=["other"])).token
        for each in upstreams:
            each.requests.clear()
        refused = [await post(gateway, restricted, named | {"model": "other"}) for named in naming(made)]
        refused += [await about(gateway, restricted, request, made["id"]) for request in ABOUT]
        assert {code(one) for one in refused} == {(404, "response_not_found")}
        assert all(each.requests == [] for each in upstreams)
        assert (await about(gateway, token, ABOUT[0], made["id"])).status == 200


async def test_a_conversation_that_is_kept_falls_back_to_no_other_model(
    upstreams: list[FakeUpstream], place: Place
) -> None:
    context = ", context_length: 1000, fallback: [other]"
    yaml = configuration(*(each.base_url for each in upstreams), context=context)
    for channel, other in (("up0", "words"), ("up1", "other")):
        yaml = yaml.replace(
            f"  {other}: {{input: 1, output: 2, max_output_tokens: 100, channels: [up0, up1]",
            f"  {other}: {{input: 1, output: 2, max_output_tokens: 100, channels: [{channel}]",
        )
    async with running(yaml, *place) as gateway:
        token = await gateway.token()
        made = await first(gateway, token)
        upstreams[0].mode = "500"
        assert (await post(gateway, token, {"input": "hi"})).headers["x-served-model"] == "other"
        upstreams[1].requests.clear()
        refused = [await post(gateway, token, named) for named in naming(made)]
        assert {one.status for one in refused} <= {502, 503}
        assert upstreams[1].requests == []


async def test_questions_about_answers_take_turns(place: Place) -> None:
    async with (
        Scripted([Hold], [Fin]) as upstream,
        running(configuration(upstream.base_url, keys=KEYS[:1]), *place) as gateway,
    ):
        token, other = await gateway.token(), await gateway.token("another")
        kept = KeptId("up0", fingerprint_of(KEYS[0]), "words", "resp_1", 10, told=True)
        for account in ("tester", "another"):
            await gateway.store.kept_ids.remember(account, {"resp_1": kept})
        requests = [ABOUT[number % len(ABOUT)] for number in range(MAX_QUERIES + 1)]
        asked = [asyncio.create_task(about(gateway, token, request, "resp_1")) for request in requests]
        (refused,), _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE_S)
        assert code(refused.result()) == (429, "too_many_concurrent")
        assert int(refused.result().headers["retry-after"]) >= 1
        await upstream.arrived.wait()
        assert len(upstream.requests) == 1
        assert code(await about(gateway, other, ABOUT[0], "resp_1")) == (502, "upstream_error")
        assert len(upstream.requests) == 2
        upstream.abort()
        await asyncio.gather(*asked)
        assert len(upstream.requests) == 1 + MAX_QUERIES


async def test_a_disabled_channel_is_asked_nothing(upstreams: list[FakeUpstream], place: Place) -> None:
    async with serving(upstreams[:1], *place) as (gateway, token):
        made = await first(gateway, token)
        await gateway.store.channels.set_enabled("up0", False)
        upstreams[0].requests.clear()
        refused = [await about(gateway, token, request, made["id"]) for request in ABOUT]
        assert {code(one) for one in refused} == {(503, "model_unavailable")}
        assert upstreams[0].requests == []
        await gateway.store.channels.set_enabled("up0", True)
        assert (await about(gateway, token, ABOUT[0], made["id"])).status == 200


async def test_a_caller_that_leaves_pays_for_the_conversation_that_was_read(
    upstreams: list[FakeUpstream], place: Place
) -> None:
    async with serving(upstreams[:1], *place) as (gateway, token):
        made = await first(gateway, token)
        upstreams[0].mode, charges = "silent", []
        for named in ("", made["id"]):
            body = {"model": "words", "input": "four", "stream": True, "metadata": {"a": "x" * (40 - len(named))}}
            body |= {"previous_response_id": named or None}
            before = await balance(gateway)
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(chat(token, json.dumps(body).encode(), path=RESPONSES))
            async with asyncio.timeout(PATIENCE_S):
                while not upstreams[0].requests or b"four" not in upstreams[0].requests.pop().body:
                    await asyncio.sleep(0.01)
                writer.close()
                while (await gateway.store.accounts.get("tester") or Nobody).holds:
                    await asyncio.sleep(0.01)
            charges.append(before - await balance(gateway))
        assert charges[1] - charges[0] == pytest.approx(made["usage"]["total_tokens"], abs=1)


async def test_an_answer_can_be_named_while_it_is_sent(upstreams: list[FakeUpstream], place: Place) -> None:
    upstreams[0].pace_s = 0.5
    async with serving(upstreams[:1], *place) as (gateway, token):
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(
            chat(token, json.dumps({"model": "words", "input": "four", "stream": True}).encode(), path=RESPONSES)
        )
        started = await reader.readuntil(b"\n\n")
        while b"data: " not in started:
            started = await reader.readuntil(b"\n\n")
        name = json.loads(started.partition(b"data: ")[2])["response"]["id"]
        assert (await about(gateway, token, ABOUT[0], name)).status == 200
        assert (await gateway.store.accounts.get("tester") or Nobody).holds == 1
        writer.close()


async def test_an_upstream_that_is_gone_is_not_replaced(upstreams: list[FakeUpstream], place: Place) -> None:
    async with serving(upstreams[:1], *place) as (gateway, token):
        made = await first(gateway, token)
    for each, keys in ((upstreams[1:], KEYS), (upstreams, ("another-key-of-it",))):
        yaml = configuration(*(one.base_url for one in each), keys=keys).replace(
            "up0", "up9" if keys == KEYS else "up0"
        )
        async with running(yaml, *place) as gateway:
            refused = [await post(gateway, token, named) for named in naming(made)]
            refused += [await about(gateway, token, request, made["id"]) for request in ABOUT]
            assert {code(one) for one in refused} == {(503, "model_unavailable")}
            assert {one.headers["x-should-retry"] for one in refused} == {"false"}
    assert upstreams[1].requests == []


async def test_ids_of_two_upstreams_are_refused(upstreams: list[FakeUpstream], place: Place) -> None:
    async with serving(upstreams, *place) as (gateway, token):
        made = [await first(gateway, token) for _ in range(12)]
        items = [{"type": "item_reference", "id": each["output"][0]["id"]} for each in made]
        answer = await post(gateway, token, {"input": items})
        assert code(answer) == (400, "invalid_request")
        assert "different upstreams" in answer.error["message"]
        own = await post(gateway, token, {"input": [items[0], items[0]]})
        assert own.status == 200


async def test_a_conversation_by_openais_library(upstreams: list[FakeUpstream], place: Place) -> None:
    async with (
        serving(upstreams, *place) as (gateway, token),
        openai.AsyncOpenAI(base_url=gateway.base_url, api_key=token) as client,
    ):
        async with client.responses.stream(model="words", input="hi there") as stream:
            made = await stream.get_final_response()
        assert made.usage is not None
        went_on = await client.responses.create(model="words", input="and", previous_response_id=made.id)
        assert went_on.usage is not None
        assert went_on.usage.input_tokens == made.usage.total_tokens + 1
        read = await client.responses.retrieve(made.id, include=["reasoning.encrypted_content"])
        assert read.output_text == made.output_text
        items = [item async for item in client.responses.input_items.list(went_on.id, limit=5, order="asc")]
        assert len(items) == len("and")
        with pytest.raises(openai.BadRequestError, match="Cannot cancel"):
            await client.responses.cancel(made.id)
        await client.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError, match="no answer or item"):
            await client.responses.retrieve(made.id)
        with pytest.raises(openai.BadRequestError, match="'background' is not served"):
            await client.responses.create(model="words", input="hi", background=True)


@pytest.mark.parametrize("reasoning", [False, True])
async def test_the_second_turn_of_the_ai_sdk(upstreams: list[FakeUpstream], place: Place, reasoning: bool) -> None:
    """The bodies are those of `@ai-sdk/openai` 3.0.141 by its default settings: of an answer it sends references."""
    async with serving(upstreams, *place) as (gateway, token):
        asked = {"role": "user", "content": [{"type": "input_text", "text": "Say hello"}]}
        made = await first(gateway, token, input=[asked])
        where = asked_last(upstreams)
        named = [{"type": "item_reference", "id": made["output"][0]["id"]}] * (2 if reasoning else 1)
        again = {"role": "user", "content": [{"type": "input_text", "text": "Again"}]}
        body = {"input": [asked, *named, again], "max_output_tokens": 50, "stream": True}
        assert (await post(gateway, token, body)).status == 200
        assert asked_last(upstreams) == where

"""The fake upstream as an HTTP client meets it, over real sockets."""

import asyncio
import gzip
import json
import logging
import time
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestClient
from pytest_aiohttp import AiohttpClient

from gateway.fake_upstream import MODES, FakeUpstream
from tests.patience import PATIENCE_S, soon

ASK: dict[str, Any] = {
    "model": "tiny",
    "stream": True,
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name two green fruits"}],
}
USAGE = {"stream_options": {"include_usage": True}}
FOUR_WORDS = "Limes, and also pears."
FOUR_USED = {"prompt_tokens": 6, "completion_tokens": 4, "total_tokens": 10}


COMPLETIONS = "/v1/chat/completions"
SESSION: dict[str, Any] = {
    "timeout": aiohttp.ClientTimeout(total=PATIENCE_S),
    "headers": {"Authorization": "Bearer sesame"},
    "auto_decompress": False,
}

Client = TestClient[Any, Any]


@pytest.fixture
def upstream() -> FakeUpstream:
    return FakeUpstream(pace_s=0.001, words=FOUR_WORDS)


@pytest.fixture
async def client(aiohttp_client: AiohttpClient, upstream: FakeUpstream) -> Client:
    return await aiohttp_client(upstream.application(), **SESSION)


Asking = Callable[..., Any]


@pytest.fixture
def ask(upstream: FakeUpstream, client: Client) -> Asking:
    def post(mode: str = "words", **fields: object) -> Any:
        upstream.mode = mode
        return client.post(COMPLETIONS, json=ASK | fields, allow_redirects=False)

    return post


def data_of(body: bytes) -> list[str]:
    return [event.removeprefix("data: ") for event in body.decode().split("\n\n") if event]


def chunks_of(body: bytes) -> list[dict[str, Any]]:
    return [json.loads(data) for data in data_of(body) if data != "[DONE]"]


def text_of(chunks: list[dict[str, Any]]) -> str:
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk["choices"])


def usages_of(chunks: list[dict[str, Any]]) -> list[dict[str, int]]:
    return [chunk["usage"] for chunk in chunks if "usage" in chunk]


def finishes_of(chunks: list[dict[str, Any]]) -> list[str]:
    return [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]


async def until_called(upstream: FakeUpstream) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not upstream.requests:
            await asyncio.sleep(0.001)


async def post_raw(client: Client) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(client.host, client.port)
    body = json.dumps(ASK).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: {client.host}\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    return reader, writer


async def read_until_failure(response: aiohttp.ClientResponse) -> tuple[bytes, aiohttp.ClientError | None]:
    body = b""
    try:
        async for piece in response.content.iter_any():
            body += piece
    except aiohttp.ClientError as error:
        return body, error
    return body, None


async def test_words_are_streamed_as_role_words_finish_usage_done(ask: Asking) -> None:
    async with ask(**USAGE) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        body = await response.read()
    chunks = chunks_of(body)
    assert data_of(body)[-1] == "[DONE]"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [chunk["choices"][0]["delta"] for chunk in chunks[1:5]] == [
        {"content": "Limes,"},
        {"content": " and"},
        {"content": " also"},
        {"content": " pears."},
    ]
    assert finishes_of(chunks) == ["stop"]
    assert chunks[-1]["choices"] == []
    assert usages_of(chunks) == [FOUR_USED]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert {chunk["model"] for chunk in chunks} == {"tiny"}
    assert len({chunk["id"] for chunk in chunks}) == 1


async def test_usage_is_sent_only_where_it_is_asked_for(ask: Asking) -> None:
    async with ask() as response:
        chunks = chunks_of(await response.read())
    assert usages_of(chunks) == []
    assert all(chunk["choices"] for chunk in chunks)


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
async def test_the_ceiling_is_honoured(ask: Asking, field: str) -> None:
    async with ask(**{field: 2}, **USAGE) as response:
        chunks = chunks_of(await response.read())
    assert text_of(chunks) == "Limes, and"
    assert finishes_of(chunks) == ["length"]
    assert usages_of(chunks)[0]["completion_tokens"] == 2


async def test_the_answer_quotes_the_last_message_of_the_user(aiohttp_client: AiohttpClient) -> None:
    parts = [{"type": "text", "text": "Name two green fruits"}, {"type": "image_url", "image_url": {}}]
    asks = [ASK, ASK | {"messages": [*ASK["messages"], {"role": "user", "content": parts}]}]
    client = await aiohttp_client(FakeUpstream(pace_s=0).application(), **SESSION)
    for asked in asks:
        async with client.post(COMPLETIONS, json=asked) as response:
            assert text_of(chunks_of(await response.read())).startswith('You said "Name two green fruits"')


async def test_words_come_at_their_pace(upstream: FakeUpstream, ask: Asking) -> None:
    upstream.pace_s = 0.05
    began, arrived = time.monotonic(), []
    async with ask() as response:
        async for _ in response.content.iter_any():
            arrived.append(time.monotonic())
    assert len(arrived) >= 5
    assert arrived[-1] - began >= 5 * 0.05


async def test_a_request_without_stream_gets_json(ask: Asking) -> None:
    async with ask(stream=False) as response:
        assert response.content_type == "application/json"
        whole = await response.json()
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": FOUR_WORDS}
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert whole["usage"] == FOUR_USED


async def test_the_models_are_listed(client: Client) -> None:
    async with client.get("/v1/models") as response:
        models = await response.json()
    assert models["object"] == "list"
    assert [model["object"] for model in models["data"]] == ["model"]


async def test_a_body_that_is_no_request_is_400(client: Client) -> None:
    for body in ('{"model": "tiny"}', "{", json.dumps(ASK | {"max_tokens": 0})):
        async with client.post(COMPLETIONS, data=body) as response:
            assert response.status == 400
            assert (await response.json())["error"]["type"] == "invalid_request_error"


async def test_another_credential_than_the_key_is_401(aiohttp_client: AiohttpClient) -> None:
    client = await aiohttp_client(FakeUpstream(pace_s=0, key="sesame").application(), **SESSION)
    async with client.post(COMPLETIONS, json=ASK) as response:
        assert response.status == 200
    for credential in ("Bearer wrong", "sesame", ""):
        async with client.post(COMPLETIONS, json=ASK, headers={"Authorization": credential}) as response:
            assert response.status == 401
            assert (await response.json())["error"]["code"] == "invalid_api_key"


async def test_requests_are_recorded_and_their_repr_shows_no_secret(upstream: FakeUpstream, client: Client) -> None:
    async with client.post(f"{COMPLETIONS}?a=%20b", json=ASK) as response:
        await response.read()
    (received,) = upstream.requests
    assert (received.method, received.path) == ("POST", "/v1/chat/completions?a=%20b")
    assert received.headers["authorization"] == "Bearer sesame"
    assert json.loads(received.body) == ASK
    assert "sesame" not in repr(received)


async def test_only_the_last_requests_are_kept(
    upstream: FakeUpstream, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.fake_upstream.server.MAX_REQUESTS", 2)
    for number in range(4):
        async with client.get(f"/v1/models?{number}"):
            pass
    assert [received.path for received in upstream.requests] == ["/v1/models?2", "/v1/models?3"]


async def test_lines_can_end_with_crlf(ask: Asking) -> None:
    async with ask("crlf") as response:
        body = await response.read()
    assert body.count(b"\r\n\r\n") == len(data_of(body.replace(b"\r\n", b"\n")))
    assert b"\n" not in body.replace(b"\r\n", b"")
    assert text_of(chunks_of(body.replace(b"\r\n", b"\n"))) == FOUR_WORDS


@pytest.mark.parametrize(
    ("mode", "asked", "usages"),
    [
        ("no-usage", USAGE, []),
        ("usage-beside-finish", {}, [FOUR_USED]),
        ("two-usages", {}, [FOUR_USED | {"completion_tokens": 1, "total_tokens": 7}, FOUR_USED]),
    ],
)
async def test_usage_can_be_sent_in_other_ways(
    ask: Asking, mode: str, asked: dict[str, Any], usages: list[dict[str, int]]
) -> None:
    async with ask(mode, **asked) as response:
        body = await response.read()
    chunks = chunks_of(body)
    assert usages_of(chunks) == usages
    assert finishes_of(chunks) == ["stop"]
    assert data_of(body)[-1] == "[DONE]"
    if usages:
        assert finishes_of([chunk for chunk in chunks if "usage" in chunk][:1]) == ["stop"]


@pytest.mark.parametrize(
    ("mode", "text", "finishes"), [("no-done", FOUR_WORDS, ["stop"]), ("truncate", "Limes, and", [])]
)
async def test_a_stream_can_end_properly_but_early(ask: Asking, mode: str, text: str, finishes: list[str]) -> None:
    async with ask(mode) as response:
        body, failure = await read_until_failure(response)
    assert failure is None
    assert b"[DONE]" not in body
    assert text_of(chunks_of(body)) == text
    assert finishes_of(chunks_of(body)) == finishes


async def test_cut_resets_the_connection_in_the_middle_of_an_event(upstream: FakeUpstream, client: Client) -> None:
    upstream.mode = "cut"
    reader, writer = await post_raw(client)
    received = b""
    with pytest.raises(ConnectionResetError):
        while piece := await reader.read(65536):
            received += piece
    assert b" and" in received
    assert received.rstrip().endswith(b'data: {"id":"chatcmpl-')
    writer.close()
    with pytest.raises(ConnectionResetError):
        await writer.wait_closed()


@pytest.mark.parametrize(
    ("mode", "last_words"), [("stall", b" and"), ("drip", b": still thinking"), ("endless", b" more"), ("silent", None)]
)
async def test_some_never_end_and_stop_cuts_them_within_a_second(
    mode: str, last_words: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    received, reached = bytearray(), asyncio.Event()
    upstream = FakeUpstream(mode=mode, pace_s=0.001, words=FOUR_WORDS)
    before = asyncio.all_tasks()

    async def call() -> None:
        async with session.post(f"{upstream.base_url}/chat/completions", json=ASK) as response:
            async for piece in response.content.iter_any():
                received.extend(piece)
                if last_words and last_words in received:
                    reached.set()

    with caplog.at_level(logging.WARNING):
        async with upstream, aiohttp.ClientSession(**SESSION) as session:
            calling = asyncio.create_task(call())
            if last_words:
                await reached.wait()
                assert b"[DONE]" not in received
            await until_called(upstream)
            assert not calling.done()
            await soon(upstream.stop())
            assert asyncio.all_tasks() - before <= {calling}
            with pytest.raises((aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError)):
                await calling
            with pytest.raises(aiohttp.ClientConnectorError):
                await call()
    assert not caplog.records


@pytest.mark.parametrize("mode", ["words", "stall", "silent", "drip", "endless"])
async def test_an_answer_ends_by_itself_when_the_caller_leaves(
    upstream: FakeUpstream, client: Client, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    upstream.mode, upstream.pace_s = mode, 0.01
    before = asyncio.all_tasks()
    with caplog.at_level(logging.WARNING):
        _, writer = await post_raw(client)
        await until_called(upstream)
        answering = asyncio.all_tasks() - before
        assert answering
        writer.transport.abort()
        done, still_open = await soon(asyncio.wait(answering))
    assert done
    assert not still_open
    assert not asyncio.all_tasks() - before
    assert not caplog.records


async def test_slow_first_waits_before_its_status_line(upstream: FakeUpstream, ask: Asking) -> None:
    began = time.monotonic()
    async with ask("slow-first") as response:
        assert time.monotonic() - began >= 50 * upstream.pace_s
        assert text_of(chunks_of(await response.read())) == FOUR_WORDS


@pytest.mark.parametrize(("mode", "text"), [("error-event", "Limes, and"), ("first-error", "")])
async def test_an_error_can_come_as_an_event(ask: Asking, mode: str, text: str) -> None:
    async with ask(mode) as response:
        assert response.status == 200
        *before, last = chunks_of(await response.read())
    assert text_of(before) == text
    assert last["error"]["type"] == "server_error"


@pytest.mark.parametrize("status", [401, 402, 403, 404, 429, 500, 503])
async def test_a_status_is_a_mode(ask: Asking, status: int) -> None:
    async with ask(str(status)) as response:
        assert response.status == status
        assert response.content_type == "application/json"
        assert set((await response.json())["error"]) == {"message", "type", "param", "code"}
        assert response.headers.get("Retry-After") == ("7" if status == 429 else None)


@pytest.mark.parametrize(
    ("mode", "kind"), [("html", "text/html"), ("json", "application/json"), ("empty", "text/event-stream")]
)
async def test_a_200_can_be_no_event_stream(ask: Asking, mode: str, kind: str) -> None:
    async with ask(mode) as response:
        assert (response.status, response.content_type) == (200, kind)
        body = await response.read()
        assert b"data:" not in body
        assert (body == b"") is (mode == "empty")


async def test_huge_is_one_event_of_two_megabytes(ask: Asking) -> None:
    async with ask("huge") as response:
        body = await response.read()
    assert sorted(len(data) for data in data_of(body))[-1] > 2_000_000
    assert finishes_of(chunks_of(body)) == ["stop"]


async def test_gzip_compresses_without_being_asked(ask: Asking) -> None:
    async with ask("gzip") as response:
        assert response.headers["Content-Encoding"] == "gzip"
        body = await response.read()
    assert text_of(chunks_of(gzip.decompress(body))) == FOUR_WORDS


async def test_a_body_is_not_decompressed() -> None:
    packed = gzip.compress(b"{}")
    async with FakeUpstream() as upstream, aiohttp.ClientSession() as session:
        url = f"{upstream.base_url}/chat/completions"
        async with session.post(url, data=packed, headers={"Content-Encoding": "gzip"}) as response:
            assert response.status == 400
        assert upstream.requests[-1].body == packed


async def test_redirect_points_elsewhere_on_the_same_host(ask: Asking) -> None:
    async with ask("redirect") as response:
        assert (response.status, response.headers["Location"]) == (307, "/v1/elsewhere")


async def test_echo_key_puts_the_credential_into_the_text(ask: Asking) -> None:
    async with ask("echo-key") as response:
        assert text_of(chunks_of(await response.read())) == "The key was sesame"


async def test_an_unknown_mode_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown mode 'wordy': one of .*stall"):
        FakeUpstream(mode="wordy")
    upstream = FakeUpstream()
    with pytest.raises(ValueError, match="unknown mode"):
        upstream.mode = "wordy"
    assert upstream.mode == "words"


def test_every_mode_is_explained_in_one_sentence() -> None:
    asked_for = """
        words crlf no-usage usage-beside-finish two-usages no-done truncate cut stall silent slow-first drip
        thinks thinks-in-the-open endless huge empty error-event first-error echo-key html json gzip redirect loading
        401 402 403 404 429 500 503
    """
    assert set(MODES) == set(asked_for.split())
    assert [name for name, sentence in MODES.items() if not sentence.endswith(".") or "\n" in sentence] == []


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2},
        "kind": {"enum": ["fruit", "nut"]},
        "sizes": {"type": "array", "items": {"$ref": "#/$defs/size"}, "minItems": 1},
        "ripe": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        "note": {"type": "string"},
    },
    "required": ["name", "kind", "sizes", "ripe"],
    "$defs": {"size": {"type": "integer", "minimum": 3}},
}
FITTING = {"name": "xx", "kind": "fruit", "sizes": [3], "ripe": False}


@pytest.fixture
async def quoting(aiohttp_client: AiohttpClient) -> Client:
    return await aiohttp_client(FakeUpstream(pace_s=0).application(), **SESSION)


async def test_json_by_a_schema_is_the_smallest_that_fits(quoting: Client) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "fruit", "schema": SCHEMA}}
    async with quoting.post(COMPLETIONS, json=ASK | {"response_format": wanted}) as response:
        assert json.loads(text_of(chunks_of(await response.read()))) == FITTING


async def test_a_tool_that_must_be_called_is_called_once(quoting: Client) -> None:
    function = {"name": "buy", "parameters": SCHEMA}
    tools = {"tools": [{"type": "function", "function": function}]}
    for choice in ("required", {"type": "function", "function": {"name": "buy"}}):
        asked = ASK | tools | {"tool_choice": choice}
        async with quoting.post(COMPLETIONS, json=asked) as response:
            chunks = chunks_of(await response.read())
        (call,) = chunks[0]["choices"][0]["delta"]["tool_calls"]
        assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("buy", FITTING)
        assert finishes_of(chunks) == ["tool_calls"]
        async with quoting.post(COMPLETIONS, json=asked | {"stream": False}) as response:
            (whole,) = (await response.json())["choices"]
        assert whole["message"]["tool_calls"][0]["function"] == call["function"]
        said = [*ASK["messages"], whole["message"], {"role": "tool", "content": "done", "tool_call_id": "x"}]
        async with quoting.post(COMPLETIONS, json=asked | {"messages": said}) as response:
            assert "Name two green fruits" in text_of(chunks_of(await response.read()))

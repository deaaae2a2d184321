"""The operations beside chat completions, through a gateway with all its plugins: bytes, charges, records, endings, refusals."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from gateway import Outcome
from gateway.base.crash_points import EXIT_CODE
from gateway.operations.operation import SERVED
from tests.operations.test_message_events import STOP, delta, end, event, start
from tests.operations.test_response_events import CREATED, response
from tests.operations.test_response_events import delta as text
from tests.patience import PATIENCE_S
from tests.whole.books import LEASE_S, Books
from tests.whole.raw import Answer, ask, chat, get, head
from tests.whole.scripted import CHUNKED, LAST, Fin, Hold, Reset, Scripted, Step, chunk

MESSAGES, COUNT, EMBEDDINGS = "/v1/messages", "/v1/messages/count_tokens", "/v1/embeddings"
RESPONSES = "/v1/responses"
ASKED: dict[str, Any] = {"model": "words", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}
TEXTS: dict[str, Any] = {"model": "words", "input": ["one", "two"]}
GIVEN: dict[str, Any] = {"model": "words", "max_output_tokens": 50, "input": "hi", "store": False}
SERVES = f"operations: [{', '.join(SERVED)}]"
START = start(input_tokens=10, cache_read_input_tokens=0, cache_creation_input_tokens=0)
STREAM = START + delta("Rain falls.") + end(output_tokens=20) + STOP
STREAM_MICROS = 10 + 2 * 20
OVERLOADED = event("error", error={"type": "overloaded_error", "message": "busy"})
MESSAGE = {
    "id": "msg_7",
    "type": "message",
    "content": [{"type": "text", "text": "Rain \u2614"}],
    "usage": {"input_tokens": 3, "cache_read_input_tokens": 7, "output_tokens": 20},
}
RESPONSE_USAGE = {"input_tokens": 10, "output_tokens": 20, "total_tokens": 30}
RESPONSE = {"id": "resp_7", "object": "response", "status": "completed", "output": [], "usage": RESPONSE_USAGE}
COMPLETION = {"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30}}
RANKED: dict[str, Any] = {"model": "words", "query": "a", "documents": ["b", {"text": "c"}]}
COMPLETED = response("completed", RESPONSE_USAGE)
VECTORS = {
    "object": "list",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.5, -1e-7]}],
    "usage": {"prompt_tokens": 9, "total_tokens": 9},
}


def whole(value: object, status: int = 200) -> list[Step]:
    """Return the script of an answer in JSON."""
    text = json.dumps(value, ensure_ascii=False).encode()
    lines = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
    return [lines.encode() + text]


def stream(*steps: Step) -> list[Step]:
    """Return the script of a stream whose bytes are chunks."""
    return [CHUNKED, *(chunk(step) if isinstance(step, bytes) else step for step in steps)]


@asynccontextmanager
async def serving(
    folder: Path, *scripts: Sequence[Step], serves: str = SERVES, above: str = "", started: bool = True
) -> AsyncIterator[tuple[Books, Scripted]]:
    async with Scripted(*scripts) as upstream:
        books = Books(folder, upstream.base_url)
        try:
            text = books.file.read_text()
            if started:  # on a busy machine, too
                text = text.replace("0.25, first_byte: 0.5, idle: 3, total: 3", "5, first_byte: 10, idle: 2, total: 20")
            text = text.replace("fake: {", f"fake: {{api_key: key-of-the-channel, {serves}, ")
            books.file.write_text(text.replace("  - use: rate-limit", f"{above}  - use: rate-limit"))
            await books.open()
            async with books.worker() if started else nullcontext():
                yield books, upstream
        finally:
            books.embedded.stop()


def post(path: str, token: str, body: dict[str, Any], **headers: str) -> bytes:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return chat(token, json.dumps(body).encode(), path=path, headers=given)


async def charged(books: Books, answer: Answer) -> tuple[str, str, int, int]:
    """Return operation, outcome, tokens of the prompt and charge of a request that has ended. The books must agree."""
    async with asyncio.timeout(PATIENCE_S):
        while (await books.account()).holds:
            await asyncio.sleep(0.01)
    record = (await books.records())[answer.headers["x-request-id"]]
    assert (await books.charges()).get(record.id, [0])[-1] == record.charge_micros
    await books.verify()
    return record.operation, str(record.outcome), record.prompt_tokens, record.charge_micros


async def test_a_message_passes_byte_for_byte_and_is_charged_once(tmp_path: Path) -> None:
    async with serving(tmp_path, [*stream(STREAM), LAST]) as (books, upstream):
        request = post(
            MESSAGES,
            *("", ASKED | {"stream": True}),
            Authorization="",
            x_api_key=books.token,
            anthropic_version="2026-10-21",
            anthropic_beta="a-1, b-2",
            anthropic_dangerous_direct_browser_access="true",
            x_stainless_lang="js",
        )
        answer = await ask(books.port, request)
        assert (answer.status, answer.body, answer.whole) == (200, STREAM, True)
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["request-id"] == answer.headers["x-request-id"]
        assert await charged(books, answer) == ("messages", "completed", 10, STREAM_MICROS)
    sent, _, body = upstream.requests[0].partition(b"\r\n\r\n")
    lines = sent.decode().lower().split("\r\n")
    assert lines[0].startswith("post /v1/messages ")
    assert {"x-api-key: key-of-the-channel", "anthropic-version: 2026-10-21", "anthropic-beta: a-1, b-2"} <= {*lines}
    assert not any(line.startswith(("authorization", "x-stainless", "anthropic-dangerous")) for line in lines)
    assert books.token.lower().encode() not in sent.lower()
    assert json.loads(body) == ASKED | {"stream": True}


ANSWERED: list[tuple[str, dict[str, Any], object, str, int, int]] = [
    (MESSAGES, ASKED, MESSAGE, "messages", 10, 50),
    (MESSAGES, ASKED | {"stream": False}, MESSAGE, "messages", 10, 50),
    (COUNT, {**ASKED, "max_tokens": 50}, {"input_tokens": 14}, "messages.tokens", 0, 0),
    (RESPONSES, GIVEN, RESPONSE, "responses", 10, 50),
    (f"{RESPONSES}/compact", GIVEN, RESPONSE, "responses.compact", 10, 50),
    (f"{RESPONSES}/input_tokens", GIVEN, {"input_tokens": 14}, "responses.tokens", 0, 0),
    ("/v1/completions", {"model": "words", "prompt": "a"}, COMPLETION, "completions", 10, 50),
    ("/v1/rerank", RANKED, VECTORS | {"results": []}, "rerank", 9, 9),
    ("/v1/moderations", TEXTS, {"results": []}, "moderations", 0, 0),
    (EMBEDDINGS, TEXTS, VECTORS, "embeddings", 9, 9),
    (EMBEDDINGS, TEXTS | {"input": [[1, 2], [3]]}, VECTORS | {"usage": {"total_tokens": 9}}, "embeddings", 9, 9),
    (EMBEDDINGS, TEXTS, {"data": []}, "embeddings", 4, 4),
]


async def test_an_answer_in_json_passes_byte_for_byte(tmp_path: Path) -> None:
    scripts = [whole(answer) for _, _, answer, *_ in ANSWERED]
    async with serving(tmp_path, *scripts) as (books, _):
        for path, asked, answer, operation, prompt, micros in ANSWERED:
            got = await ask(books.port, post(path, books.token, asked))
            assert (got.status, got.body) == (200, json.dumps(answer, ensure_ascii=False).encode()), asked
            assert await charged(books, got) == (operation, "completed", prompt, micros), asked


ENDINGS: dict[str, tuple[list[Step], bytes, str, int]] = {
    "no message_stop": ([*stream(STREAM.removesuffix(STOP)), LAST], b"", "completed", STREAM_MICROS),
    "ceiling": ([*stream(START + end("max_tokens", output_tokens=50) + STOP), LAST], b"", "completed", 110),
    "error": ([*stream(START + delta("x" * 40) + OVERLOADED), LAST], OVERLOADED, "upstream_error_in_stream", 30),
    "cut": ([*stream(START + delta("x" * 40)), Reset], b"upstream_truncated", "upstream_truncated", 30),
    "closed": ([*stream(START + delta("x" * 40)), Fin], b"upstream_truncated", "upstream_truncated", 30),
    "ended": ([*stream(START + delta("x" * 40)), LAST], b"upstream_truncated", "upstream_truncated", 30),
    "stalled": ([*stream(START + delta("x" * 40)), Hold], b"upstream_timeout", "upstream_stalled", 30),
}


@pytest.mark.parametrize("ending", ENDINGS)
async def test_each_ending_of_a_message(tmp_path: Path, ending: str) -> None:
    script, seen, outcome, micros = ENDINGS[ending]
    async with serving(tmp_path, script) as (books, _):
        answer = await ask(books.port, post(MESSAGES, books.token, ASKED | {"stream": True}))
        assert (answer.status, answer.whole) == (200, outcome == "completed")
        last = answer.body.rpartition(b"event: ")[2]
        if seen:
            assert last.startswith(b"error\n")
            assert seen.removeprefix(b"event: ") in last
        if seen and seen != OVERLOADED:
            told = json.loads(last.partition(b"data: ")[2])
            assert (told["type"], told["request_id"]) == ("error", answer.headers["x-request-id"])
            assert told["error"]["code"] == seen.decode()
        assert await charged(books, answer) == ("messages", outcome, 10, micros)


@pytest.mark.parametrize(
    ("steps", "seen", "outcome", "prompt", "micros"),
    [
        ([CREATED + text("Rain") + COMPLETED, LAST], None, "completed", 10, 50),
        ([CREATED + text("Rain") + response("incomplete", RESPONSE_USAGE), LAST], None, "completed", 10, 50),
        ([CREATED + response("failed", RESPONSE_USAGE), LAST], "response.failed", "upstream_error_in_stream", 10, 50),
        ([CREATED + text("x" * 40), Reset], "error", "upstream_truncated", 23, 43),
        ([CREATED + text("x" * 40), LAST], "error", "upstream_truncated", 23, 43),
        ([CREATED + text("x" * 40), Hold], "error", "upstream_stalled", 23, 43),
    ],
)
async def test_each_ending_of_a_response(
    tmp_path: Path, steps: list[Step], seen: str | None, outcome: str, prompt: int, micros: int
) -> None:
    script = [*stream(*steps[:-1]), steps[-1]]
    async with serving(tmp_path, script) as (books, _):
        answer = await ask(books.port, post(RESPONSES, books.token, GIVEN | {"stream": True}))
        assert (answer.status, answer.whole) == (200, outcome == "completed")
        assert answer.body.startswith(steps[0] if isinstance(steps[0], bytes) else b"")
        events = [each.partition(b"\n")[0].decode() for each in answer.body.split(b"\n\n") if each]
        assert seen is None or events[-1] == f"event: {seen}"
        assert seen != "error" or events[-2] == "event: response.failed"
        assert await charged(books, answer) == ("responses", outcome, prompt, micros)


async def test_a_caller_that_leaves_pays_for_what_was_generated(tmp_path: Path) -> None:
    script = [*stream(START, 0.3, delta("x"), end(output_tokens=40) + STOP), LAST]
    async with serving(tmp_path, script) as (books, upstream):
        _, writer = await asyncio.open_connection("127.0.0.1", books.port)
        writer.write(post(MESSAGES, books.token, ASKED | {"stream": True}))
        await asyncio.wait_for(upstream.arrived.wait(), PATIENCE_S)
        await asyncio.sleep(0.1)
        writer.transport.abort()
        async with asyncio.timeout(PATIENCE_S):
            while not await books.charges():
                await asyncio.sleep(0.05)
        (record,) = (await books.records()).values()
        assert (record.outcome, record.charge_micros) == (Outcome.CALLER_GONE, 10 + 2 * 40)
        await books.verify()


@pytest.mark.parametrize(
    ("script", "status", "kind", "code"),
    [
        (
            whole({"type": "error", "error": {"message": "too many"}}, 400),
            *(400, "invalid_request_error", "upstream_refused"),
        ),
        (whole({"error": {"message": "no"}}, 404), 404, "not_found_error", "upstream_refused"),
        (whole({"type": "error", "error": {"message": "busy"}}, 529), 502, "api_error", "upstream_error"),
        (whole({"error": {"message": "slow"}}, 429), 429, "rate_limit_error", "upstream_rate_limited"),
        ([*stream(OVERLOADED), LAST], 502, "api_error", "upstream_error"),
        ([Reset], 502, "api_error", "upstream_error"),
    ],
)
async def test_a_failure_before_the_first_byte_is_told_in_the_shape_of_the_path(
    tmp_path: Path, script: list[Step], status: int, kind: str, code: str
) -> None:
    async with serving(tmp_path, script) as (books, _):
        answer = await ask(books.port, post(MESSAGES, books.token, ASKED | {"stream": True}))
        told = json.loads(answer.body)
        assert (answer.status, told["type"], told["error"]["type"]) == (status, "error", kind)
        assert (told["error"]["code"], told["request_id"]) == (code, answer.headers["x-request-id"])
        assert (await charged(books, answer))[:2] == ("messages", "upstream_failed")


async def test_refusals_are_told_in_the_shape_of_the_path(tmp_path: Path) -> None:
    async with serving(tmp_path, whole(MESSAGE), serves="operations: [messages]") as (books, upstream):
        for request, status, kind, code in (
            (post(MESSAGES, "wrong", ASKED), 401, "authentication_error", "token_invalid"),
            (post(MESSAGES, books.token, ASKED, x_api_key="other"), 401, "authentication_error", "token_invalid"),
            (post(MESSAGES, books.token, ASKED | {"model": "none"}), 404, "not_found_error", "model_not_found"),
            (post(MESSAGES, books.token, ASKED | {"speed": "fast"}), 400, "invalid_request_error", "unpriced_option"),
            (post(COUNT, books.token, ASKED), 404, "not_found_error", "model_not_found"),
            (post("/v1/messages/batches", books.token, ASKED), 404, "not_found_error", "unknown_path"),
            (post("/v1/v1/messages", books.token, ASKED), 404, "not_found_error", "unknown_path"),
            (get(MESSAGES, books.token), 405, "invalid_request_error", "method_not_allowed"),
        ):
            answer = await ask(books.port, request)
            told = json.loads(answer.body)
            assert (answer.status, told["type"]) == (status, "error"), request
            assert (told["error"]["type"], told["error"]["code"]) == (kind, code)
            assert answer.headers["x-request-id"] == told["request_id"]
        for path in (EMBEDDINGS, "/v1/chat/completions"):
            answer = await ask(books.port, post(path, books.token, TEXTS | ASKED if "chat" in path else TEXTS))
            assert (answer.status, answer.error["code"]) == (404, "model_not_found")
            assert "POST /v1/messages" in answer.error["message"]
        assert upstream.requests == []


async def test_models_are_listed_for_clients_of_either_api(tmp_path: Path) -> None:
    async with serving(tmp_path, whole(MESSAGE)) as (books, _):
        lines = {"Host": "gateway", "x-api-key": books.token, "anthropic-version": "2023-06-01"}
        answer = await ask(books.port, head("GET", "/v1/models", lines))
        listed = json.loads(answer.body)
    assert (listed["object"], listed["has_more"], listed["first_id"]) == ("list", False, "words")
    model = listed["data"][0]
    assert (model["object"], model["type"], model["display_name"]) == ("model", "model", "words")


@pytest.mark.skipif(sys.platform != "linux", reason="the store of a test ends with its thread")
@pytest.mark.parametrize(
    ("label", "path", "asked", "charge"),
    [
        ("upstream.answered", MESSAGES, ASKED | {"stream": True}, 0),
        ("stream.event:2", MESSAGES, ASKED | {"stream": True}, 0),
        ("settle.after", MESSAGES, ASKED | {"stream": True}, 50),
        ("stream.event:2", RESPONSES, GIVEN | {"stream": True}, 0),
        ("answer.finished", RESPONSES, GIVEN | {"stream": True}, 50),
        ("settle.before", EMBEDDINGS, TEXTS, 0),
        ("record.after", EMBEDDINGS, TEXTS, 9),
    ],
)
async def test_the_books_balance_after_a_crash(
    tmp_path: Path, label: str, path: str, asked: dict[str, Any], charge: int
) -> None:
    answers = {
        MESSAGES: [*stream(START, 0.1, delta("x"), 0.1, end(output_tokens=20) + STOP), LAST],
        RESPONSES: [*stream(CREATED, 0.1, text("x"), 0.1, COMPLETED), LAST],
        EMBEDDINGS: whole(VECTORS),
    }
    async with serving(tmp_path, answers[path], started=False) as (books, _):
        async with books.worker(crash_at=label) as worker:
            with suppress(OSError, EOFError):
                await ask(books.port, post(path, books.token, asked))
            assert await asyncio.wait_for(worker.wait(), PATIENCE_S) == EXIT_CODE
        async with books.worker():
            await asyncio.sleep(LEASE_S)
        await books.records()
        await books.verify()
        assert sum(map(sum, (await books.charges()).values())) == charge


@pytest.mark.parametrize(
    ("path", "asked", "events"),
    [
        (MESSAGES, ASKED, [START, delta("a for"), delta("bidden word"), end(output_tokens=20) + STOP]),
        (RESPONSES, GIVEN, [CREATED, text("a for"), text("bidden word"), COMPLETED]),
    ],
)
async def test_texts_are_redacted_and_words_are_stopped(
    tmp_path: Path, path: str, asked: dict[str, Any], events: list[bytes]
) -> None:
    plugins = "  - use: redact\n  - use: stop-words\n    with: {words: [forbidden]}\n"
    name, given = ("messages", "system") if path == MESSAGES else ("input", "instructions")
    asked = asked | {given: "My card is 4111 1111 1111 1111.", "stream": True}
    async with serving(tmp_path, [*stream(*events), LAST], above=plugins) as (books, upstream):
        answer = await ask(books.port, post(path, books.token, asked))
        assert (answer.status, answer.whole) == (200, False)
        assert b"bidden" not in answer.body
        assert b"content_stopped" in answer.body.rpartition(b"data: ")[2]
        sent = json.loads(upstream.requests[0].partition(b"\r\n\r\n")[2])
        assert (sent[given], sent[name]) == ("My card is [card-number].", asked[name])
        assert (await charged(books, answer))[1] == "stopped"

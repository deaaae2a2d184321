"""The record of each upstream call has the names that the upstream gave it, by which its bill names it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway import AttemptRecord
from gateway.testing import running
from tests.whole.aftermath import last_end_record
from tests.whole.conftest import Serve, configuration
from tests.whole.raw import ask, chat
from tests.whole.scripted import CHUNKED, LAST, Fin, Scripted, Step, chunk

KEY = "channel-credential-4711"
HEAD = CHUNKED.replace(b"\r\n\r\n", b"\r\nx-request-id: req-1\r\n\r\n")
DONE = b"data: [DONE]\n\n"
USAGE = b'"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}'


def event(
    id: str,  # noqa: A002
    choice: str = '{"index":0,"delta":{"content":"a"},"finish_reason":null}',
    *,
    last: bool = False,
) -> bytes:
    """Return an event of a completion; with `last`, the one that finishes it."""
    choice = choice.replace("null", '"stop"') if last else choice
    return b'data: {"id":"%b","object":"chat.completion.chunk","choices":[%b]}\n\n' % (id.encode(), choice.encode())


def stream(id: str) -> bytes:  # noqa: A002
    usage = b'data: {"id":"%b","choices":[],%b}\n\n' % (id.encode(), USAGE)
    return chunk(event(id) + event(id, last=True) + usage + DONE) + LAST


BODY = b'{"id":"cmpl-9","object":"chat.completion","choices":[{"index":0,"message":{"content":"a"}}],%b}' % USAGE
JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nx-request-id: req-1\r\nContent-Length: %d\r\n\r\n" % len(
    BODY
)

ANSWERS: dict[str, tuple[list[Step], str]] = {
    "a stream": ([HEAD + stream("cmpl-1")], "cmpl-1"),
    "in pieces": ([HEAD + chunk(event("cmpl-2")), 0.01, chunk(event("cmpl-2", last=True) + DONE) + LAST], "cmpl-2"),
    "cut after the first event": ([HEAD + chunk(event("cmpl-3")), Fin], "cmpl-3"),
    "a first event without an id": ([HEAD + chunk(event("", "")), 0.01, stream("cmpl-4")], "cmpl-4"),
    "no id at all": ([HEAD + stream("")], ""),
    "a credential in it": ([HEAD + stream(f"cmpl-{KEY}")], "cmpl-[redacted]"),
}


@pytest.mark.parametrize("answer", ANSWERS)
async def test_the_id_of_a_completion_is_kept(answer: str, serve: Serve) -> None:
    script, expected = ANSWERS[answer]
    async with Scripted(script) as upstream, serve(upstream.base_url) as gateway:
        await ask(gateway.port, chat(await gateway.token()))
        record = await last_end_record(gateway)
    (attempt,) = record.attempts
    assert (attempt.upstream_request_id, attempt.completion_id) == ("req-1", expected)
    assert record.upstream_request_id == "req-1"


async def test_the_id_of_a_json_answer_is_kept(serve: Serve) -> None:
    more = "port: {allow_non_streaming: true}"
    async with Scripted([JSON + BODY]) as upstream, serve(upstream.base_url, more=more) as gateway:
        answer = await ask(gateway.port, chat(await gateway.token(), {"stream": False}))
        assert json.loads(answer.body)["id"] == "cmpl-9"
        record = await last_end_record(gateway)
    assert [attempt.completion_id for attempt in record.attempts] == ["cmpl-9"]


async def test_each_attempt_has_its_own_names(store_url: str, tmp_path: Path) -> None:
    failed = b"HTTP/1.1 500 Oops\r\nx-request-id: req-0\r\nContent-Length: 0\r\n\r\n"
    async with Scripted([failed]) as first, Scripted([HEAD + stream("cmpl-5")]) as second:
        text = configuration(first.base_url).replace(
            "channels: [fake]}", "channels: [{use: fake, priority: 0}, {use: second, priority: 1}]}", 1
        )
        text = text.replace("models:", f"  second: {{base_url: '{second.base_url}'}}\nmodels:", 1)
        async with running(text, tmp_path, store_url) as gateway:
            await ask(gateway.port, chat(await gateway.token()))
            record = await last_end_record(gateway)
    assert record.attempts == [
        AttemptRecord("fake", 500, "upstream_error", 0, "req-0", ""),
        AttemptRecord("second", 200, "", None, "req-1", "cmpl-5"),
    ]

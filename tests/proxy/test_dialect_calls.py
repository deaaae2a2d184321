"""A dialect that fails is logged with its plugin, method, file and line; the caller gets an error, and nothing stays held."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.testing import Running, running
from tests.patience import PATIENCE_S
from tests.place import Place
from tests.whole import broken_dialects
from tests.whole.aftermath import assert_released, last_end_record, tasks
from tests.whole.broken_dialects import METHODS
from tests.whole.conftest import CHAIN
from tests.whole.raw import Answer, ask, chat
from tests.whole.scripted import CHUNKED, LAST, Scripted, Step, chunk
from tests.whole.test_stream import STREAM

FILE = Path(broken_dialects.__file__)
CREDIT = 50_000_000
EVENTS = [{"message": {"content": "Hello"}}, {"finish_reason": "stop", "done": True}]
ANSWER: list[Step] = [CHUNKED + chunk(b"".join(b"data: %b\n\n" % json.dumps(each).encode() for each in EVENTS)) + LAST]
NO = b'{"error": {"message": "Refused."}}'
REFUSED: list[Step] = [
    b"HTTP/1.1 400 No\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(NO), NO)
]


@asynccontextmanager
async def gateway_of(folder: Path, url: str, *scripts: list[Step]) -> AsyncIterator[tuple[Running, str, Scripted]]:
    """Yield a gateway with a model for each dialect, alone and with another channel after it."""
    async with Scripted(*scripts) as upstream, Scripted([CHUNKED + chunk(STREAM) + LAST]) as plain:
        names = ("whole", *METHODS)
        channels = "".join(
            f"  {kind}-{name}: {{base_url: '{upstream.base_url}', dialect: {name}}}\n"
            for name in names
            for kind in "ab"
        )
        models = "".join(
            f"  {name}: {{input: 1, output: 2, channels: [a-{name}]}}\n"
            f"  two-{name}: {{input: 1, output: 2, channels: [{{use: b-{name}, priority: 0}}, {{use: plain, priority: 1}}]}}\n"
            for name in names
        )
        text = f"""
channels:
  plain: {{base_url: "{plain.base_url}", upstream_stream: true}}
{channels}
models:
{models}
groups: {{default: {{}}}}
port: {{allow_non_streaming: true}}
store: {{timeout: {PATIENCE_S}}}
{CHAIN}
  - {{use: "tests.whole.broken_dialects:Broken", name: theirs}}
"""
        async with running(text, folder, url) as gateway:
            yield gateway, await gateway.token(credit=CREDIT), upstream


async def asked(gateway: Running, token: str, model: str, **fields: Any) -> tuple[Answer, list[Any]]:
    """Return the answer, and the lines about dialects in the log."""
    with capture_logs() as logged:
        answer = await ask(gateway.port, chat(token, {"model": model, **fields}))
        await last_end_record(gateway)
    return answer, [line for line in logged if line["event"] == "dialect_failed"]


def assert_names_the_line(lines: list[Any], dialect: str, method: str, request_id: str) -> None:
    (line,) = lines
    assert (line["plugin"], line["dialect"], line["method"]) == ("theirs", dialect, method)
    file, _, number = line["at"].partition(", line ")
    assert file == str(FILE)
    assert 0 < int(number) <= len(FILE.read_text().splitlines())
    assert line["request_id"] == request_id


@pytest.mark.parametrize("stream", [True, False])
async def test_a_dialect_that_fails_before_the_first_byte_is_an_error_and_another_channel_is_tried(
    place: Place, stream: bool
) -> None:
    async with gateway_of(*place, ANSWER) as (gateway, token, upstream):
        await asked(gateway, token, "whole")
        before = tasks()
        for name in METHODS:
            kind = name.partition("-")[0]
            if kind in ("error", "later"):
                continue
            answer, lines = await asked(gateway, token, name, stream=stream)
            assert_names_the_line(lines, name, kind, answer.headers["x-request-id"])
            status, code = (502, "upstream_error") if kind == "read" else (500, "internal_error")
            assert (answer.status, answer.error["code"]) == (status, code), name
            record = await last_end_record(gateway)
            assert (record.status, record.error_code, record.charge_micros) == (status, code, 0), name
            assert record.outcome == ("upstream_failed" if kind == "read" else "internal_error")
            assert record.refused_by == ("" if kind == "read" else "theirs")
            answer, lines = await asked(gateway, token, f"two-{name}", stream=stream)
            assert_names_the_line(lines, name, kind, answer.headers["x-request-id"])
            record = await last_end_record(gateway)
            assert (answer.status, [each.error for each in record.attempts]) == (200, [code, ""]), name
            assert (record.refused_by, record.attempts[0].dialect) == ("", name)
        upstream.abort()
        await assert_released(gateway, None, before, 0)


async def test_a_dialect_that_fails_within_a_stream_cuts_it_off(place: Place) -> None:
    async with gateway_of(*place, ANSWER) as (gateway, token, _):
        for name in METHODS:
            if not name.startswith("later"):
                continue
            answer, lines = await asked(gateway, token, name)
            assert_names_the_line(lines, name, "read", answer.headers["x-request-id"])
            assert not answer.whole
            assert b"not in its dialect" in answer.body
            named = f'"code":"upstream_error","request_id":"{answer.headers["x-request-id"]}"'
            assert named.encode() in answer.body
            assert b"[DONE]" not in answer.body
            record = await last_end_record(gateway)
            assert record.outcome == "upstream_error_in_stream", name
            assert record.charge_micros == record.prompt_tokens + 2 * record.completion_tokens > 0


async def test_a_dialect_that_cannot_read_an_error_leaves_it_as_it_is(place: Place) -> None:
    async with gateway_of(*place, REFUSED) as (gateway, token, _):
        for name in METHODS:
            if name.startswith("error"):
                answer, lines = await asked(gateway, token, name)
                assert_names_the_line(lines, name, "error", answer.headers["x-request-id"])
                assert (answer.status, answer.error["message"]) == (400, "Refused.")
                assert (await last_end_record(gateway)).charge_micros == 0


async def test_a_dialect_that_is_whole_logs_nothing(place: Place) -> None:
    async with gateway_of(*place, ANSWER) as (gateway, token, _):
        answer, lines = await asked(gateway, token, "whole")
        assert (answer.status, answer.whole, lines) == (200, True, [])

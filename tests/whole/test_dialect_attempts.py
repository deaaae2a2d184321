"""Requests to an upstream of another dialect and to a plain one after it, with plugins that meddle: the books balance in any case.

Each request has its own two channels and its own scripts, drawn from a seed. A script is found by what the request says.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import msgspec
import pytest
from typer.testing import CliRunner

from gateway import Exchange, Operation, Outcome, Plugin, Refused, Reply
from gateway.chat.request import joined_halves
from gateway.cli.commands import program
from gateway.store.embedded import EmbeddedStore
from gateway.testing import Running, running
from gateway.usage.record import Record
from tests.patience import PATIENCE_S
from tests.plugins.anthropic_odd_streams import ERRORS, HELLO, LOOSE, SAME
from tests.plugins.anthropic_streams import ERROR, event, start, wire
from tests.plugins.test_anthropic_answer import Answer as Read
from tests.whole.aftermath import end_records
from tests.whole.conftest import CHAIN
from tests.whole.raw import Answer, ask, chat
from tests.whole.scripted import CHUNKED, LAST, Fin, Reset, Scripted, Step, chunk
from tests.whole.test_stream import STREAM

REQUESTS = 120
CREDIT = 1_000_000_000
CLOSINGS: list[Step] = [Fin, Reset]
CASE = re.compile(rb"case (\d+)\.")
WHOLE = SAME | {name: odd["data"] for name, odd in LOOSE.items()}


class Meddles(Plugin):
    """Does what the header `x-do` says."""

    edits = True

    async def on_request(self, exchange: Exchange) -> Reply | None:
        what, _, number = exchange.request.headers.get("x-do", "").partition(":")
        if exchange.request.operation is not Operation.CHAT:
            return None
        exchange[Meddling] = Meddling(what, int(number or 0))
        if what == "edit":
            await exchange.edit({"temperature": 0.5, "user": "somebody"})
        elif what == "edit-unfit":
            await exchange.edit({"logit_bias": {"1": 1}})
        elif what == "answer":
            return Reply(200, b"{}")
        return None

    def on_response(self, exchange: Exchange) -> None:
        if exchange[Meddling].what == "response":
            exchange.response_headers["x-meddled"] = "yes"

    def on_chunk(self, exchange: Exchange, chunk: bytes) -> None:
        meddling = exchange[Meddling]
        meddling.chunks += 1
        if meddling.chunks <= meddling.number:
            return
        if meddling.what == "stop":
            exchange.stop(Refused(400, "content_stopped", "Stopped."))
        elif meddling.what == "keep":
            exchange.stop(Refused(400, "content_stopped", "Stopped."), keep=len(chunk))
        elif meddling.what == "raise":
            raise ZeroDivisionError


class Meddling(msgspec.Struct):
    what: str
    number: int
    chunks: int = 0


class Scripts(Sequence[Sequence[Step]]):
    """The script of the case that a request names."""

    def __init__(self, upstream: Scripted, scripts: list[list[Step]]) -> None:
        self._upstream = upstream
        self._scripts = scripts

    def __len__(self) -> int:
        return 1 << 30

    @overload
    def __getitem__(self, index: int) -> Sequence[Step]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Sequence[Step]]: ...
    def __getitem__(self, index: int | slice) -> Any:
        assert isinstance(index, int)
        found = CASE.search(self._upstream.requests[index])
        assert found is not None
        return self._scripts[int(found[1])]


def pieces(draw: random.Random, data: bytes) -> list[Step]:
    """Return the steps that send data in some pieces."""
    cuts = sorted(draw.choices(range(len(data)), k=draw.randint(0, 3)))
    parts = [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    steps: list[Step] = [CHUNKED]
    for part in filter(None, parts):
        steps += [chunk(part), draw.choice([0.0, 0.01])]
    return steps


def refused(status: int) -> list[Step]:
    body = json.dumps({"error": {"type": "x", "message": "No."}}).encode()
    head = f"HTTP/1.1 {status} No\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return [head.encode() + body]


def scripts(draw: random.Random, whole: bytes, errors: list[bytes], begun: bytes) -> list[Step]:
    match draw.randrange(10):
        case 0:
            return refused(draw.choice([400, 401, 403, 404, 413, 429, 500, 503, 529]))
        case 1:
            return [draw.choice(CLOSINGS)]
        case 2:
            return [*pieces(draw, whole[: draw.randrange(len(whole))] or b":"), draw.choice([LAST, *CLOSINGS])]
        case 3:
            return [*pieces(draw, draw.choice([b"", begun]) + draw.choice(errors)), LAST]
        case 4:
            return [*pieces(draw, draw.choice([b"data: {]\n\n", b"<html>", b"data: 7\n\n", b"\n\n"])), LAST]
        case _:
            return [*pieces(draw, whole), LAST]


class Case(msgspec.Struct):
    number: int
    stream: bool
    usage: bool
    do: str
    leaves: bool
    foreign: bytes
    answer: Answer | None = None


def text_of(sent: bytes) -> str:
    """Return the text of a stream of chunks."""
    events = [json.loads(line[6:]) for line in sent.split(b"\n") if line.startswith(b"data: {")]
    return "".join(
        choice["delta"].get("content") or ""
        for each in events
        for choice in each.get("choices", ())
        if "delta" in choice
    )


async def request(gateway: Running, token: str, case: Case) -> None:
    fields: dict[str, Any] = {"model": f"m{case.number}", "stream": case.stream, "stream_options": None}
    fields["messages"] = [{"role": "user", "content": f"case {case.number}. " + "word " * 50}]
    if case.usage and case.stream:
        fields["stream_options"] = {"include_usage": True}
    message = chat(token, fields, headers={"x-do": case.do})
    if not case.leaves:
        case.answer = await ask(gateway.port, message)
        return
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(message)
    async with asyncio.timeout(PATIENCE_S):
        await reader.read(500)
    writer.close()


def configuration(url: str, folder: Path, foreign: str, plain: str) -> str:
    timers = "timers: {first_byte: 20, idle: 20, total: 30}"
    channels = "".join(
        f'  f{number}: {{base_url: "{foreign}", dialect: anthropic, api_keys: [one, two], {timers}}}\n'
        f'  p{number}: {{base_url: "{plain}", upstream_stream: true, {timers}}}\n'
        for number in range(REQUESTS)
    )
    models = "".join(
        f"  m{number}: {{input: 3, output: 15, max_output_tokens: 1000, "
        f"channels: [{{use: f{number}, priority: 0}}, {{use: p{number}, priority: 1}}]}}\n"
        for number in range(REQUESTS)
    )
    meddles = "  - {use: 'tests.whole.test_dialect_attempts:Meddles', name: meddles}\n"
    chain = CHAIN.replace("requests_per_minute: 1000", "requests_per_minute: 100000")
    chain = chain.replace("  - use: rate-limit\n", f"{meddles}  - use: rate-limit\n")
    return f"""
redis: {url}
data: {folder}/data
admin: null
channels:
{channels}
models:
{models}
groups: {{default: {{}}}}
port: {{allow_non_streaming: true}}
store: {{timeout: {PATIENCE_S}}}
{chain}
  - use: anthropic
"""


@pytest.mark.parametrize("seed", [4, 23])
async def test_the_books_balance_whatever_upstreams_plugins_and_callers_do(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    named = [*WHOLE.values()]
    cases = [
        Case(
            number,
            draw.random() < 0.7,
            draw.random() < 0.5,
            draw.choice(
                [
                    "",
                    "",
                    "",
                    "edit",
                    "edit-unfit",
                    "answer",
                    "response",
                    "stop:0",
                    "stop:2",
                    "keep:0",
                    "keep:3",
                    "raise:1",
                ]
            ),
            draw.random() < 0.1,
            draw.choice(named),
        )
        for number in range(REQUESTS)
    ]
    errors = [event(ERROR), *(data for data, _ in ERRORS.values())]
    begun = wire([start(), *HELLO])
    stored = EmbeddedStore.start(tmp_path / "store")
    try:
        async with Scripted() as foreign, Scripted() as plain:
            foreign.scripts = Scripts(foreign, [scripts(draw, case.foreign, errors, begun) for case in cases])
            plain_error = [b'data: {"error": {"message": "No.", "type": "x"}}\n\n']
            plain.scripts = Scripts(plain, [scripts(draw, STREAM, plain_error, STREAM[:200]) for _ in cases])
            text = configuration(stored.url, tmp_path, foreign.base_url, plain.base_url)
            async with running(text, tmp_path, stored.url) as gateway:
                token = await gateway.token(credit=CREDIT)
                for begin in range(0, REQUESTS, 8):
                    await asyncio.gather(*(request(gateway, token, case) for case in cases[begin : begin + 8]))
                records = {record.id: record for record in await end_records(gateway)}
                assert len(records) == REQUESTS
                for record in records.values():
                    check_charge(record)
                for case in cases:
                    if case.answer is not None:
                        check_answer(case, case.answer, records[case.answer.headers["x-request-id"]])
                account = await gateway.store.accounts.get("tester")
                assert account is not None
                assert (account.held_micros, account.holds) == (0, 0)
                assert CREDIT - account.balance_micros == sum(record.charge_micros for record in records.values())
                assert await gateway.store.wallet.verify("tester") == []
                await gateway.write_usage()
        command = ["verify", "--json", "--config", str(tmp_path / "gateway.yaml")]
        result = await asyncio.to_thread(CliRunner().invoke, program(), command)
        assert result.exit_code == 0, result.output
    finally:
        stored.stop()


def check_charge(record: Record) -> None:
    """Assert that a record charges what it says was used, but no more than the request can cost."""
    assert record.outcome is not None
    full = 3 * record.prompt_tokens + 15 * record.completion_tokens
    assert record.charge_micros == (full if record.prompt_tokens < 500 else min(full, record.charge_micros)), record
    assert record.charge_micros == 0 or record.usage_source != "none", record


def check_answer(case: Case, answer: Answer, record: Record) -> None:
    """Assert that a record is as the answer was."""
    done = b"data: [DONE]" in answer.body
    if case.do == "answer":
        assert (answer.status, record.charge_micros, list(record.attempts)) == (200, 0, []), case.number
        return
    assert record.status == answer.status, case.number
    if case.stream and answer.status == 200:
        assert done <= (record.outcome is Outcome.COMPLETED), case.number
        assert answer.whole == (record.outcome is Outcome.COMPLETED), case.number
    elif answer.status != 200:
        assert record.outcome in (Outcome.UPSTREAM_FAILED, Outcome.STOPPED, Outcome.INTERNAL_ERROR), case.number
        assert (record.outcome is Outcome.INTERNAL_ERROR) == (answer.status == 500), case.number
    if record.outcome is Outcome.COMPLETED:
        dialect = record.attempts[-1].dialect
        told = answer.body if case.stream else json.loads(answer.body)["choices"][0]["message"]["content"] or ""
        got = text_of(told) if isinstance(told, bytes) else told
        expected = text_of(Read(case.foreign).sent if dialect else STREAM)
        assert joined_halves(got) == joined_halves(expected), case.number
    if case.do.startswith(("stop", "keep")) and record.outcome is Outcome.STOPPED:
        assert (record.error_code, record.refused_by) == ("content_stopped", "meddles"), case.number
        assert not done, case.number

"""The usage log counts what the caller received, has no request outside of /v1, and nothing of a token.

Each way a request can end is in test_usage_outcomes.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.testing import Running
from gateway.usage.record import Record
from tests.records import usage_sink
from tests.whole.aftermath import records_in_stream
from tests.whole.raw import ask, chat, get


async def entries(gateway: Running) -> list[Record]:
    """Wait until all exchanges have ended, and return all records."""
    await gateway.gateway.runner.wait_ended()
    return await records_in_stream(gateway)


async def end_of(gateway: Running, id: str) -> Record:  # noqa: A002
    """Assert that a request has one arrival and one end, and return the end."""
    opened, ended = [record for record in await entries(gateway) if record.id == id]
    assert (opened.outcome, opened.arrived_at) == (None, ended.arrived_at)
    return ended


async def test_the_record_counts_the_bytes_that_the_caller_received(gateway: Running) -> None:
    answer = await ask(gateway.port, chat(await gateway.token()))
    record = await end_of(gateway, answer.headers["x-request-id"])
    assert record.usage_source == "upstream"
    assert record.bytes == len(answer.body)
    assert record.channel == "fake"


async def test_a_request_outside_v1_leaves_no_record(gateway: Running) -> None:
    for path in ("/chat/completions", "/", "/healthz"):
        await ask(gateway.port, get(path, None, "POST"))
    assert await entries(gateway) == []


def every_use(canary: str) -> list[bytes]:
    """Return requests with a token in every place where a caller may put it."""
    return [
        chat(canary),
        chat(canary[:-1]),
        chat(f"{canary} "),
        chat(canary, {"model": canary}),
        chat(canary, {"messages": [{"role": canary, "content": canary}], "user": canary, canary: canary}),
        chat(canary, canary.encode()),
        chat(canary, headers={"traceparent": canary, "x-request-id": canary, "User-Agent": canary}),
        chat(None, headers={"x-api-key": canary, "Cookie": canary}),
        chat(canary, path=f"/v1/chat/completions?key={canary}"),
        get(f"/v1/{canary}", canary),
        get(f"/{canary}", canary),
        get(f"/v1/models/{canary}", canary),
        get(f"/v1/requests/{canary}", canary),
        get("/v1/models", canary, canary.replace("-", "")),
    ]


def contents(folder: Path) -> bytes:
    """Return the contents of all files below a folder."""
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    "makes_secret", [lambda token: token, lambda token: f"{token[:-4]}AAAA"], ids=["right", "wrong"]
)
async def test_no_eight_characters_of_a_token_are_in_the_store_or_in_a_file(
    gateway: Running, tmp_path: Path, makes_secret: Callable[[str], str]
) -> None:
    canary = makes_secret(await gateway.token())
    for request in every_use(canary):
        assert (await ask(gateway.port, request)).status != 500
    stored = repr(await entries(gateway)).encode()
    sink = usage_sink(gateway.store.usage, retention_months=1, crashed_after_s=60)
    while await sink.move_batch():
        pass
    stored += await asyncio.to_thread(contents, tmp_path)
    assert b"unknown_path" in stored
    secret = canary.rpartition("-")[2].encode()
    assert len(secret) > 20
    assert [secret[at : at + 8] for at in range(len(secret) - 7) if secret[at : at + 8] in stored] == []

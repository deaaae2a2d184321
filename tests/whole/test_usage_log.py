"""The usage log counts what the caller received, has no request outside of /v1, and nothing of a token.

Each way a request can end is in test_usage_outcomes.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway import Outcome
from gateway.fake_upstream import FakeUpstream
from gateway.testing import Running
from gateway.usage.record import Record
from tests.records import usage_sink
from tests.whole.aftermath import records_in_stream
from tests.whole.conftest import CHAIN, Serve
from tests.whole.raw import CHAT, ask, chat, get, read_answer


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


LIMITED = CHAIN.replace(
    "use: usage-logger", "use: usage-logger\n    with: {unknown_per_minute: 5, refused_per_minute: 7}"
).replace("requests_per_minute: 1000", "requests_per_minute: 3")


async def flood(port: int, request: bytes, count: int) -> list[int]:
    """Send a request many times on one connection, one after the other, and return the statuses."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    statuses = []
    for _ in range(count):
        writer.write(request)
        statuses.append((await read_answer(reader)).status)
    writer.close()
    return statuses


def ended(records: list[Record]) -> list[Record]:
    return [record for record in records if record.outcome is not None]


async def drained(gateway: Running) -> list[Record]:
    """Stop the chain, which records what was counted, and return the records of the store's stream."""
    records = await records_in_stream(gateway)
    await gateway.gateway.drain()
    await gateway.gateway.chain.stop()
    return [*records, *(await records_in_stream(gateway))[len(records) :]]


async def test_a_flood_of_refusals_without_an_account_is_counted(upstream: FakeUpstream, serve: Serve) -> None:
    async with serve(upstream.base_url, chain=LIMITED) as gateway:
        token = await gateway.token()
        requests = [chat("wrong"), get(CHAT), get("/v1/nothing"), get("/v1/models")]
        for request in requests:
            assert set(await flood(gateway.port, request, 50)) <= {401, 404, 405, 429}
        records = await records_in_stream(gateway)
        assert len(records) <= 2 * 5 + 3, "a record more may be opened for each second"
        assert {record.id for record in records} == {record.id for record in ended(records)}
        # A valid request from the same address is served, and recorded before the upstream is called.
        answer = await ask(gateway.port, chat(token))
        assert (answer.status, answer.whole) == (200, True)
        own = [record for record in await records_in_stream(gateway) if record.id == answer.headers["x-request-id"]]
        assert [record.outcome for record in own] == [None, Outcome.COMPLETED]
        records = await drained(gateway)
        (counted,) = [record for record in records if record.operation == "counted"]
        assert (counted.account, counted.outcome) == ("", Outcome.REFUSED)
        single = [record for record in ended(records) if not record.account and record.operation != "counted"]
        assert len(single) + counted.events == 200
        assert counted.duration_ms > 0


async def test_a_flood_of_refusals_of_an_account_is_counted(upstream: FakeUpstream, serve: Serve) -> None:
    async with serve(upstream.base_url, chain=LIMITED) as gateway:
        token, other = await gateway.token(), await gateway.token("other")
        statuses = await flood(gateway.port, chat(token), 100)
        assert set(statuses) == {200, 429}
        assert (await ask(gateway.port, chat(other))).status == 200
        records = await drained(gateway)
        (counted,) = [record for record in records if record.operation == "counted"]
        assert (counted.account, counted.error_code, counted.refused_by) == ("tester", "rate_limited", "rate-limit")
        of_tester = [record for record in ended(records) if record.account == "tester" and record is not counted]
        served = [record for record in of_tester if record.outcome is Outcome.COMPLETED]
        assert len(served) == statuses.count(200)
        assert len(of_tester) - len(served) + counted.events == statuses.count(429)
        assert len(of_tester) - len(served) <= 7 + 3
        assert {record.id for record in records if record.outcome is None} <= {record.id for record in ended(records)}

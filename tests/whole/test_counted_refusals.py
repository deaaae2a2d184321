"""Floods of refused requests: they fill neither the store nor the disk, stay visible, and cost other callers nothing."""

from __future__ import annotations

import asyncio

from gateway import Outcome
from gateway.fake_upstream import FakeUpstream
from gateway.testing import Running
from gateway.usage.record import Record
from tests.whole.aftermath import records_in_stream
from tests.whole.conftest import CHAIN, Serve
from tests.whole.raw import CHAT, ask, chat, get, read_answer

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

"""The stream of the audit log keeps the newest lines that fit, and counts its bytes."""

from __future__ import annotations

import pytest

from gateway.admin.actions import audit_log
from gateway.admin.actions.audit_log import CALLERS, OPERATORS, AuditLog, StoredLine
from gateway.store.client.client import Client


async def check(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write more than fits, and read it from both ends."""
    monkeypatch.setattr(audit_log, "MAX_LINES", 5)
    log = AuditLog(client)
    assert await log.before("", 10) == await log.after("0-0", 10) == []
    lines = [await log.add(OPERATORS, "number", number) for number in range(8)]
    assert [line.id for line in await log.before("", 10)] == lines[:2:-1]
    assert [line.fields for line in await log.before(lines[5], 1)] == [{"number": b"4"}]
    assert [line.id for line in await log.after(lines[5], 10)] == lines[6:]
    assert int(await client.call("GET", audit_log.BYTES)) == 5 * (64 + len("number4"))
    monkeypatch.setattr(audit_log, "MAX_BYTES", 300)
    last = await log.add(OPERATORS, "number", "x" * 1000)  # one line is kept, however long it is
    assert [line.id for line in await log.before("", 10)] == [last]
    assert int(await client.call("GET", audit_log.BYTES)) == 64 + len("number") + 1000


async def test_the_newest_lines_that_fit_are_kept(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    await check(client, monkeypatch)


async def test_lines_of_callers_push_out_none_of_operators_and_are_read_with_them_in_order(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "MAX_LINES", 5)
    log = AuditLog(client)
    first = await log.add(OPERATORS, "by", "operator")
    callers = [await log.add(CALLERS, "by", "caller") for _ in range(20)]
    last = await log.add(OPERATORS, "by", "operator")
    assert len({first, last, *callers}) == 22
    kept = sorted([first, *callers[-5:], last], key=lambda line: StoredLine(line, {}).place)
    assert [line.id for line in await log.before("", 10)] == kept[::-1]
    assert [line.id for line in await log.after("0-0", 10)] == kept
    for each in range(len(kept)):
        assert [line.id for line in await log.after(kept[each], 2)] == kept[each + 1 : each + 3]
        assert [line.id for line in await log.before(kept[each], 2)] == kept[:each][::-1][:2]
    assert [line.id for line in await AuditLog(client, [OPERATORS]).after("0-0", 10)] == [first, last]


async def test_a_clock_that_steps_back_leaves_the_order_of_the_lines(client: Client) -> None:
    await client.call("XADD", CALLERS.lines, "99999999999999-5", "by", "the future")
    log = AuditLog(client)
    assert [await log.add(CALLERS, "by", "caller") for _ in range(2)] == ["99999999999999-6", "99999999999999-7"]

"""The stream of the audit log keeps the newest lines that fit, and counts its bytes."""

from __future__ import annotations

import pytest

from gateway.store import audit_log
from gateway.store.audit_log import AuditLog
from gateway.store.client.client import Client


async def check(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write more than fits, and read it from both ends."""
    monkeypatch.setattr(audit_log, "MAX_LINES", 5)
    log = AuditLog(client)
    assert await log.before("", 10) == await log.after("0-0", 10) == []
    lines = [await log.add("number", number) for number in range(8)]
    assert [line.id for line in await log.before("", 10)] == lines[:2:-1]
    assert [line.fields for line in await log.before(lines[5], 1)] == [{"number": b"4"}]
    assert [line.id for line in await log.after(lines[5], 10)] == lines[6:]
    assert int(await client.call("GET", audit_log.BYTES)) == 5 * (64 + len("number4"))
    monkeypatch.setattr(audit_log, "MAX_BYTES", 300)
    last = await log.add("number", "x" * 1000)  # one line is kept, however long it is
    assert [line.id for line in await log.before("", 10)] == [last]
    assert int(await client.call("GET", audit_log.BYTES)) == 64 + len("number") + 1000


async def test_the_newest_lines_that_fit_are_kept(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    await check(client, monkeypatch)

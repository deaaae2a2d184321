"""The audit log has one entry for each write, newest first: what was asked for, what became of it, how it was before."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from gateway.admin.actions import accounts, audit, audit_log, management_tokens, money, tokens
from gateway.admin.actions.accounts import AccountChange, NewAccount
from gateway.admin.actions.action import Actor, Scope
from gateway.admin.actions.audit import AuditEntry, AuditLines
from gateway.admin.actions.audit_log import CALLERS, OPERATORS, AuditLog, StoredLine
from gateway.admin.actions.local import LocalClient
from gateway.admin.actions.management_tokens import NewManagementToken
from gateway.admin.actions.money import NewCredit
from gateway.admin.actions.tokens import NewToken, Rotation
from gateway.base.errors import GatewayError, StoreAway
from gateway.store.client.client import Client
from gateway.store.pepper import VARIABLE

ASKED = ("actor", "test", "operation", "accounts.close")
SOON = datetime.now(UTC) + timedelta(hours=1)


@pytest.fixture(autouse=True)
def pepper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "p" * 40)


async def test_a_write_that_is_repeated_says_so(local_client: LocalClient) -> None:
    await accounts.create(local_client, body=NewAccount("alice"))
    local_client.key = "k"
    made = [await tokens.create(local_client, "alice", body=NewToken("laptop")) for _ in range(2)]
    again, first, _ = await entries(local_client)
    assert made[0].id == made[1].id
    assert [(each.outcome, each.code, each.after["id"]) for each in (first, again)] == [
        ("done", None, made[0].id),
        ("done", "repeated", made[0].id),
    ]


async def entries(local_client: LocalClient, limit: int = 20, **query: Any) -> list[AuditEntry]:
    """Return the entries of all pages."""
    found: list[AuditEntry] = []
    after = ""
    while True:
        page = await audit.list_(
            local_client, query=msgspec.convert({"limit": limit, "after": after, **query}, AuditLines)
        )
        assert len(page.data) <= limit
        found += page.data
        if page.next is None:
            return found
        after = page.next


async def test_a_change_has_what_was_asked_for_and_how_it_was_before_and_after(local_client: LocalClient) -> None:
    await accounts.create(local_client, body=NewAccount("alice"))
    await accounts.change(local_client, "alice", body=AccountChange(status="suspended"))
    after, before = await entries(local_client)
    assert (before.operation, before.target, before.actor) == ("accounts.create", "alice", "test")
    assert (after.operation, after.path, after.body) == (
        "accounts.change",
        {"account": "alice"},
        {"status": "suspended"},
    )
    assert (after.before["status"], after.after["status"], after.outcome) == ("active", "suspended", "done")
    assert after.at.endswith("Z")


async def test_what_was_refused_has_the_reason_and_what_did_not_end_says_so(local_client: LocalClient) -> None:
    with pytest.raises(GatewayError):
        await accounts.close(local_client, "nobody")
    await AuditLog(local_client.store.client).add(OPERATORS, *ASKED, "target", "alice")
    unfinished, refused = await entries(local_client)
    assert (unfinished.outcome, unfinished.code, unfinished.target) == ("unfinished", None, "alice")
    assert (refused.outcome, refused.code) == ("refused", "not_found")


async def test_a_write_whose_store_went_away_is_unfinished(
    local_client: LocalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(*_: Any, **__: Any) -> Any:
        raise StoreAway("lost")

    monkeypatch.setattr(accounts.close, "function", lost)
    with pytest.raises(StoreAway):
        await accounts.close(local_client, "alice")
    assert [entry.outcome for entry in await entries(local_client)] == ["unfinished"]


async def test_what_cannot_be_logged_is_not_done_and_what_was_done_is_answered(
    local_client: LocalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(*_: Any, **__: Any) -> Any:
        raise StoreAway("lost")

    add = AuditLog.add

    async def first(*fields: Any, replaces: str = "") -> Any:
        return await (lost() if replaces else add(*fields))

    monkeypatch.setattr(AuditLog, "add", first)
    assert (await accounts.create(local_client, body=NewAccount("alice"))).id == "alice"
    assert [entry.outcome for entry in await entries(local_client)] == ["unfinished"]
    monkeypatch.setattr(AuditLog, "add", lost)
    with pytest.raises(StoreAway):
        await accounts.close(local_client, "alice")
    assert (await accounts.read(local_client, "alice")).status == "active"


async def test_pages_have_each_entry_once_in_the_order_in_which_writes_ended(
    local_client: LocalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "READ_AT_ONCE", 3)
    log = AuditLog(local_client.store.client)
    lines = [await log.add(OPERATORS, *ASKED) for _ in range(9)]
    for number in (5, 0, 8, 2, 3, 1, 7):
        done = ("at", number, "outcome", "done", "after", number)
        await log.add(OPERATORS, *ASKED, *done, replaces=lines[number])
    await log.add(OPERATORS, *ASKED, "outcome", "refused", "code", "conflict", replaces=lines[4])
    for limit in (1, 2, 4, 9, 20):
        found = await entries(local_client, limit)
        assert [entry.after for entry in found] == [None, 7, 1, 3, 2, 8, 0, 5, None]
        assert [entry.at for entry in found][1] == "1970-01-01T00:00:00.007Z"
        assert [entry.outcome for entry in found if entry.after is None] == ["refused", "unfinished"]
        assert found[-1].id == lines[6]


async def test_entries_are_selected_by_who_what_and_when(local_client: LocalClient) -> None:
    shop = LocalClient(local_client.loaded, local_client.store, Actor("token 1a2b shop"))
    await accounts.create(local_client, body=NewAccount("alice"))
    await accounts.create(shop, body=NewAccount("alicette"))
    await money.credit(shop, "alice", body=NewCredit("t", 5))
    made = await tokens.create(shop, "alice", body=NewToken())
    await tokens.disable(local_client, made.id)
    assert [entry.operation for entry in await entries(local_client, actor="token 1a2b")] == [
        "tokens.create",
        "money.credit",
        "accounts.create",
    ]
    assert [entry.actor for entry in await entries(local_client, operation="tokens")] == ["test", "token 1a2b shop"]
    assert len(await entries(local_client, operation="accounts.create")) == 2
    assert await entries(local_client, operation="account") == []
    assert [entry.operation for entry in await entries(local_client, target="alice")] == [
        "tokens.disable",
        "tokens.create",
        "money.credit",
        "accounts.create",
    ]
    assert [entry.operation for entry in await entries(local_client, target=made.id)] == [
        "tokens.disable",
        "tokens.create",
    ]
    assert len(await entries(local_client, since=1_700_000_000)) == 5
    assert await entries(local_client, since=2**36) == []


async def test_no_entry_has_the_text_of_a_token_and_long_values_are_left_out(local_client: LocalClient) -> None:
    await accounts.create(local_client, body=NewAccount("alice", models=("m" * 250,) * 30))
    made = await tokens.create(local_client, "alice", body=NewToken())
    rotated = await tokens.rotate(local_client, made.id, body=Rotation(overlap_s=0, expires_at=SOON))
    managing = await management_tokens.create(local_client, body=NewManagementToken("shop", (Scope.READ,)))
    found = await entries(local_client)
    assert found[3].body == "(left out: too long)"
    text = msgspec.json.encode(found).decode()
    text += repr(await local_client.store.client.call("XRANGE", audit_log.KEY, "-", "+"))
    assert made.id in text
    for each in (made, rotated, managing):
        assert each.token is not None
        assert each.token not in text
        assert each.token[-28:] not in text


async def test_the_log_keeps_the_newest_lines_that_fit(
    local_client: LocalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = local_client.store.client

    async def write(count: int, size: int) -> None:
        for _ in range(count):
            line = await AuditLog(client).add(OPERATORS, *ASKED)
            await AuditLog(client).add(OPERATORS, *ASKED, "target", "x" * size, replaces=line)

    monkeypatch.setattr(audit_log, "MAX_BYTES", 100_000)
    await write(300, 2000)
    assert 20 < await client.call("XLEN", audit_log.KEY) < 50
    assert 50_000 < await client.call("MEMORY", "USAGE", audit_log.KEY, "SAMPLES", 0) < 150_000
    assert 0 < int(await client.call("GET", audit_log.BYTES)) <= 100_000
    monkeypatch.setattr(audit_log, "MAX_LINES", 10)
    await write(30, 10)
    assert await client.call("XLEN", audit_log.KEY) == 10
    assert len(await entries(local_client)) == 10
    counted = 0
    for line in await audit_log.AuditLog(client).before("", 100):
        counted += 64 + sum(len(name) + len(value) for name, value in line.fields.items())
    assert int(await client.call("GET", audit_log.BYTES)) == counted


async def check_log(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write more than fits, and read it from both ends."""
    monkeypatch.setattr(audit_log, "MAX_LINES", 5)
    log = AuditLog(client)
    assert await log.before("", 10) == []
    lines = [await log.add(OPERATORS, "number", number) for number in range(8)]
    assert [line.id for line in await log.before("", 10)] == lines[:2:-1]
    assert [line.fields for line in await log.before(lines[5], 1)] == [{"number": b"4"}]
    assert int(await client.call("GET", audit_log.BYTES)) == 5 * (64 + len("number4"))
    monkeypatch.setattr(audit_log, "MAX_BYTES", 300)
    last = await log.add(OPERATORS, "number", "x" * 1000)  # one line is kept, however long it is
    assert [line.id for line in await log.before("", 10)] == [last]
    assert int(await client.call("GET", audit_log.BYTES)) == 64 + len("number") + 1000


async def test_the_newest_lines_that_fit_are_kept(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    await check_log(client, monkeypatch)


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
    for each in range(len(kept)):
        assert [line.id for line in await log.before(kept[each], 2)] == kept[:each][::-1][:2]
    assert [line.id for line in await AuditLog(client, [OPERATORS]).before("", 10)] == [last, first]


async def test_a_clock_that_steps_back_leaves_the_order_of_the_lines(client: Client) -> None:
    await client.call("XADD", CALLERS.lines, "99999999999999-5", "by", "the future")
    log = AuditLog(client)
    assert [await log.add(CALLERS, "by", "caller") for _ in range(2)] == ["99999999999999-6", "99999999999999-7"]

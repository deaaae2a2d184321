"""Accounts are created once, listed by what they are, changed by what is given, and closed for good."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from gateway.admin.actions import accounts, imports, money
from gateway.admin.actions.accounts import AccountChange, AccountQuery, NewAccount
from gateway.admin.actions.action import Actor, Scope
from gateway.admin.actions.audit_log import KEY
from gateway.admin.actions.imports import MOST_ROWS, AccountRows, CreditRow, CreditRows, Imported
from gateway.admin.actions.local import LocalClient
from gateway.admin.actions.money import NewCredit
from gateway.base.errors import GatewayError, Refused
from gateway.base.ids import now_ms, utc
from gateway.config.schema import ACCOUNT_ID
from gateway.store.accounts import MAX_AMOUNT, AccountStatus
from tests.admin.actions.conftest import LocalClientWith


def changed(**fields: Any) -> AccountChange:
    return msgspec.convert(fields, AccountChange)


async def created(local_client: LocalClient, account: str, **fields: Any) -> None:
    await accounts.create(local_client, body=msgspec.convert({"id": account, **fields}, NewAccount))


async def listed(local_client: LocalClient, **query: Any) -> list[str]:
    """Return the ids of all pages of a list."""
    ids, after = [], ""
    while True:
        page = await accounts.list_(local_client, query=msgspec.convert({"after": after, **query}, AccountQuery))
        ids += [each.id for each in page.data]
        if page.next is None:
            assert not page.has_more
            return ids
        after = page.next


async def refused(work: Any) -> str:
    with pytest.raises(GatewayError) as caught:
        await work
    return caught.value.kind


async def test_an_account_without_an_id_gets_one_which_its_key_repeats(local_client_with: LocalClientWith) -> None:
    body = NewAccount(external_id="cus_Q1", name="Acme, Inc.", metadata={"plan": "pro"})
    first = await accounts.create(local_client_with("one"), body=body)
    assert await accounts.create(local_client_with("one"), body=body) == first
    others = [await accounts.create(local_client_with(key), body=NewAccount()) for key in ("two", "", "")]
    assert len({ACCOUNT_ID.fullmatch(each.id) and each.id for each in (first, *others)} - {None}) == 4


async def test_an_account_has_a_name_metadata_and_the_time_of_its_creation(local_client: LocalClient) -> None:
    began = utc(now_ms())
    made = await accounts.create(local_client, body=NewAccount("alice", name="Acme, Inc.", metadata={"plan": "pro"}))
    assert began <= made.created_at <= utc(now_ms())
    assert await listed(local_client, q="acme") == ["alice"]
    await accounts.change(local_client, "alice", body=changed(name="Acme", metadata={"seats": "7"}))
    await accounts.change(local_client, "alice", body=changed(group="trial"))
    found = await accounts.read(local_client, "alice")
    assert (found.name, found.metadata, found.created_at) == ("Acme", {"seats": "7"}, made.created_at)
    await accounts.change(local_client, "alice", body=changed(name=None, metadata=None))
    found = await accounts.read(local_client, "alice")
    assert (found.name, found.metadata) == ("", {})
    assert await refused(accounts.change(local_client, "alice", body=changed(name="a\nb"))) == "refused"
    with pytest.raises(msgspec.ValidationError, match="<= 20"):
        changed(metadata={str(number): "" for number in range(21)})


async def test_accounts_are_listed_by_what_they_are_in_the_order_of_their_ids(local_client: LocalClient) -> None:
    assert await listed(local_client) == []
    for name, group, external_id in (("dora", "trial", ""), ("alice", "default", "Alice@X"), ("carol", "trial", "c")):
        await created(local_client, name, group=group, external_id=external_id)
    assert await listed(local_client) == await listed(local_client, limit=1) == ["alice", "carol", "dora"]
    assert await listed(local_client, limit=1, group="trial") == ["carol", "dora"]
    assert await listed(local_client, q="LICE@") == await listed(local_client, external_id="Alice@X") == ["alice"]
    assert (
        await listed(local_client, external_id="alice@x")
        == await listed(local_client, external_id="Alice@X", group="trial")
        == []
    )
    await accounts.change(local_client, "dora", body=changed(status="suspended"))
    assert await listed(local_client, status="suspended") == ["dora"]
    assert await listed(local_client, status="active", group="trial") == ["carol"]
    await created(local_client, "bob", group="trial", external_id="alice's bob")
    assert await listed(local_client, q="alice") == ["alice", "bob"]
    assert await listed(local_client, limit=2) == ["alice", "bob", "carol", "dora"]


async def test_what_another_process_wrote_is_listed_at_once(
    local_client_with: LocalClientWith, local_client: LocalClient
) -> None:
    await created(local_client, "alice")
    assert await listed(local_client) == await listed(local_client, status="active") == ["alice"]
    other = LocalClient(
        local_client.loaded,
        type(local_client.store)(local_client.store.client, local_client.store.settling, local_client.config),
        local_client.actor,
    )
    await asyncio.gather(*(created(other, f"more{number}") for number in range(30)))
    await accounts.change(other, "alice", body=changed(status="suspended"))
    assert len(await listed(local_client)) == 31
    assert await listed(local_client, status="suspended") == ["alice"]


async def test_a_change_leaves_what_is_not_given_and_takes_away_what_is_null(local_client: LocalClient) -> None:
    budgets, limits = {"day_micros": 5, "requests": 7}, {"concurrent": 3, "requests_per_minute": 4}
    await created(
        local_client, "alice", credit_line_micros=9, budgets=budgets, limits=limits, external_id="a", models=["m"]
    )
    before = await accounts.read(local_client, "alice")
    assert (before.budgets.day, before.limits.concurrent, before.models) == (5, 3, ("m",))
    unchanged, stored = (
        await accounts.change(local_client, "alice", body=changed()),
        await local_client.store.accounts.get("alice"),
    )
    assert stored is not None
    assert msgspec.structs.asdict(unchanged) == msgspec.structs.asdict(stored) | {"notes": ()}
    after = await accounts.change(
        local_client,
        "alice",
        body=changed(budgets={"day_micros": None, "week_micros": 8}, limits=None, external_id=None),
    )
    assert msgspec.to_builtins(after.budgets) == msgspec.to_builtins(before.budgets) | {
        "day_micros": None,
        "week_micros": 8,
    }
    assert (after.limits.concurrent, after.external_id, after.credit_line_micros) == (None, "", 9)
    after = await accounts.change(
        local_client, "alice", body=changed(budgets=None, credit_line_micros=None, models=None, group="trial")
    )
    assert (after.budgets.requests, after.credit_line_micros, after.models, after.group) == (None, 0, (), "trial")
    assert await listed(local_client, external_id="a") == []
    assert await refused(accounts.change(local_client, "alice", body=changed(group="nowhere"))) == "not_found"
    await created(local_client, "bob", external_id="b")
    assert await refused(accounts.change(local_client, "alice", body=changed(external_id="b"))) == "exists"


@pytest.mark.parametrize("fields", [{"status": "closed"}, {"balance_micros": 1}, {"budgets": {"dya": 1}}, {"group": 1}])
def test_what_cannot_be_changed_is_refused(fields: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        changed(**fields)


async def test_an_account_says_what_it_may_spend_now(local_client: LocalClient) -> None:
    await created(local_client, "alice", credit_line_micros=1)
    await money.credit(local_client, "alice", body=NewCredit("t", 9_000_000))
    assert (await accounts.read(local_client, "alice")).may_spend_micros == 9_000_001
    await accounts.change(local_client, "alice", body=changed(group="trial"))
    found = await accounts.read(local_client, "alice")
    assert found.may_spend_micros == 5_000_000
    assert [(use.window, use.left) for use in found.budget_use] == [("month", 5_000_000), ("day", 9)]
    for change in ({"group": "old"}, {"group": "trial", "status": "suspended"}):
        await accounts.change(local_client, "alice", body=changed(**change))
        assert (await accounts.read(local_client, "alice")).may_spend_micros is None


async def test_a_closed_account_stays_closed_and_can_be_closed_again(local_client: LocalClient) -> None:
    await created(local_client, "alice", external_id="a")
    closed = await accounts.close(local_client, "alice")
    assert closed.status is AccountStatus.CLOSED
    assert await accounts.close(local_client, "alice") == closed
    assert await refused(accounts.change(local_client, "alice", body=changed(status="active"))) == "refused"
    assert (await accounts.read(local_client, "alice")).may_spend_micros is None
    await created(local_client, "bob", external_id="a")


@pytest.mark.parametrize("name", ["nobody", "A", "al*", "a}{b", "", "x" * 300, "gw:{a}"])
async def test_an_account_that_is_not_there_is_not_found(local_client: LocalClient, name: str) -> None:
    for work in (
        accounts.read(local_client, name),
        accounts.close(local_client, name),
        accounts.change(local_client, name, body=changed()),
    ):
        assert await refused(work) == "not_found"


async def test_a_credit_line_needs_the_scope_for_money(local_client: LocalClient) -> None:
    clerk = LocalClient(local_client.loaded, local_client.store, Actor("clerk", frozenset({Scope.ACCOUNTS})))
    assert await refused(created(clerk, "alice", credit_line_micros=1)) == "refused"
    await created(clerk, "alice")
    assert await refused(accounts.change(clerk, "alice", body=changed(credit_line_micros=1))) == "refused"
    await accounts.change(local_client, "alice", body=changed(credit_line_micros=9))
    assert await refused(accounts.change(clerk, "alice", body=changed(credit_line_micros=None))) == "refused"
    same = await accounts.change(clerk, "alice", body=changed(credit_line_micros=9, group="trial"))
    assert (same.credit_line_micros, same.group) == (9, "trial")


async def test_a_credit_line_that_is_lowered_meanwhile_is_not_put_back(
    local_client: LocalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    clerk = LocalClient(local_client.loaded, local_client.store, Actor("clerk", frozenset({Scope.ACCOUNTS})))
    await created(local_client, "alice", credit_line_micros=9)
    existing = accounts.existing

    async def lowered(at: LocalClient, account: str) -> Any:
        found = await existing(at, account)
        await local_client.store.accounts.change(account, credit_line=0)
        return found

    monkeypatch.setattr(accounts, "existing", lowered)
    after = await accounts.change(clerk, "alice", body=changed(credit_line_micros=9, group="trial"))
    assert (after.credit_line_micros, after.group) == (0, "trial")


@pytest.mark.parametrize("external_id", ["a\nb", "a\u202eb", "a\u2066b", "\x1b[2J"])
async def test_an_external_id_has_one_line(local_client: LocalClient, external_id: str) -> None:
    assert await refused(created(local_client, "alice", external_id=external_id)) == "refused"
    await created(local_client, "alice")
    assert await refused(accounts.change(local_client, "alice", body=changed(external_id=external_id))) == "refused"
    row = imports.AccountRow(1, "bob", external_id)
    assert len((await imports.accounts(local_client, body=imports.AccountRows((row,)))).refused) == 1
    assert await listed(local_client) == ["alice"]


async def test_changes_of_different_budgets_and_limits_at_once_are_all_done(local_client: LocalClient) -> None:
    budgets = (
        "day_micros",
        "week_micros",
        "month_micros",
        "total_micros",
        "requests",
        "session_micros",
        "session_requests",
    )
    limits = ("requests_per_minute", "tokens_per_minute", "concurrent")
    names = [*(("budgets", name) for name in budgets), *(("limits", name) for name in limits)]
    await created(local_client, "alice")
    for value in (7, None, 8):
        changes = [msgspec.convert({part: {name: value}}, AccountChange) for part, name in names]
        await asyncio.gather(*(accounts.change(local_client, "alice", body=change) for change in changes))
        account = await local_client.store.accounts.get("alice")
        assert account is not None
        assert set(msgspec.structs.astuple(account.budgets) + msgspec.structs.astuple(account.limits)) == {value}


async def test_an_account_is_read_with_the_currency_of_the_file(local_client: LocalClient) -> None:
    await created(local_client, "alice")
    assert (await accounts.read(local_client, "alice")).currency == ""
    local_client.config = msgspec.structs.replace(local_client.config, currency="EUR")
    again = LocalClient(
        msgspec.structs.replace(local_client.loaded, config=local_client.config), local_client.store, local_client.actor
    )
    assert (await accounts.read(again, "alice")).currency == "EUR"


async def imported(local_client: LocalClient, *rows: Any) -> Imported:
    numbered = [{"line": number} | row for number, row in enumerate(rows)]
    return await imports.accounts(local_client, body=msgspec.convert({"rows": numbered}, AccountRows))


async def credited(local_client: LocalClient, *rows: Any) -> Imported:
    numbered = [{"line": number, "amount_micros": 1} | row for number, row in enumerate(rows)]
    return await imports.credits_(local_client, body=msgspec.convert({"rows": numbered}, CreditRows))


async def balance(local_client: LocalClient, account: str) -> int:
    return (await accounts.read(local_client, account)).balance_micros


def refusals(report: Imported) -> dict[int, str]:
    return {each.line: each.message for each in report.refused}


async def test_a_batch_is_done_once_and_the_rows_that_are_refused_are_named(local_client: LocalClient) -> None:
    rows = [
        {"id": "alice", "external_id": "a", "amount_micros": 5, "group": "trial"},
        {"id": "bob"},
        {"id": "B"},
        {"id": "carol", "group": "nowhere"},
        {"id": "dave", "amount_micros": 5, "transaction": "not one"},
        {"id": "erin", "external_id": " "},
    ]
    report = await imported(local_client, *rows)
    assert (report.rows, report.created, report.credited, report.credited_micros) == (6, 3, 1, 5)
    wrong = refusals(report)
    assert sorted(wrong) == [2, 3, 4, 5]
    for line, words in {2: "3 to 32", 3: "no group `nowhere`", 4: "a transaction id is", 5: "a space"}.items():
        assert words in wrong[line]
    report = await imported(local_client, *rows)
    assert (report.created, report.credited, report.credited_before, report.credited_micros) == (0, 0, 1, 0)
    assert sorted(refusals(report)) == [2, 3, 4, 5]
    assert await balance(local_client, "alice") == 5
    assert await local_client.store.wallet.verify("alice") == []


async def test_credits_are_booked_once_for_accounts_that_are_named_by_either_id(local_client: LocalClient) -> None:
    await accounts.create(local_client, body=NewAccount("alice", external_id="a"))
    rows = [
        {"id": "alice", "transaction": "t1"},
        {"external_id": "a", "transaction": "t2"},
        {"id": "alice", "external_id": "a", "transaction": "t3"},
        {"id": "alice", "external_id": "b", "transaction": "t4"},
        {"external_id": "b", "transaction": "t5"},
        {"id": "nobody", "transaction": "t6"},
        {"transaction": "t7"},
    ]
    for done in ((3, 0), (0, 3)):
        report = await credited(local_client, *rows)
        assert (report.credited, report.credited_before) == done
        assert sorted(refusals(report)) == [3, 4, 5, 6]
    conflict = await credited(local_client, {"id": "alice", "transaction": "t1", "amount_micros": 2})
    assert "another amount" in refusals(conflict)[0]
    assert await balance(local_client, "alice") == 3


async def test_amounts_need_the_scope_for_money(local_client: LocalClient) -> None:
    limited = LocalClient(local_client.loaded, local_client.store, Actor("some", frozenset({Scope.ACCOUNTS})))
    assert (await imported(limited, {"id": "alice"})).created == 1
    for work in (
        imported(limited, {"id": "robert", "amount_micros": 1}),
        credited(limited, {"id": "alice", "transaction": "t"}),
    ):
        with pytest.raises(Refused) as caught:
            await work
        assert (caught.value.status, caught.value.code) == (403, "scope_missing")
    assert await local_client.store.accounts.get("robert") is None


async def test_a_batch_leaves_one_line_in_the_audit_log_and_has_a_largest_size(local_client: LocalClient) -> None:
    await imported(local_client, *({"id": f"user{number}"} for number in range(MOST_ROWS)))
    assert len(await local_client.store.client.call("XRANGE", KEY, "-", "+")) == 1
    with pytest.raises(msgspec.ValidationError):
        await imported(local_client, *({"id": f"user{number}"} for number in range(MOST_ROWS + 1)))


async def test_rows_that_are_too_much_or_for_a_closed_account_are_refused_in_words(local_client: LocalClient) -> None:
    for name in ("alice", "bob"):
        await accounts.create(local_client, body=NewAccount(name))
    await imports.credits_(local_client, body=CreditRows((CreditRow(1, MAX_AMOUNT, "t1", "alice"),)))
    await accounts.close(local_client, "bob")
    rows = (CreditRow(1, MAX_AMOUNT, "t2", "alice"), CreditRow(2, 5, "t3", "bob"), CreditRow(3, 5, "t 4", "alice"))
    done = await imports.credits_(local_client, body=CreditRows(rows))
    assert [each.message.partition(":")[0] for each in done.refused] == [
        "the amount, or the balance with it, is too large to be exact",
        "the account `bob` is closed for good",
        "a transaction id is 1 to 64 letters, digits and . _ ",
    ]
    given = imports.AccountRow(1, "bob", amount_micros=5)
    assert len((await imports.accounts(local_client, body=imports.AccountRows((given,)))).refused) == 1

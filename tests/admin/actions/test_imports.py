"""Batches of accounts and payments: what cannot be done is named, and a repetition does what is missing and nothing else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.admin.actions import accounts, imports
from gateway.admin.actions.accounts import NewAccount
from gateway.admin.actions.action import Actor, Scope
from gateway.admin.actions.audit_log import KEY
from gateway.admin.actions.imports import MOST_ROWS, AccountRows, CreditRow, CreditRows, Imported
from gateway.admin.actions.local import LocalClient
from gateway.base.errors import Refused
from gateway.store.accounts import MAX_AMOUNT


async def imported(local_client: LocalClient, *rows: Any) -> Imported:
    numbered = [{"line": number} | row for number, row in enumerate(rows)]
    return await imports.accounts(local_client, body=msgspec.convert({"rows": numbered}, AccountRows))


async def credited(local_client: LocalClient, *rows: Any) -> Imported:
    numbered = [{"line": number, "amount_micros": 1} | row for number, row in enumerate(rows)]
    return await imports.credits_(local_client, body=msgspec.convert({"rows": numbered}, CreditRows))


async def balance(local_client: LocalClient, account: str) -> int:
    return (await accounts.read(local_client, account)).balance_micros


def refused(report: Imported) -> dict[int, str]:
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
    wrong = refused(report)
    assert sorted(wrong) == [2, 3, 4, 5]
    for line, words in {2: "3 to 32", 3: "no group `nowhere`", 4: "a transaction id is", 5: "a space"}.items():
        assert words in wrong[line]
    report = await imported(local_client, *rows)
    assert (report.created, report.credited, report.credited_before, report.credited_micros) == (0, 0, 1, 0)
    assert sorted(refused(report)) == [2, 3, 4, 5]
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
        assert sorted(refused(report)) == [3, 4, 5, 6]
    conflict = await credited(local_client, {"id": "alice", "transaction": "t1", "amount_micros": 2})
    assert "another amount" in refused(conflict)[0]
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


async def test_a_batch_leaves_two_lines_in_the_audit_log_and_has_a_largest_size(local_client: LocalClient) -> None:
    await imported(local_client, *({"id": f"user{number}"} for number in range(MOST_ROWS)))
    assert len(await local_client.store.client.call("XRANGE", KEY, "-", "+")) == 2
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

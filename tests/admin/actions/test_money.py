"""Each transaction is booked once, however often and by however many it is sent; the ledger tells all of them."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from gateway.admin.actions import accounts, money
from gateway.admin.actions.accounts import NewAccount
from gateway.admin.actions.local import LocalClient
from gateway.admin.actions.money import LedgerLines, NewAdjustment, NewCredit, NewRefund
from gateway.base.errors import GatewayError
from gateway.base.ids import new_id
from gateway.store.accounts import MAX_AMOUNT, AccountError


@pytest.fixture(autouse=True)
async def alice(local_client: LocalClient) -> None:
    await accounts.create(local_client, body=NewAccount("alice"))


async def lines(local_client: LocalClient, **query: Any) -> list[Any]:
    """Return the lines of all pages of the ledger of alice."""
    found, after = [], ""
    while True:
        page = await money.ledger(local_client, "alice", query=msgspec.convert({"after": after, **query}, LedgerLines))
        found += page.data
        if page.next is None:
            return found
        after = page.next


async def refused(work: Any) -> str:
    with pytest.raises(GatewayError) as caught:
        await work
    return caught.value.kind


async def test_fifty_at_once_with_one_transaction_id_give_one_line(local_client: LocalClient) -> None:
    bodies = [NewCredit("t", 5 + number // 25) for number in range(50)]
    results = await asyncio.gather(
        *(money.credit(local_client, "alice", body=body) for body in bodies), return_exceptions=True
    )
    booked = [result for result in results if isinstance(result, money.Booked)]
    assert [each.booked_before for each in booked].count(False) == 1
    assert len(booked) == 25
    assert all(isinstance(each, GatewayError) and each.kind == "conflict" for each in results if each not in booked)
    assert len(await lines(local_client)) == 1
    assert await local_client.store.wallet.verify("alice") == []


async def test_the_ledger_has_every_line_with_its_reason_newest_first(local_client: LocalClient) -> None:
    for number in range(3):
        await money.credit(local_client, "alice", body=NewCredit(f"c{number}", 5))
    adjusted = await money.adjust(local_client, "alice", body=NewAdjustment("a", -20, "credited twice, ü"))
    assert adjusted.balance_micros == -5
    found = await lines(local_client)
    assert [(line.transaction, line.amount_micros, line.reason) for line in found] == [
        ("a", -20, "credited twice, ü"),
        *((f"c{number}", 5, None) for number in (2, 1, 0)),
    ]
    assert await lines(local_client, limit=1) == await lines(local_client, limit=3) == found
    assert await refused(money.ledger(local_client, "nobody", query=LedgerLines())) == "not_found"


async def test_what_the_store_could_not_count_or_keep_is_refused_in_words(local_client: LocalClient) -> None:
    await money.credit(local_client, "alice", body=NewCredit("t1", MAX_AMOUNT))
    for work, words in (
        (money.credit(local_client, "alice", body=NewCredit("t2", 1)), "too large to be exact"),
        (money.credit(local_client, "alice", body=NewCredit("t 3", 1)), "a transaction id is"),
        (money.adjust(local_client, "alice", body=NewAdjustment("t4", 1, "ü" * 300)), "at most 500 bytes"),
    ):
        with pytest.raises(AccountError, match=words):
            await work
    assert [line.transaction for line in await lines(local_client)] == ["t1"]


@pytest.mark.parametrize(
    "fields", [{"amount_micros": 0}, {"amount_micros": 2**53}, {"transaction": "a b"}, {"amount_micros": 1.5}]
)
def test_what_cannot_be_booked_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"transaction": "t", "amount_micros": 1} | fields, NewCredit)


@pytest.mark.parametrize("after", ["x", "1", "1-", "+", "-", "(1-1", "0-0"])
def test_a_cursor_that_is_none_is_refused(after: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"after": after}, LedgerLines)


async def test_a_closed_account_gets_no_credit_but_what_was_booked_is_told_and_can_be_corrected(
    local_client: LocalClient,
) -> None:
    await money.credit(local_client, "alice", body=NewCredit("t", 5))
    await accounts.close(local_client, "alice")
    with pytest.raises(AccountError, match="closed for good: nothing was credited"):
        await money.credit(local_client, "alice", body=NewCredit("u", 5))
    assert (await money.credit(local_client, "alice", body=NewCredit("t", 5))).booked_before
    assert (await money.adjust(local_client, "alice", body=NewAdjustment("v", -5, "refunded"))).balance_micros == 0
    assert len(await lines(local_client)) == 2


async def refunded(
    local_client: LocalClient, transaction: str, micros: int | None = None, number: int = 1
) -> money.Booked:
    return await money.refund(local_client, "alice", transaction, body=NewRefund(micros, number))


async def test_a_credit_is_refunded_once_and_the_balance_stops_at_zero(local_client: LocalClient) -> None:
    for transaction, micros in (("pay-1", 100), ("pay-2", 50), ("x" * 64, 7)):
        await money.credit(local_client, "alice", body=NewCredit(transaction, micros))
    await money.adjust(local_client, "alice", body=NewAdjustment("spent", -90, "spent"))
    part = await refunded(local_client, "pay-2", 20)
    assert (part.amount_micros, part.balance_micros, part.booked_before) == (-20, 47, False)
    again = await refunded(local_client, "pay-2", 50)
    assert (again.amount_micros, again.balance_micros, again.booked_before) == (-20, 47, True)
    with pytest.raises(AccountError, match="with another amount"):
        await refunded(local_client, "pay-2", 19)
    assert (await refunded(local_client, "x" * 64)).amount_micros == -7
    whole = await refunded(local_client, "pay-1")
    assert (whole.amount_micros, whole.balance_micros) == (-40, 0), "no more than is left"
    assert [each.reason for each in await lines(local_client)][:1] == ["refund of pay-1"]
    for none in ("pay-3", "pay-1 ", "spent"):
        with pytest.raises(AccountError):
            await refunded(local_client, none)
    await money.credit(local_client, "alice", body=NewCredit("pay-4", 5))
    with pytest.raises(AccountError, match=r"0\.000005 of this credit is left"):
        await refunded(local_client, "pay-4", 6)
    assert await local_client.store.wallet.verify("alice") == []


async def test_a_credit_is_refunded_in_parts_that_together_are_no_more_than_it(local_client: LocalClient) -> None:
    for transaction in ("pay-1", "x" * 64, "other"):
        await money.credit(local_client, "alice", body=NewCredit(transaction, 100))
    with pytest.raises(AccountError, match="is that of a refund: choose another"):
        await money.credit(local_client, "alice", body=NewCredit("refund:pay-1", 100))
    for transaction in ("pay-1", "x" * 64):
        with pytest.raises(AccountError, match="the refund before this number is not there"):
            await refunded(local_client, transaction, 1, number=2)
        found = [await refunded(local_client, transaction, 30, number) for number in (1, 2, 2, 3)]
        assert [(each.amount_micros, each.booked_before) for each in found] == [
            *((-30, False), (-30, False), (-30, True), (-30, False))
        ]
        with pytest.raises(AccountError, match=r"0\.00001 of this credit is left"):
            await refunded(local_client, transaction, 11, number=4)
        assert (await refunded(local_client, transaction, number=4)).amount_micros == -10
        with pytest.raises(AccountError, match=r"0\.00 of this credit is left"):
            await refunded(local_client, transaction, number=5)
        assert (await refunded(local_client, transaction, 30, number=2)).booked_before
    sums = await money.refunded(local_client, "alice", ["pay-1", "other", "x" * 64])
    assert [(each.count, each.amount_micros) for each in sums.values()] == [(4, 100), (0, 0), (4, 100)]
    assert (await accounts.read(local_client, "alice")).balance_micros == 100
    assert await local_client.store.wallet.verify("alice") == []


async def test_lines_of_one_kind_are_found_among_many(
    local_client: LocalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await money.credit(local_client, "alice", body=NewCredit("pay-1", 1000))
    for number in range(8):
        await local_client.store.wallet.settle("alice", new_id(), number)
    await money.adjust(local_client, "alice", body=NewAdjustment("fix", -5, "x"))

    for searched in (2000, 3):
        monkeypatch.setattr("gateway.store.money.ledger.SEARCHED", searched)
        for limit in (1, 2):
            assert [line.transaction for line in await lines(local_client, kind="credit", limit=limit)] == ["pay-1"]
        assert [line.transaction for line in await lines(local_client, kind="adjust")] == ["fix"]
        assert len(await lines(local_client, kind="charge", limit=2)) == 8
        assert await lines(local_client, kind="late") == []


async def test_fifty_refunds_at_once_are_one_and_leave_what_is_held(local_client: LocalClient) -> None:
    await money.credit(local_client, "alice", body=NewCredit("pay-1", 100))
    hold = local_client.store.wallet.hold
    await hold("alice", new_id(), amount=30, floor=0, lease_ms=60_000, fingerprint="f", max_holds=9)
    found = await asyncio.gather(*(refunded(local_client, "pay-1") for _ in range(50)))
    assert {(each.amount_micros, each.balance_micros) for each in found} == {(-70, 30)}
    assert sum(not each.booked_before for each in found) == 1
    assert await local_client.store.wallet.verify("alice") == []

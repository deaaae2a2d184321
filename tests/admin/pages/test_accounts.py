"""Accounts are searched, made, credited, changed, suspended and closed on pages, by the operations that write the audit log."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import pytest

from gateway.admin.actions import accounts, money, tokens
from gateway.admin.actions.accounts import NewAccount
from gateway.admin.actions.action import Scope
from gateway.admin.actions.inputs import GivenBudgets
from gateway.admin.actions.money import NewCredit
from gateway.admin.actions.tokens import TokenList
from gateway.base.errors import Refused
from gateway.store.accounts import AccountStatus
from gateway.store.client.steps import run_steps
from tests.admin.pages.conftest import House, PlainBrowser
from tests.records import arrival, end, id_at, usage_database
from tests.store_proxy import StoreProxy


async def test_without_accounts_the_page_says_how_to_make_one(house: House) -> None:
    browser = await house.browser()
    status, text = await browser.get("/accounts")
    assert (status, "There are no accounts yet" in text, "gateway account create" in text) == (200, True, True)
    status, text = await browser.get("/accounts?q=nobody")
    assert (status, "No account fits this search" in text) == (200, True)


async def test_an_account_lives_on_its_page(house: House) -> None:
    browser = await house.browser()
    status, _ = await browser.post(
        "/accounts", id="alice", group="trial", external_id="a@shop.example", credit_line="1"
    )
    assert (status, browser.headers["Location"]) == (303, "/accounts/alice?done=created")
    status, text = await browser.get("/accounts/alice?done=created")
    assert (status, "The account is there" in text, "Nothing has changed the balance yet" in text) == (200, True, True)
    assert (await browser.post("/accounts/alice/credit", amount="5.00", transaction="invoice-1"))[0] == 303
    assert (await browser.post("/accounts/alice/credit", amount="5.00", transaction="invoice-1"))[0] == 303
    assert browser.headers["Location"] == "/accounts/alice?done=credited-before"
    status, text = await browser.post("/accounts/alice/credit", amount="6.00", transaction="invoice-1")
    assert (status, "was booked before with another amount" in text) == (409, True)
    assert '<details class="action " open>' in text
    assert 'value="6.00"' in text  # what was typed is still there
    assert (await browser.post("/accounts/alice/adjust", amount="-0.50", transaction="fix", reason="by hand"))[0] == 303
    _, text = await browser.get("/accounts/alice")
    assert all(part in text for part in ('value="invoice-1"', 'name="number" value="1"', 'value="5.00"'))
    refund = {"credit": "invoice-1", "number": "1", "amount": "1.25"}
    status, text = await browser.post("/accounts/alice/refund", **refund | {"amount": "5.01"})
    assert (status, "5.00 of this credit is left to refund" in text, 'value="5.01"' in text) == (409, True, True)
    assert [(await browser.post("/accounts/alice/refund", **refund))[0] for _ in range(2)] == [303, 303]
    assert browser.headers["Location"] == "/accounts/alice?done=credited-before"
    _, text = await browser.get("/accounts/alice")
    assert all(part in text for part in ("1.25 of it refunded", 'name="number" value="2"', 'value="3.75"'))
    assert (await browser.post("/accounts/alice/credit", amount="1.25", transaction="invoice-2"))[0] == 303
    _, text = await browser.get("/accounts/alice?kind=credit")
    assert ("invoice-2" in text, ">by hand<" in text) == (True, False)
    assert "No line of this kind." in (await browser.get("/accounts/alice?kind=late"))[1]
    fields = {
        "group": "default",
        "external_id": "",
        "credit_line": "",
        "models": "words, gpt-*",
        "day": "0.25",
        "concurrent": "3",
    }
    assert (await browser.post("/accounts/alice/change", **fields))[0] == 303
    found = await accounts.read(house.local_client(), "alice")
    assert (found.balance_micros, found.credit_line_micros, found.group) == (4_500_000, 0, "default")
    assert (found.models, found.external_id) == (("words", "gpt-*"), "")
    assert (found.budgets.day, found.budgets.month, found.limits.concurrent) == (250_000, None, 3)
    _, text = await browser.get("/accounts/alice")
    assert all(part in text for part in ("invoice-1", "by hand", "\u22120.50", "0.00 of 0.25"))
    assert (await browser.post("/accounts/alice/suspend"))[0] == 303
    _, text = await browser.get("/accounts/alice")
    assert ("no request of it is served" in text, "Resume" in text) == (True, True)
    assert (await browser.post("/accounts/alice/resume"))[0] == 303
    assert (await browser.post("/accounts/alice/close"))[0] == 400  # the box is not ticked
    assert (await browser.post("/accounts/alice/close", sure="yes"))[0] == 303
    found = await accounts.read(house.local_client(), "alice")
    assert found.status is AccountStatus.CLOSED
    _, text = await browser.get("/accounts/alice")
    assert 'action="/accounts/alice/credit"' not in text
    lines = str(await house.store.client.call("XRANGE", "gw:{audit}:lines", "-", "+"))
    assert "page by link of test for alice" in lines
    assert all(
        name in lines
        for name in ("accounts.create", "money.credit", "money.adjust", "accounts.change", "accounts.close")
    )


async def test_what_is_wrong_with_a_form_is_said_above_it(house: House) -> None:
    browser = await house.browser()
    for fields, said in (
        ({"id": "A!", "group": "default"}, "id: "),
        ({"id": "alice", "group": "none"}, "no group"),
        ({"id": "alice", "group": "default", "credit_line": "x"}, "is not an amount"),
    ):
        status, text = await browser.post("/accounts", **fields)
        assert (status in (400, 404), said in text, 'role="alert"' in text) == (True, True, True), fields
    await browser.post("/accounts", id="alice", group="default")
    status, text = await browser.post("/accounts", id="alice", group="default")
    assert (status, "exists already" in text) == (409, True)
    for amount in ("", "0", "-1", "1e400", "nan", "0.0000001", "\u0661", "9" * 30):
        status, text = await browser.post("/accounts/alice/credit", amount=amount, transaction="t")
        assert (status, 'role="alert"' in text) == (400, True), amount
    assert (await browser.post("/accounts/alice/credit", amount="1", transaction="a b"))[0] == 400
    assert (await accounts.read(house.local_client(), "alice")).balance_micros == 0


async def test_a_credit_that_is_sent_many_times_at_once_is_one_line(house: House) -> None:
    browser = await house.browser()
    await browser.post("/accounts", id="alice", group="default")
    await asyncio.gather(*(browser.post("/accounts/alice/credit", amount="1", transaction="once") for _ in range(20)))
    assert (await accounts.read(house.local_client(), "alice")).balance_micros == 1_000_000


async def test_the_list_has_pages_and_is_searched(house: House) -> None:
    for number in range(60):
        await accounts.create(
            house.local_client(), body=NewAccount(id=f"acc{number:03}", external_id=f"{number}@shop.example")
        )
    await money.credit(house.local_client(), "acc007", body=NewCredit("t", 1_234_567))
    browser = await house.browser()
    _, text = await browser.get("/accounts")
    assert ("acc049" in text, "acc050" in text, "Show the next 50" in text) == (True, False, True)
    _, text = await browser.get("/accounts?after=acc049")
    assert ("acc049<" in text, "acc050" in text, "acc059" in text) == (False, True, True)
    _, text = await browser.get("/accounts?q=7%40shop")
    assert ("acc007" in text, "1.234567" in text, "acc008" in text) == (True, True, False)
    assert (await browser.get("/accounts?status=wrong"))[0] == 400


async def test_a_statement_has_the_charges_of_a_month_by_model(house: House) -> None:
    await accounts.create(house.local_client(), body=NewAccount("alice", name="Alice Ltd"))
    november_ms = round(datetime(2026, 11, 1, tzinfo=UTC).timestamp() * 1000)
    mine = (("words", 1_250_000, 1), ("words", 1_250_000, 60_000), ("more", 30_000, 1), ("words", 70_000, 0))
    usage_database(house.store.usage.folder).write(
        end(arrival(id_at(november_ms - before_ms)), account="alice", model=model, charge_micros=charge)
        for model, charge, before_ms in mine
    )
    browser = await house.browser()
    status, text = await browser.get("/accounts/alice/statement?month=2026-10")
    cells = re.findall(r'<td role="cell" data-label="(?:Model|Requests)"[^>]*>([^<]+)</td>', text)
    assert (status, cells) == (200, ["more", "1", "words", "2", "Total", "3"])
    assert all(part in text for part in ("Alice Ltd", "2026-10-01 to 2026-10-31", "2.53", "CSV"))
    assert "the month is not over" not in text
    assert (await browser.get("/accounts/alice/statement"))[0] == 200
    assert (await browser.get("/accounts/alice/statement?month=x"))[0] == 400


async def test_there_is_no_page_of_an_account_that_is_not_there(house: House) -> None:
    browser = await house.browser()
    for name in ("nobody", "A", "%2e%2e%2fetc", "a" * 40, "%00", "<script>"):
        status, text = await browser.get(f"/accounts/{name}")
        assert (status, "<script>" in text.replace('<script src="/static', "")) == (404, False), name


async def test_the_store_away_is_said(house_at: Callable[[str], Awaitable[House]], store_url: str) -> None:
    async with StoreProxy(store_url) as proxy:
        browser = await (await house_at(proxy.url)).browser()
        assert (await browser.get("/accounts"))[0] == 200
    for path in ("/accounts", "/accounts/alice", "/channels"):
        status, text = await browser.get(path)
        assert (status, "The store does not answer" in text) == (503, True), path
    assert (await browser.post("/accounts", id="alice", group="default"))[0] == 503


async def test_who_may_not_touch_money_has_no_field_for_a_credit_line_and_keeps_it(house: House) -> None:
    await accounts.create(house.local_client(), body=NewAccount("alice", credit_line_micros=7_000_000))
    clerk = await house.browser(Scope.READ, Scope.ACCOUNTS)
    for path in ("/accounts", "/accounts/alice"):
        assert 'name="credit_line"' not in (await clerk.get(path))[1]
    assert (await clerk.post("/accounts/alice/change", group="trial"))[0] == 303
    assert (await clerk.post("/accounts/alice/change", group="trial", credit_line="9"))[0] == 403
    assert (await clerk.post("/accounts", id="bob", group="default", credit_line="9"))[0] == 403
    found = await accounts.read(house.local_client(), "alice")
    assert (found.group, found.credit_line_micros) == ("trial", 7_000_000)
    boss = await house.browser()
    assert 'name="credit_line"' in (await boss.get("/accounts/alice"))[1]
    assert (await boss.post("/accounts/alice/change", group="trial"))[0] == 303
    assert (await accounts.read(house.local_client(), "alice")).credit_line_micros == 0


async def of_alice(house: House) -> PlainBrowser:
    await accounts.create(house.local_client(), body=NewAccount(id="alice"))
    browser = await house.browser()
    await browser.get("/accounts/alice")
    return browser


def secret_in(text: str) -> str | None:
    found = re.search(r'<code id="secret">(sk-alice-[^<]+)</code>', text)
    return found and found[1]


async def test_a_token_is_shown_once_and_works(house: House) -> None:
    browser = await of_alice(house)
    fields = {
        "name": "laptop",
        "days": "30",
        "day": "1.00",
        "models": "words",
        "addresses": "10.0.0.0/8",
        "once": browser.once,
    }
    status, text = await browser.post("/accounts/alice/tokens", **fields)
    secret = secret_in(text)
    assert status == 201
    assert secret is not None
    known = (await house.store.tokens.authenticate(secret)).token
    assert (known.name, known.models, known.addresses, known.budgets.day) == (
        "laptop",
        ("words",),
        ("10.0.0.0/8",),
        1_000_000,
    )
    status, text = await browser.post(
        "/accounts/alice/tokens", **fields
    )  # as a browser does when the page is loaded again
    assert (status, secret_in(text), "was shown then" in text) == (201, None, True)
    assert len((await tokens.list_(house.local_client(), "alice", query=TokenList())).data) == 1
    _, text = await browser.get("/accounts/alice")
    assert ("laptop" in text, secret in text) == (True, False)
    lines = str(await house.store.client.call("XRANGE", "gw:{audit}:lines", "-", "+"))
    assert secret not in lines


async def test_a_token_is_replaced_disabled_enabled_and_deleted(house: House) -> None:
    browser = await of_alice(house)
    _, text = await browser.post("/accounts/alice/tokens", name="old")
    old = secret_in(text) or ""
    short = old.split("-")[2]
    status, text = await browser.post(f"/accounts/alice/tokens/{short}/rotate", hours="24")
    new = secret_in(text) or ""
    assert (status, new != old) == (201, True)
    for text in (old, new):
        known = await house.store.tokens.authenticate(text)
        assert known.account.id == "alice"
    step = house.store.tokens.touch_step(known)
    assert step is not None
    await run_steps(house.store.client, [step])
    _, text = await browser.get("/accounts/alice")
    assert len(re.findall(r"in the hour from <time [^>]*>[0-9-]{10} [0-9]{2}:00:00Z<", text)) == 1
    assert (await browser.post(f"/accounts/alice/tokens/{short}/disable"))[0] == 303
    assert await is_refused(house, old)
    assert (await browser.post(f"/accounts/alice/tokens/{short}/enable"))[0] == 303
    assert not await is_refused(house, old)
    assert (await browser.post(f"/accounts/alice/tokens/{short}/delete"))[0] == 400
    assert (await browser.post(f"/accounts/alice/tokens/{short}/delete", sure="yes"))[0] == 303
    assert await is_refused(house, old)
    for wrong in ("x", "A", "%2e%2e%2fx"):
        assert (await browser.post(f"/accounts/alice/tokens/{wrong}/disable"))[0] in (400, 404), wrong
    for hours in ("", "-1", "1.5", "99999999"):
        status, text = await browser.post(f"/accounts/alice/tokens/{new.split('-')[2]}/rotate", hours=hours)
        assert (status, 'role="alert"' in text) == (400, True), hours


async def is_refused(house: House, text: str) -> bool:
    try:
        await house.store.tokens.authenticate(text)
    except Refused:
        return True
    return False


async def test_headings_sort_all_accounts_that_fit_and_none_where_they_are_too_many(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, browser = house.local_client(), await house.browser()
    for number, name in enumerate(("aaa", "bbb", "ccc")):
        requests = GivenBudgets(requests=number) if number else GivenBudgets()
        await accounts.create(client, body=NewAccount(name, budgets=requests))
        await money.credit(client, name, body=NewCredit(transaction=name, amount_micros=5 - (number + 1) % 3))
    for sort, order in {"": "abc", "balance": "bac", "-balance": "cab", "-budget": "bca", "other": "abc"}.items():
        _, text = await browser.get(f"/accounts?sort={sort}")
        assert "".join(re.findall(r'href="/accounts/(\w)\1\1"', text)) == order, sort
    monkeypatch.setattr("gateway.admin.pages.accounts.SORTED", 2)
    _, text = await browser.get("/accounts?sort=-balance")
    assert "More than 2 accounts are not sorted" in text

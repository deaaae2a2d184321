"""A caller sees and changes what belongs to its account, and nothing else."""

from __future__ import annotations

import asyncio
import csv
import re
import time
from collections.abc import AsyncIterator

import pytest

from gateway.admin.actions import accounts, links, management_tokens, money, tokens
from gateway.admin.actions.accounts import AccountChange, NewAccount
from gateway.admin.actions.action import Scope
from gateway.admin.actions.management_tokens import NewManagementToken
from gateway.admin.actions.money import NewCredit
from gateway.admin.actions.tokens import NewToken, TokenList
from gateway.admin.pages.callers import MOST_AT_ONCE, MOST_CHANGES, OwnBounds
from gateway.domain.exchange import Outcome
from gateway.store.accounts import AccountStatus
from gateway.usage import queries
from gateway.usage.database import UsageFiles
from gateway.usage.record import hashed_reference
from tests.admin.pages.conftest import House, PlainBrowser
from tests.patience import soon, wait_until
from tests.records import arrival, end, usage_database


@pytest.fixture
async def own(house: House) -> AsyncIterator[House]:
    """The port with the accounts alice and bob, each with a token and a request."""
    rows = usage_database(house.folder / "usage")
    for name, model in (("alice", "words"), ("bob", "secrets-of-bob")):
        await accounts.create(house.local_client(), body=NewAccount(name))
        await money.credit(house.local_client(), name, body=NewCredit(f"paid-by-{name}", 5_000_000))
        await tokens.create(house.local_client(), name, body=NewToken(name=f"laptop of {name}"))
        rows.write([end(arrival(), account=name, model=model, charge_micros=27)])
    yield house
    rows.close()


async def entered(house: House, account: str) -> PlainBrowser:
    """Return a caller who has entered by a link of its account."""
    made = await links.own(house.local_client(), account)
    browser = PlainBrowser(await house.client_of())
    status, _ = await browser.post("/enter", ticket=str(made.url).partition("ticket=")[2])
    assert (status, browser.headers["Location"]) == (303, "/my")
    return browser


async def test_a_caller_sees_its_balance_its_use_and_its_requests(own: House) -> None:
    alice = await entered(own, "alice")
    status, page = await alice.get("/my")
    assert status == 200
    assert "laptop of alice" in page
    assert 'href="/my/models"' in page
    _, page = await alice.get("/my/models")
    assert all(
        part in page for part in (">words<", "Bearer TOKEN", "/v1/chat/completions", 'aria-current="page">Models')
    )
    assert "bob" not in page
    status, listed = await alice.get("/my/requests")
    assert (status, listed.count('href="/my/requests/')) == (200, 1)
    request_id = listed.partition('href="/my/requests/')[2].partition('"')[0]
    status, one = await alice.get(f"/my/requests/{request_id}")
    assert (status, request_id in one) == (200, True)
    assert re.search(r"Operation</dt>\s*<dd>chat", one)
    assert re.search(r"Charge</dt>\s*<dd>[\d.]+ = [\d,]+ of input x [\d.]+", one)
    bob = await entered(own, "bob")
    assert (await bob.get(f"/my/requests/{request_id}"))[0] == 404
    said = {"error_code": "unpriced_option", "error_param": "tools", "error_message": "Send none."}
    refused = end(arrival(), account="bob", outcome=Outcome.REFUSED, status=400, attempts=[], **said)
    usage_database(own.folder / "usage").write([refused])
    status, one = await bob.get(f"/my/requests/{refused.id}")
    assert (status, "Send none. (<code>param</code>: tools)" in one) == (200, True)


async def test_a_caller_looks_at_a_month_and_takes_it_away(own: House) -> None:
    alice, (charged, *_) = await entered(own, "alice"), queries.select(UsageFiles(own.folder / "usage"))
    month = charged.arrived_at[:7]
    for query, name in (("", "the last 30 days"), (f"?month={month}", month)):
        status, page = await alice.get(f"/my{query}")
        assert (status, f"Charged each day, in {name}" in page, f'href="/my?month={month}"' in page) == (
            200,
            True,
            True,
        )
        lines = list(csv.DictReader((await alice.get(f"/my/usage.csv{query}"))[1].splitlines()))
        assert [(line["model"], line["requests"], line["charge_micros"]) for line in lines] == [("words", "1", "27")]
    status, page = await alice.get("/my?month=2001-02")
    assert (status, "Nothing was charged in 2001-02." in page) == (200, True)
    for month in ("2999-01", "2026-13", "x"):
        assert (await alice.get(f"/my?month={month}"))[0] == 400


async def test_a_caller_makes_replaces_and_deletes_its_tokens(own: House) -> None:
    alice = await entered(own, "alice")
    await alice.get("/my")
    status, page = await alice.post("/my/tokens", name="new", once=alice.once)
    text = page.partition('id="secret">')[2].partition("<")[0]
    assert (status, text.startswith("sk-")) == (201, True)
    made = [
        each for each in (await tokens.list_(own.local_client(), "alice", query=TokenList())).data if each.name == "new"
    ]
    short = made[0].id.rpartition("-")[2]
    assert (await alice.post(f"/my/tokens/{short}/rotate", hours="1", once="x"))[0] == 201
    assert (await alice.post(f"/my/tokens/{short}/delete"))[0] == 400
    assert (await alice.post(f"/my/tokens/{short}/delete", sure="yes"))[0] == 303
    assert made[0].id not in {
        each.id for each in (await tokens.list_(own.local_client(), "alice", query=TokenList())).data
    }


async def test_a_caller_cannot_touch_what_is_not_its_own(own: House) -> None:
    alice = await entered(own, "alice")
    await alice.get("/my")
    (bobs,) = (await tokens.list_(own.local_client(), "bob", query=TokenList())).data
    short = bobs.id.rpartition("-")[2]
    for token in (short, bobs.id, f"..%2fbob-{short}"):
        assert (await alice.post(f"/my/tokens/{token}/delete", sure="yes"))[0] == 404
    for path in ("/", "/accounts", "/accounts/alice", "/accounts/bob"):
        assert (await alice.get(path))[0] == 403
    for path in ("/accounts/alice/credit", f"/accounts/bob/tokens/{short}/delete", "/accounts/alice/close"):
        assert (await alice.post(path, amount="5", transaction="x", sure="yes"))[0] == 403
    assert (await tokens.list_(own.local_client(), "bob", query=TokenList())).data == [bobs]
    assert (await accounts.read(own.local_client(), "alice")).balance_micros == 5_000_000


async def test_an_operator_has_no_pages_of_an_account_of_its_own(own: House) -> None:
    boss = await own.browser()
    assert (await boss.get("/my"))[0] == 403


async def test_links_of_accounts_need_the_scope_of_tokens(own: House) -> None:
    for scope, status in ((Scope.READ, 403), (Scope.TOKENS, 201)):
        made = await management_tokens.create(own.local_client(), body=NewManagementToken(name="desk", scopes=(scope,)))
        headers = {"Authorization": f"Bearer {made.token}"}
        async with (await own.client_of()).post("/api/v1/accounts/alice/links", headers=headers) as response:
            assert response.status == status


async def test_a_suspended_account_is_told_that_nothing_is_served(own: House) -> None:
    alice = await entered(own, "alice")
    await own.store.accounts.change("alice", status=AccountStatus.SUSPENDED)
    status, page = await alice.get("/my")
    assert (status, "no request of it is served" in page, "suspended" in page) == (200, True, True)


async def test_a_caller_makes_only_so_many_tokens(own: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.admin.pages.callers.MOST_TOKENS", 3)
    alice = await entered(own, "alice")
    await alice.get("/my")
    assert [(await alice.post("/my/tokens", name="new", once=f"o{each}"))[0] for each in range(3)] == [201, 201, 409]
    held = (await tokens.list_(own.local_client(), "alice", query=TokenList())).data
    short = held[-1].id.rpartition("-")[2]
    status, page = await alice.post(f"/my/tokens/{short}/rotate", hours="0", once="r")
    assert (status, "There are 3 tokens already" in page) == (409, True)
    assert (await alice.post(f"/my/tokens/{short}/delete", sure="yes"))[0] == 303
    assert (await alice.post("/my/tokens", name="new", once="again"))[0] == 201


async def test_a_caller_changes_something_only_so_often(own: House) -> None:
    alice, bob = await entered(own, "alice"), await entered(own, "bob")
    await alice.get("/my")
    began, done = time.monotonic(), 0
    while (answer := await alice.post("/my/tokens/00000000/delete", sure="yes"))[0] == 404:
        done += 1
    assert MOST_CHANGES <= done <= MOST_CHANGES * (1 + (time.monotonic() - began) / 60)
    assert (answer[0], f"At most {MOST_CHANGES} changes a minute" in answer[1]) == (429, True)
    wait_s = int(alice.headers["Retry-After"])
    assert 1 <= wait_s <= 60 / MOST_CHANGES
    await bob.get("/my")
    assert (await bob.post("/my/tokens", name="new", once="x"))[0] == 201
    await asyncio.sleep(wait_s)
    assert (await alice.post("/my/tokens", name="new", once="x"))[0] == 201


async def test_a_suspended_account_gets_no_tokens(own: House) -> None:
    alice = await entered(own, "alice")
    await alice.get("/my")
    await accounts.change(own.local_client(), "alice", body=AccountChange(status="suspended"))
    status, page = await alice.post("/my/tokens", name="new", once="x")
    assert (status, "not active" in page) == (409, True)


async def test_a_caller_searches_its_requests_and_takes_them_away(own: House) -> None:
    alice, rows = await entered(own, "alice"), usage_database(own.folder / "usage")
    mine = end(arrival(), account="alice", model="up", reference=hashed_reference("alice", "order 7"))
    rows.write([mine, end(arrival(), account="bob", model="up", reference=hashed_reference("bob", "order 7"))])
    rows.close()
    for query, count in (
        ("", 2),
        ("?model=up", 1),
        ("?reference=order+7", 1),
        ("?outcome=refused", 0),
        ("?reference=x", 0),
    ):
        status, text = await alice.get(f"/my/requests{query}")
        assert (status, text.count('href="/my/requests/')) == (200, count), query
    status, text = await alice.get("/my/requests.csv?model=up")
    (line,) = csv.DictReader(text.splitlines())
    assert (status, line["id"], "cost_micros" in line) == (200, mine.id, False)
    assert (await alice.get("/my/requests?outcome=unheard"))[0] == 400


async def test_a_few_requests_of_an_account_are_worked_on_at_once_and_others_do_not_wait() -> None:
    bounds, go_on, working = OwnBounds(), asyncio.Event(), list[str]()

    async def ask(account: str) -> None:
        async with bounds.turn(account):
            working.append(account)
            await go_on.wait()

    hostile = [asyncio.create_task(ask("hostile")) for _ in range(50)]
    await wait_until(lambda: len(working) == MOST_AT_ONCE)
    other = asyncio.create_task(ask("other"))
    await wait_until(lambda: "other" in working)
    assert working.count("hostile") == MOST_AT_ONCE
    for left in hostile[:20]:  # some leave while they work, or wait
        left.cancel()
    await asyncio.gather(*hostile[:20], return_exceptions=True)
    go_on.set()
    await soon(asyncio.gather(*hostile[20:], other))
    assert working.count("hostile") == MOST_AT_ONCE + 30
    hostile.clear()
    del left  # a task that was cancelled keeps its frames
    assert not bounds._turns

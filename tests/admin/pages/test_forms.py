"""A form does something only where a page of this session has sent it; who did what is in the audit log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from html import unescape

import pytest

from gateway.admin.actions import accounts, audit, links
from gateway.admin.actions.accounts import NewAccount
from gateway.admin.actions.action import Actor, Scope
from gateway.admin.actions.audit import AuditLines
from gateway.admin.actions.links import NewLink
from gateway.admin.pages import view
from gateway.admin.pages.view import LARGEST
from gateway.base.errors import Refused
from tests.admin.pages.conftest import House, PlainBrowser
from tests.patience import PATIENCE_S

NEW = {"id": "alice", "group": "default"}


async def ids(house: House) -> list[str]:
    return [account.id async for account in house.store.accounts.all()]


async def test_a_form_of_another_origin_does_nothing(house: House) -> None:
    browser = await house.browser()
    for origin in ("", "null", "http://evil.example", "https://127.0.0.1", "http://127.0.0.1:1"):
        status, text = await browser.post("/accounts", origin=origin, **NEW)
        assert (status, "form_refused" in text, await ids(house)) == (403, True, []), origin
        both = f"a page of '{origin.partition('://')[2]}', not of '{browser.origin.partition('://')[2]}'"
        assert both in unescape(text), origin
    assert (await browser.post("/accounts", **NEW))[0] == 303
    assert await ids(house) == ["alice"]


async def test_a_request_without_an_origin_does_nothing(house: House) -> None:
    browser = await house.browser()
    async with browser.client.post("/accounts", data={"form": browser.proof, **NEW}) as response:
        assert response.status == 403
    assert await ids(house) == []


async def test_a_form_of_another_session_does_nothing(house: House) -> None:
    browser, other = await house.browser(), await house.browser()
    for proof in ("", "x", other.proof, "\u2028"):
        status, text = await browser.post("/accounts", proof=proof, **NEW)
        assert (status, "form_refused" in text) == (403, True)
    assert await ids(house) == []


async def test_every_address_that_takes_a_form_wants_its_proof(house: House) -> None:
    browser = await house.browser()
    await browser.post("/accounts", **NEW)
    app = browser.client.app
    assert app is not None
    paths = {
        route.resource.canonical
        for route in app.router.routes()
        if route.method == "POST" and route.resource is not None and not route.resource.canonical.startswith("/api/")
    } - {"/enter"}
    assert len(paths) >= 15
    for path in paths:
        filled = path.format(account="alice", token="x", name="up", number="0")
        assert (await browser.post(filled, proof=""))[0] == 403, path
        assert (await browser.post(filled, origin="http://evil.example"))[0] == 403, path
        assert (await PlainBrowser(await house.client_of()).post(filled))[0] in (
            401,
            200 if path == "/leave" else 401,
        ), path


async def test_a_form_is_small(house: House) -> None:
    browser = await house.browser()
    status, text = await browser.post("/accounts", **NEW, external_id="x" * LARGEST)
    assert (status, "request_too_large" in text) == (413, True)
    status, _ = await browser.post("/enter", ticket="x" * LARGEST)
    assert status == 413
    fields = {f"f{number}": "" for number in range(101)}
    assert (await browser.post("/accounts", **NEW, **fields))[0] == 400
    assert await ids(house) == []


async def test_what_is_no_form_is_refused(house: House) -> None:
    browser = await house.browser()
    for body in (b"\xff=1", b"id=%ff%fe", b"id=a&id=b", b"{}"):
        headers = {"Origin": browser.origin, "Content-Type": "application/x-www-form-urlencoded"}
        async with browser.client.post("/accounts", data=body, headers=headers) as response:
            assert response.status in (400, 403), body
        headers["Content-Type"] = "application/json"
        async with browser.client.post("/accounts", data=body, headers=headers) as response:
            assert response.status == 415, body


async def test_nobody_does_what_the_scopes_do_not_say(house: House) -> None:
    await (await house.browser()).post("/accounts", **NEW)
    reader = await house.browser(Scope.READ)
    before = await house.store.accounts.get("alice")
    _, text = await reader.get("/accounts/alice")
    assert not any(f'action="/accounts/alice{verb}"' in text for verb in ("/credit", "/close", "/tokens", "/suspend"))
    for path, fields in {
        "/accounts": {"id": "bob", "group": "default"},
        "/accounts/alice/credit": {"amount": "5", "transaction": "t"},
        "/accounts/alice/adjust": {"amount": "5", "transaction": "t", "reason": "r"},
        "/accounts/alice/suspend": {},
        "/accounts/alice/close": {"sure": "yes"},
        "/accounts/alice/tokens": {"name": "x"},
        "/channels/up/disable": {"reason": "x"},
        "/channels/up/test": {},
    }.items():
        status, text = await reader.post(path, **fields)
        assert (status, "scope_missing" in text) == (403, True), path
    assert (await reader.get("/audit"))[0] == 403
    assert await house.store.accounts.get("alice") == before
    assert await ids(house) == ["alice"]
    money = await house.browser(Scope.MONEY)
    assert (await money.get("/"))[0] == 403
    assert (await money.get("/now/feed"))[0] == 403
    assert (await money.get("/accounts"))[0] == 403


async def test_a_form_that_does_not_end_is_refused(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "READ_S", 0.2)
    client = await house.client_of()

    async def slow() -> AsyncIterator[bytes]:
        yield b"ticket="
        await asyncio.sleep(PATIENCE_S)

    headers = {"Origin": PlainBrowser(client).origin, "Content-Type": "application/x-www-form-urlencoded"}
    async with client.post("/enter", data=slow(), headers=headers) as response:
        assert response.status == 408


WRONG: list[tuple[str, dict[str, str], str]] = [
    ("credit", {"amount": "0", "transaction": "t"}, "Amount: it is to be more than 0."),
    (
        "credit",
        {"amount": "1", "transaction": "a b"},
        "Transaction id: it has a character that is not allowed there",
    ),
    ("adjust", {"amount": "1", "transaction": "t", "reason": ""}, "Reason: it is to be given."),
    ("change", {"group": "default", "credit_line": "1e3"}, "Credit line: `1e3` is not an amount"),
    ("change", {"group": "default", "day": "-1"}, "Budget a day: it is to be more than 0."),
    ("tokens", {"days": "x"}, "Days until it expires: `x` is not a whole number."),
    ("tokens", {"days": "999999999999999"}, "give a time from 1970 to 8999"),
    ("tokens", {"day": "1,5"}, "Budget a day: `1,5` is not an amount"),
    ("change", {"group": "default", "external_id": "x" * 201}, "External id: it has at most 200 characters."),
]


async def test_what_is_wrong_in_a_form_is_said_in_words(house: House) -> None:
    browser = await house.browser()
    await browser.post("/accounts", **NEW)
    for path, fields, said in WRONG:
        status, text = await browser.post(f"/accounts/alice/{path}", **fields)
        assert (status, said in unescape(text)) == (400, True), (said, text)


async def test_a_caller_hears_no_words_for_operators(house: House) -> None:
    await accounts.create(house.local_client(), body=NewAccount("alice"))
    link = await links.own(house.local_client(), "alice")
    caller = PlainBrowser(await house.client_of())
    await caller.post("/enter", ticket=str(link.url).partition("ticket=")[2])
    await caller.get("/my")
    status, text = await caller.post("/my/tokens/00000000/delete", sure="yes")
    assert (status, "There is no such token." in text, "gateway token" in text) == (404, True, False)


PAGES_OF_FORMS = [
    ("/accounts/alice/credit", "/accounts/alice"),
    ("/accounts/alice/tokens/0a/rotate", "/accounts/alice"),
    ("/channels/%3Cb%20onclick%3Dx%3E%22%26%2F/disable", "/channels"),
    ("/my/tokens", "/my"),
    ("/my/tokens/0a/delete", "/my"),
]


async def test_who_looks_at_the_address_of_a_form_sees_its_page(house: House) -> None:
    browser = await house.browser()
    for path, page in PAGES_OF_FORMS:
        status, _ = await browser.get(path)
        assert (status, browser.headers["Location"]) == (303, page), path


async def test_changes_are_listed_with_their_details_and_searched(house: House) -> None:
    browser = await house.browser()
    await browser.post("/accounts", id="alice", group="default", external_id="<i>x</i>")
    await browser.post("/accounts", id="alice", group="default")
    status, text = await browser.get("/audit")
    assert status == 200
    for part in (
        "accounts.create",
        "page by link of test for alice",
        "exists",
        "done",
        "&lt;i&gt;x&lt;/i&gt;",
        "links.create",
    ):
        assert part in text, part
    await browser.post("/accounts/alice/credit", amount="5.25", transaction="invoice-1")
    _, text = await browser.get("/audit?operation=money")
    assert ("&#34;amount&#34;: &#34;5.25&#34;" in text, "_micros" in text) == (True, False)
    _, text = await browser.get("/audit?operation=links")
    assert ("links.create" in text, "accounts.create" in text) == (True, False)
    assert "No change fits this search" in (await browser.get("/audit?actor=nobody"))[1]


async def test_what_callers_change_is_listed_apart(house: House) -> None:
    browser = await house.browser()
    await browser.post("/accounts", id="alice", group="default")
    alice = PlainBrowser(await house.client_of())
    link = await links.own(house.local_client(), "alice")
    await alice.post("/enter", ticket=str(link.url).partition("ticket=")[2])
    await alice.get("/my")
    assert (await alice.post("/my/tokens", name="phone", once=alice.once))[0] == 201
    for query, shown in (("", (True, True)), ("?by=callers", (True, False)), ("?by=operators", (False, True))):
        _, text = await browser.get(f"/audit{query}")
        assert ("page of account alice" in text, "accounts.create" in text) == shown
    assert (await browser.get("/audit?by=nobody"))[0] == 400


@pytest.mark.parametrize("name", ["admin.token", "alice by X-Forwarded-User", "test for bob"])
async def test_a_name_of_a_link_never_stands_for_who_made_it(house: House, name: str) -> None:
    maker = Actor("token 1a2b3c shop", frozenset({Scope.READ, Scope.ACCOUNTS}))
    made = await links.create(house.local_client(maker), body=NewLink(name=name))
    browser = PlainBrowser(await house.client_of())
    assert await browser.enter(str(made.url).partition("ticket=")[2]) == 303
    await browser.post("/accounts", id="alice", group="default")
    lines = (await audit.list_(house.local_client(), query=AuditLines())).data
    assert [line.actor for line in lines] == [f"page by link of token 1a2b3c shop for {name}", "token 1a2b3c shop"]


@pytest.mark.parametrize("name", ["alice\nadmin.token", "a\r", "a\x1b[2J", "a\u202eb"])
async def test_a_name_has_one_line(house: House, name: str) -> None:
    with pytest.raises(Refused, match="no control characters"):
        await links.create(house.local_client(), body=NewLink(name=name))

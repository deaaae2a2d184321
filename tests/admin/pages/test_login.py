"""One link lets one person in; a session ends with what it hangs on; a proxy's word counts from its own address alone."""

from __future__ import annotations

import asyncio
import re
import time
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from aiohttp import CookieJar
from pytest_aiohttp import AiohttpClient

from gateway.admin.actions import accounts, links, management_tokens, money, tokens
from gateway.admin.actions.accounts import NewAccount
from gateway.admin.actions.action import Actor, Scope
from gateway.admin.actions.links import AdminToken
from gateway.admin.actions.management_tokens import ManagementTokens
from gateway.admin.actions.money import NewCredit
from gateway.admin.actions.tokens import NewToken, TokenList
from gateway.admin.http import app
from gateway.admin.pages.pages import Pages
from gateway.base.errors import Refused
from tests.admin.http.conftest import TOKEN
from tests.admin.pages.conftest import House, PlainBrowser

SSO = 'admin_sso: {header: X-Forwarded-User, from: [%s], scopes: {boss: [read, accounts], "*": [read], nobody: []}}'


async def test_a_link_lets_one_person_in_once(house: House) -> None:
    ticket = await house.link()
    first, second = PlainBrowser(await house.client_of()), PlainBrowser(await house.client_of())
    assert (await first.get("/accounts"))[0] == 401
    assert (await first.get(f"/enter?ticket={ticket}"))[0] == 200  # looking at the link uses nothing up
    assert (await first.get(f"/enter?ticket={ticket}"))[0] == 200
    assert await first.enter(ticket) == 303
    assert (await first.get("/accounts"))[0] == 200
    assert await second.enter(ticket) == 403
    assert (await second.get("/accounts"))[0] == 401


async def test_a_port_for_callers_lets_no_operator_in_and_leaves_the_link_good(
    house: House, aiohttp_client: AiohttpClient
) -> None:
    pages = Pages(house.local_client, AdminToken(house.loaded.config), {}, operators=False)
    jar = CookieJar(unsafe=True)
    browser, ticket = (
        PlainBrowser(await aiohttp_client(app.portal(pages), cookie_jar=jar)),
        await house.link(),
    )
    status, text = await browser.post("/enter", ticket=ticket)
    assert (status, "link is for operators" in text, "Set-Cookie" in browser.headers) == (403, True, False)
    assert await PlainBrowser(await house.client_of()).enter(ticket) == 303
    await accounts.create(house.local_client(), body=NewAccount("alice"))
    link = await links.own(house.local_client(), "alice")
    assert (await browser.post("/enter", ticket=str(link.url).partition("ticket=")[2]))[0] == 303
    assert (await browser.get("/my"))[0] == 200


async def test_fifty_who_use_a_ticket_at_once_get_one_session(house: House) -> None:
    browser, ticket = PlainBrowser(await house.client_of()), await house.link()
    answers = await asyncio.gather(*(browser.post("/enter", ticket=ticket) for _ in range(50)))
    assert sorted(status for status, _ in answers) == [303] + [403] * 49
    sessions = [key async for key in house.store.client.keys("gw:{pages}:session:*")]
    assert len(sessions) == 1


async def test_the_cookie_cannot_be_guessed_read_by_scripts_or_sent_by_other_sites(house: House) -> None:
    browser = await house.browser()
    ticket = await house.link()
    await browser.post("/enter", ticket=ticket)
    cookie = browser.headers["Set-Cookie"]
    name, _, rest = cookie.partition("=")
    value = rest.partition(";")[0]
    assert name == "sluicegate"
    assert len(value) == 43
    assert {"HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"} <= {part.strip() for part in cookie.split(";")}
    assert "Secure" not in cookie  # it came without TLS
    stored = [key async for key in house.store.client.keys("gw:{pages}:*")]
    texts = [bytes(await house.store.client.call("GET", key)) for key in stored]
    for secret in (value, ticket, TOKEN):
        assert not any(secret in key for key in stored)
        assert not any(secret.encode() in text for text in texts)


async def test_a_ticket_is_good_for_ten_minutes(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    ticket = await house.link()
    (key,) = [key async for key in house.store.client.keys("gw:{pages}:link:*")]
    assert 590_000 < await house.store.client.call("PTTL", key) <= 600_000
    await house.store.client.call("PEXPIRE", key, 0)
    assert await PlainBrowser(await house.client_of()).enter(ticket) == 403


async def test_what_is_no_ticket_lets_nobody_in(house: House) -> None:
    browser = PlainBrowser(await house.client_of())
    for ticket in ("", "x", "../../etc", "\u2028", "a" * 20_000):
        assert await browser.enter(ticket) == 403, ticket[:20]
        assert (await browser.get("/accounts"))[0] == 401, ticket[:20]


async def test_a_session_lasts_twelve_hours(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = await house.browser()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 12 * 3600 - 60)
    assert (await browser.get("/accounts"))[0] == 200
    monkeypatch.setattr(time, "time", lambda: now + 12 * 3600 + 1)
    assert (await browser.get("/accounts"))[0] == 401


async def test_leaving_ends_the_session_also_for_who_has_copied_its_cookie(house: House) -> None:
    browser, thief = await house.browser(), PlainBrowser(await house.client_of())
    (kept,) = browser.client.session.cookie_jar
    cookie = {"Cookie": f"sluicegate={kept.value}"}
    assert (await thief.get("/accounts", **cookie))[0] == 200
    status, text = await browser.post("/leave")
    assert (status, "You have left" in text) == (200, True)
    assert (await thief.get("/accounts", **cookie))[0] == 401
    assert (await browser.get("/accounts"))[0] == 401


async def test_links_and_sessions_end_with_the_management_token_that_made_them(house: House) -> None:
    tokens = ManagementTokens(house.store.client)
    made, _ = await tokens.create("shop", ["read"], None, "test")
    actor = Actor("shop", frozenset({Scope.READ}), made.id)
    browser, ticket = await house.browser(actor=actor), await house.link(actor=actor)
    assert (await browser.get("/accounts"))[0] == 200
    await management_tokens.revoke(house.local_client(), made.id)
    assert (await browser.get("/accounts"))[0] == 401
    assert await PlainBrowser(await house.client_of()).enter(ticket) == 403


async def test_a_session_ends_when_the_management_token_that_made_it_expires(house: House) -> None:
    tokens = ManagementTokens(house.store.client)
    made, _ = await tokens.create("shop", ["read"], datetime.now(UTC) + timedelta(seconds=2), "test")
    browser = await house.browser(actor=Actor("shop", frozenset({Scope.READ}), made.id))
    while made.expires_at and datetime.now(UTC) < made.expires_at:
        await asyncio.sleep(0.05)
    assert (await browser.get("/accounts"))[0] == 401


async def test_links_and_sessions_end_when_the_admin_token_is_changed(house: House) -> None:
    browser, ticket = await house.browser(), await house.link()
    (house.folder / "next").write_text("another-admin-token-of-37-characters")
    (house.folder / "next").replace(house.folder / "admin.token")
    assert (await browser.get("/accounts"))[0] == 401
    assert await PlainBrowser(await house.client_of()).enter(ticket) == 403
    assert await PlainBrowser(await house.client_of()).enter(await house.link()) == 303


async def test_a_link_gives_no_scope_that_its_maker_does_not_have(house: House) -> None:
    reader = Actor("reader", frozenset({Scope.READ}), "")
    with pytest.raises(Exception, match="You do not have money yourself"):
        await house.link(Scope.READ, Scope.MONEY, actor=reader)
    browser = await house.browser(actor=reader)
    assert "New account" not in (await browser.get("/accounts"))[1]
    assert (await browser.post("/accounts", id="bob", group="default"))[0] == 403


async def test_the_audit_log_has_no_ticket(house: House) -> None:
    ticket = await house.link()
    lines = str(await house.store.client.call("XRANGE", "gw:{audit}:lines", "-", "+"))
    assert "links.create" in lines
    assert ticket not in lines


async def test_a_trusted_proxy_signs_people_on_with_the_scopes_of_their_names(house: House) -> None:
    house.loaded = house.configured(SSO % "127.0.0.1")
    boss, guest = PlainBrowser(await house.client_of()), PlainBrowser(await house.client_of())
    assert (await boss.get("/accounts"))[0] == 401
    status, text = await boss.get("/accounts", **{"X-Forwarded-User": "boss"})
    assert (status, "New account" in text) == (200, True)
    status, text = await guest.get("/accounts", **{"X-Forwarded-User": "<b>guest</b>"})
    assert (status, "New account" in text, "<b>guest" in text) == (200, False, False)
    for wrong in ("nobody", "*", "", "x" * 129):  # who is called "*" has not the scopes of all others
        status, _ = await PlainBrowser(await house.client_of()).get("/accounts", **{"X-Forwarded-User": wrong})
        assert status == 403, wrong
    assert (await boss.get("/accounts"))[0] == 401  # its cookie is nothing without the header


async def test_a_proxy_that_is_not_trusted_signs_nobody_on(house: House) -> None:
    house.loaded = house.configured(SSO % "10.0.0.0/8")
    status, text = await PlainBrowser(await house.client_of()).get("/accounts", **{"X-Forwarded-User": "boss"})
    assert (status, "is not believed from your address" in text) == (403, True)


async def test_a_reload_changes_who_signs_on(house: House) -> None:
    browser, header = PlainBrowser(await house.client_of()), {"X-Forwarded-User": "boss"}
    assert (await browser.get("/accounts", **header))[0] == 401
    house.loaded = house.configured(SSO % "127.0.0.1")
    assert (await browser.get("/accounts", **header))[0] == 200
    house.loaded = house.configured("")
    assert (await browser.get("/accounts", **header))[0] == 401


async def test_the_cookie_is_secure_where_a_trusted_proxy_has_tls(house: House) -> None:
    house.loaded = house.configured(SSO % "127.0.0.1")
    browser = PlainBrowser(await house.client_of())
    for proto, secure in (("https", True), ("http", False)):
        form = {"ticket": await house.link()}
        headers = {"Origin": browser.origin, "X-Forwarded-Proto": proto}
        async with browser.client.post("/enter", data=form, headers=headers, allow_redirects=False) as response:
            assert (response.status, "Secure" in response.headers["Set-Cookie"]) == (303, secure)
    house.loaded = house.configured(SSO % "10.0.0.0/8")  # from elsewhere nobody says so
    form, headers = {"ticket": await house.link()}, {"Origin": browser.origin, "X-Forwarded-Proto": "https"}
    async with browser.client.post("/enter", data=form, headers=headers, allow_redirects=False) as response:
        assert "Secure" not in response.headers["Set-Cookie"]


async def test_who_is_signed_on_by_a_proxy_sends_forms_of_its_own_and_leaves_no_session(house: House) -> None:
    house.loaded = house.configured(SSO % "127.0.0.1")
    browser = PlainBrowser(await house.client_of())
    headers = {"X-Forwarded-User": "boss"}
    await browser.get("/accounts", **headers)
    assert "Set-Cookie" not in browser.headers
    boss = browser.proof
    await browser.get("/accounts", **{"X-Forwarded-User": "guest"})
    headers["Origin"] = browser.origin
    for proof, status in ((browser.proof, 403), ("", 403), (boss, 303)):
        fields = {"form": proof, "id": "alice", "group": "default"}
        async with browser.client.post("/accounts", data=fields, headers=headers, allow_redirects=False) as response:
            assert response.status == status
    assert [key async for key in house.store.client.keys("gw:{pages}:*")] == []


async def test_the_time_of_a_link_is_that_of_its_ticket(house: House) -> None:
    made = await links.create(house.local_client(), body=links.NewLink())
    assert made.name == ""
    assert set(made.scopes) == set(Scope)
    assert "ticket" not in repr(made)


async def test_a_token_makes_only_so_many_links_and_those_refused_leave_no_lines(house: House) -> None:
    reader = Actor("token 1a2b3c dashboard", frozenset({Scope.READ}), "1a2b3c")
    made = 0
    with pytest.raises(Refused, match="At most 30 of these a minute"):
        while made < 90:  # there is room for another one each two seconds
            await links.create(house.local_client(reader), body=links.NewLink())
            made += 1
    assert made in range(30, 61)
    lines = await house.store.client.call("XLEN", "gw:{audit}:lines")
    with pytest.raises(Refused, match="At most 30"):
        for _ in range(31):
            await links.create(house.local_client(reader), body=links.NewLink())
            lines += 1
    assert await house.store.client.call("XLEN", "gw:{audit}:lines") == lines
    await links.create(house.local_client(), body=links.NewLink())


PORTAL = "portal: {listen: '127.0.0.1:0', url: %s, base_url: 'https://api.example.com/v1', help: 'Ask support@example.com.'}\n"
PROXY = "port: {trusted_proxies: [127.0.0.1]}\n"


@pytest.fixture
async def portal(house: House, aiohttp_client: AiohttpClient) -> PlainBrowser:
    """Somebody at the portal who has not entered, and an account with a token."""
    house.loaded = house.configured(PORTAL % "'http://127.0.0.1:9091'" + PROXY)
    await accounts.create(house.local_client(), body=NewAccount("alice"))
    pages = Pages(house.local_client, AdminToken(house.loaded.config), {}, operators=False)
    return PlainBrowser(await aiohttp_client(app.portal(pages), cookie_jar=CookieJar(unsafe=True)))


async def token_of(house: House, **given: object) -> tokens.MadeToken:
    return await tokens.create(house.local_client(), "alice", body=msgspec.convert(given, NewToken))


async def test_a_caller_signs_in_with_its_own_token_to_look_and_to_disable_it(
    house: House, portal: PlainBrowser
) -> None:
    made, other = await token_of(house), await token_of(house)
    status, text = await portal.get("/my")
    assert (status, "Ask support@example.com." in text, "gateway admin link" in text) == (401, True, False)
    assert (await portal.post("/enter", token=str(made.token)))[0] == 303
    assert "https://api.example.com/v1" in (await portal.get("/my/models"))[1]
    status, text = await portal.get("/my")
    assert (status, "New token" in text) == (200, False)
    assert "To make tokens, enter by a link. Ask support@example.com." in text
    for path in ("/my/tokens", f"/my/tokens/{other.id[-8:]}/delete", f"/my/tokens/{made.id[-8:]}/rotate"):
        assert (await portal.post(path, sure="yes", hours="1"))[0] == 403, path
    status, text = await portal.post("/my/disable")
    assert (status, "tick the box" in text) == (400, True)
    assert (await portal.post("/my/disable", sure="yes"))[0] == 303
    assert "The token is refused from now on." in (await portal.get(portal.headers["Location"]))[1]
    held = (await tokens.list_(house.local_client(), "alice", query=TokenList())).data
    assert {each.id: str(each.status) for each in held} == {made.id: "disabled", other.id: "active"}
    assert (await portal.get("/my"))[0] == 401


async def test_what_a_token_may_spend_is_that_of_its_own_budgets(house: House, portal: PlainBrowser) -> None:
    made = await token_of(house, budgets={"day_micros": 500})
    await money.credit(house.local_client(), "alice", body=NewCredit("paid", 5_000_000))
    await portal.post("/enter", token=str(made.token))
    _, text = await portal.get("/my")
    now = text.partition("May spend now")[2].partition("Charged")[0]
    assert "0.0005" in now
    assert "4.9" not in now
    assert "Day of your token" in text


async def test_the_portal_has_the_document_for_callers_and_no_other(portal: PlainBrowser) -> None:
    status, text = await portal.get("/docs/gateway/docs/callers.md")
    assert (status, "X-Client-Request-Id" in text, 'href="/docs/gateway/docs/money' in text) == (200, True, False)
    assert (
        re.findall(r'<a href="(?!#|/my|http)([^"]+)"', text.partition("<article")[2].partition("</article>")[0]) == []
    )
    for path in ("/docs", "/docs/README.md", "/docs/deploy/store.md"):
        assert (await portal.get(path, Accept="text/html"))[0] == 401


async def test_a_session_by_token_ends_with_the_token(house: House, portal: PlainBrowser) -> None:
    made = await token_of(house)
    assert (await portal.post("/enter", token=str(made.token)))[0] == 303
    await tokens.delete(house.local_client(), made.id)
    assert (await portal.get("/my"))[0] == 401


async def test_tokens_that_may_not_call_from_here_let_nobody_in_and_guesses_are_slowed(
    house: House, portal: PlainBrowser
) -> None:
    elsewhere, expired = (
        await token_of(house, addresses=["192.0.2.0/24"]),
        await token_of(house, expires_at="1970-01-01T00:00:01Z"),
    )
    for text in (str(elsewhere.token), str(expired.token), "sk-alice-1a2b3c4d-guess"):
        status, page = await portal.post("/enter", token=text)
        assert (status, "is not accepted here" in page, text in page) == (401, True, False)
    statuses = [(await portal.post("/enter", token=f"guess {number}"))[0] for number in range(10)]
    assert (statuses[:7], statuses[-1]) == ([401] * 7, 429)
    portal.sends = {"X-Forwarded-For": "192.0.2.7", "X-Forwarded-Proto": "https"}
    assert (await portal.post("/enter", token=str(elsewhere.token)))[0] == 303


async def test_no_token_is_taken_over_plain_http_from_elsewhere(house: House, portal: PlainBrowser) -> None:
    made = await token_of(house)
    portal.sends = {"X-Forwarded-For": "192.0.2.7", "X-Forwarded-Proto": "http"}
    status, page = await portal.post("/enter", token=str(made.token))
    assert (status, "over TLS alone" in page) == (403, True)
    assert 'name="token"' not in (await portal.get("/my", **portal.sends))[1]


async def test_the_portals_cookie_is_secure_where_its_address_is(house: House, portal: PlainBrowser) -> None:
    made = await token_of(house)
    await portal.post("/enter", token=str(made.token))
    assert "Secure" not in portal.headers["Set-Cookie"]
    house.loaded = house.configured(PORTAL % "'https://my.example.com'")
    await portal.post("/enter", token=str(made.token))
    assert "Secure" in portal.headers["Set-Cookie"]
    link = await links.own(house.local_client(), "alice")
    assert str(link.url).startswith("https://my.example.com/enter?ticket=")


async def test_a_wrong_address_is_a_page_for_a_browser(house: House, portal: PlainBrowser) -> None:
    made, browser = await token_of(house), await house.browser()
    for each in (browser, portal):
        if each is portal:
            assert (await portal.get("/nowhere", Accept="text/html"))[0] == 401
            await portal.post("/enter", token=str(made.token))
        status, text = await each.get("/nowhere", Accept="text/html,*/*")
        assert (status, "There is no page at this address." in text) == (404, True)
        status, text = await each.get("/nowhere", Accept="application/json")
        assert text.startswith('{"error":')

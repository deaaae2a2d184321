"""The audit log is read on a page by who may, with what was before and after."""

from __future__ import annotations

import pytest

from gateway.admin.actions import audit, links
from gateway.admin.actions.action import Actor, Scope
from gateway.admin.actions.audit import AuditLines
from gateway.admin.actions.links import NewLink
from gateway.base.errors import Refused
from tests.admin.pages.conftest import House, PlainBrowser


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

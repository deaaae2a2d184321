"""Every page and every action of the operator's and the callers' port, by somebody who has only a keyboard."""

from __future__ import annotations

import asyncio
import csv
import io
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.async_api import Browser, Locator, Page, Request, ViewportSize

from gateway.admin.pages.pages import OWN_PAGES, PAGES
from tests.whole.browser import Window, needs_browser, window
from tests.whole.operated import Operated

pytestmark = [needs_browser, pytest.mark.asyncio(loop_scope="module")]

WIDE: Final[ViewportSize] = {"width": 1440, "height": 900}
NARROW: Final[ViewportSize] = {"width": 375, "height": 740}


def actions_of(pages: Iterable[tuple[str, str, Any]]) -> set[str]:
    return {path for method, path, _ in pages if method == "POST"} | {"/enter", "/leave"}


class Walk:
    """A person with a keyboard. `done`: the paths of the actions that were sent, as their routes are written."""

    def __init__(self, window: Window, actions: set[str]) -> None:
        self.window = window
        self.page: Page = window.page
        self.done: set[str] = set()
        self._actions = {re.compile(re.sub(r"\{\w+\}", "[^/]+", path)): path for path in actions}
        self.page.on("request", self._note)

    async def goto(self, url: str) -> None:
        """Open a page, and see that all that can be done there is reached, in a wide window and in a narrow one."""
        for size in (WIDE, NARROW):
            await self.page.set_viewport_size(size)
            await self.window.goto(url)
            assert await self.window.check_reach() > 3
        await self.page.reload()

    async def follow(self, target: Locator, key: str = "Enter") -> None:
        """Press a button or a link, and wait for the page that it leads to."""
        async with self.page.expect_navigation():
            await self.window.press(target, key)

    async def open(self, title: str) -> Locator:
        """Open an action, and return its form."""
        details = self.page.locator("details", has=self.page.locator("summary", has_text=title)).first
        await self.window.press(details.locator("summary").first)
        return details

    async def act(self, title: str, button: str, **fields: str) -> None:
        """Open an action, fill in its form, and send it."""
        form = await self.open(title)
        for name, value in fields.items():
            await self.fill(form.locator(f"[name={name}]"), value)
        await self.follow(form.get_by_role("button", name=button, exact=True))

    async def fill(self, field: Locator, value: str) -> None:
        """Write into a field, choose from a list, or tick a box."""
        kind = await field.evaluate("node => node.type")
        if kind == "checkbox":
            await self.window.press(field, "Space")
        elif kind == "select-one":
            await self.window.tab_to(field)
            await self.page.keyboard.type(value)
        else:
            await self.window.type(field, value)

    async def change(self, token: str, button: str, **fields: str) -> None:
        """Open what can be done with a token, and do it."""
        await self.choose(f"What can be done with {token}", button, **fields)

    async def choose(self, label: str, button: str, **fields: str) -> None:
        """Open the menu of this label, fill in its form, and send it."""
        panel = self.page.locator("details.menu", has=self.page.get_by_label(label))
        await self.window.press(panel.locator("summary"))
        for name, value in fields.items():
            await self.fill(panel.locator(f"[name={name}]"), value)
        await self.follow(panel.get_by_role("button", name=button, exact=True))

    async def button(self, name: str) -> None:
        """Press the button of this name."""
        await self.follow(self.page.get_by_role("button", name=name, exact=True))

    async def secret(self) -> str:
        """Return the token that is shown, and go back; it is not shown again."""
        token = await self.page.locator("#secret").inner_text()
        assert token.startswith("sk-")
        await self.follow(self.page.get_by_role("link", name=re.compile("^Back to")))
        assert token not in await self.page.content()
        return token

    async def export(self) -> list[dict[str, str]]:
        """Download the page's CSV, and return its rows."""
        async with self.page.expect_download() as waiting:
            await self.window.press(self.page.get_by_role("link", name="Export CSV"))
        path = await (await waiting.value).path()
        return list(csv.DictReader(io.StringIO(await asyncio.to_thread(Path(path).read_text))))

    def _note(self, request: Request) -> None:
        path = re.sub(r"^\w+://[^/]+|\?.*", "", request.url)
        if request.method == "POST":
            self.done |= {name for pattern, name in self._actions.items() if pattern.fullmatch(path)}


async def test_an_operator_with_a_keyboard(house: Operated, browser: Browser) -> None:
    account = "walked"
    async with window(browser, house.hosts) as opened:
        walk = Walk(opened, actions_of(PAGES))
        await opened.page.goto(await house.link())
        await opened.page.wait_for_url(f"{house.admin}/")
        await accounts(walk, house, account)
        await now(walk, house)
        await requests(walk, house, account)
        await channels(walk, house)
        await readings(walk, house, account)
        await walk.button("Leave")
        opened.refusals = {401, 403}
        await opened.page.goto(f"{house.admin}/accounts")
        assert account not in await opened.page.content()
        assert walk.done == actions_of(PAGES)


async def accounts(walk: Walk, house: Operated, account: str) -> None:
    """Make an account, do all that can be done with it and its tokens, let it ask, and close another."""
    here = f"{house.admin}/accounts/{account}"
    await walk.goto(f"{house.admin}/accounts")
    await walk.act("New account", "Create the account", id=account, group="default", external_id=f"shop {account}")
    assert walk.page.url.startswith(here)
    await walk.act("Credit", "Credit", amount="5.00", transaction=f"paid-{account}")
    await walk.act("Adjust", "Adjust the balance", amount="-0.50", reason="a discount", transaction=f"less-{account}")
    await walk.act("Settings", "Save the settings", group="trial", credit_line="1.00", day="3.5", concurrent="4")
    await walk.button("Suspend")
    assert (await house.call("GET", f"/accounts/{account}"))["status"] == "suspended"
    await walk.button("Resume")
    kept = await house.call("GET", f"/accounts/{account}")
    assert (kept["status"], kept["group"], kept["external_id"]) == ("active", "trial", f"shop {account}")
    assert (kept["balance_micros"], kept["credit_line_micros"]) == (4_500_000, 1_000_000)
    assert (kept["budgets"]["day_micros"], kept["limits"]["concurrent"]) == (3_500_000, 4)
    await walk.choose(f"Refund paid-{account}", "Refund", amount="1.00")
    assert (await house.call("GET", f"/accounts/{account}"))["balance_micros"] == 3_500_000
    await walk.act("New token", "Make the token", name="laptop", days="30", models="other")
    await house.ask(await walk.secret(), "other")
    (token,) = (await house.call("GET", f"/accounts/{account}/tokens"))["data"]
    assert (token["name"], token["models"]) == ("laptop", ["other"])
    await walk.change(token["id"], "Disable")
    assert (await house.call("GET", f"/tokens/{token['id']}"))["status"] == "disabled"
    await walk.change(token["id"], "Enable")
    await walk.change(token["id"], "Rotate", hours="2")
    await walk.secret()
    assert len((await house.call("GET", f"/accounts/{account}/tokens"))["data"]) == 2
    await walk.change(token["id"], "Delete", sure="yes")
    (left,) = (await house.call("GET", f"/accounts/{account}/tokens"))["data"]
    assert left["id"] != token["id"]
    await walk.goto(here)
    await walk.goto(f"{house.admin}/accounts")
    await walk.act("New account", "Create the account", id=f"{account}b")
    await walk.act("Close the account", "Close it for good", sure="yes")
    assert (await house.call("GET", f"/accounts/{account}b"))["status"] == "closed"
    await walk.window.goto(f"{house.admin}/accounts")
    await walk.fill(walk.page.locator("main [name=q]"), f"{account}b")
    await walk.button("Search")
    assert await walk.page.locator("tbody tr").count() == 1


async def now(walk: Walk, house: Operated) -> None:
    """Stop and continue what moves, choose what is shown, and choose the colours."""
    await walk.goto(house.admin)
    await walk.page.locator("#live tbody tr").first.wait_for()
    await walk.window.press(walk.page.locator("#pause"))
    await walk.page.get_by_text("paused", exact=True).wait_for()
    await walk.window.press(walk.page.locator("#pause"))
    await walk.page.get_by_text("live", exact=True).wait_for()
    await walk.window.press(walk.page.locator("#theme"))
    assert await walk.page.evaluate("document.documentElement.dataset.theme") == "light"
    await walk.fill(walk.page.locator("[name=trouble]"), "true")
    await walk.button("Filter")
    await walk.page.locator("#live tbody tr").first.wait_for()
    assert await walk.page.locator("#live .badge.ok").count() == 0


async def requests(walk: Walk, house: Operated, account: str) -> None:
    """Search for the account's request, read its story, and take the list away as a file."""
    await walk.goto(f"{house.admin}/requests")
    await walk.fill(walk.page.locator("[name=account]"), account)
    await walk.button("Search")
    (row,) = await walk.export()
    assert (row["account"], row["model"], row["outcome"]) == (account, "other", "completed")
    await walk.follow(walk.page.locator("tbody a").first)
    await walk.page.get_by_role("heading", name="What happened").wait_for()
    assert row["id"] in walk.page.url
    await walk.goto(walk.page.url)


async def channels(walk: Walk, house: Operated) -> None:
    """Switch a credential off and on, disable and enable a channel, and send a request to it."""
    await walk.goto(f"{house.admin}/channels")
    spare = walk.page.locator("article", has=walk.page.get_by_role("heading", name="spare", exact=True))
    await walk.follow(walk.page.get_by_role("button", name="Switch off").first)
    assert (await house.call("GET", "/channels/main"))["credentials"][0]["state"] == "off"
    await walk.follow(walk.page.get_by_role("button", name="Switch on").first)
    assert (await house.call("GET", "/channels/main"))["credentials"][0]["state"] == "in use"
    await walk.window.press(spare.locator("summary", has_text="Disable"))
    await walk.window.type(spare.locator("[name=reason]"), "It is moved.")
    await walk.follow(spare.get_by_role("button", name="Disable the channel"))
    await spare.get_by_text("It is moved.").wait_for()
    assert (await house.call("GET", "/channels/spare"))["disabling"]["reason"] == "It is moved."
    await walk.follow(spare.get_by_role("button", name="Enable", exact=True))
    assert (await house.call("GET", "/channels/spare"))["disabling"] is None
    before = len(house.upstream.requests)
    await walk.window.press(spare.locator("summary", has_text="Test"))
    await walk.follow(spare.get_by_role("button", name="Send one small request"))
    assert len(house.upstream.requests) == before + 1
    await walk.page.get_by_role("heading", name="spare answered").wait_for()


async def readings(walk: Walk, house: Operated, account: str) -> None:
    """Read money, the configuration and the audit log, which has what was done here."""
    await walk.goto(f"{house.admin}/money")
    await walk.fill(walk.page.locator("[name=account]"), account)
    await walk.button("Show")
    assert sum(int(row["requests"]) for row in await walk.export()) == 1
    await walk.goto(f"{house.admin}/configuration")
    await walk.page.get_by_text("usage-logger").first.wait_for()
    await walk.goto(f"{house.admin}/audit")
    await walk.fill(walk.page.locator("[name=target]"), account)
    await walk.button("Search")
    assert await walk.page.locator("tbody tr").count() > 8


async def test_a_caller_with_a_keyboard(house: Operated, browser: Browser) -> None:
    account = "caller"
    token = await house.account(account)
    await house.ask(token)
    async with window(browser, house.hosts) as opened:
        walk = Walk(opened, actions_of(OWN_PAGES))
        await opened.page.goto(await house.own_link(account))
        await opened.page.wait_for_url(f"{house.portal}/my")
        await walk.act("New token", "Make the token", name="phone", days="7", day="1.00")
        await house.ask(await walk.secret())
        known = {each["name"]: each["id"] for each in (await house.call("GET", f"/accounts/{account}/tokens"))["data"]}
        assert set(known) == {"laptop", "phone"}
        await walk.change(known["phone"], "Rotate", hours="0")
        phone = await walk.secret()
        await walk.change(known["laptop"], "Delete", sure="yes")
        left = (await house.call("GET", f"/accounts/{account}/tokens"))["data"]
        assert {each["name"] for each in left} == {"phone"}
        assert len(left) == 2
        await walk.goto(f"{house.portal}/my")
        await walk.goto(f"{house.portal}/my/requests")
        assert await walk.page.locator("tbody tr").count() == 2
        await walk.follow(walk.page.locator("tbody a").first)
        await walk.goto(walk.page.url)
        await walk.button("Leave")
        await walk.fill(walk.page.locator("[name=token]"), phone)
        await walk.button("Enter")
        opened.refusals = {401}
        await walk.act("Disable this token", "Disable", sure="yes")
        await walk.page.get_by_role("heading", name="You have not entered").wait_for()
        assert walk.done == actions_of(OWN_PAGES)

"""How every page looks in a real browser: narrow and wide, light and dark, and for people who do not see it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib.resources import files
from typing import Any, Final

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from tests.whole.browser import Window, needs_browser, window
from tests.whole.operated import Operated

pytestmark = [needs_browser, pytest.mark.asyncio(loop_scope="module")]

LOOKS: Final[Any] = (((1280, 900), "light", ""), ((1280, 900), "dark", "color-contrast"), ((375, 740), "dark", ""))
"""Sizes and themes, and the only rule of axe that the theme can break where the size was looked at, empty for all.

The style sheet has no rule for both, so a theme that is right in one size is right in the other.
"""
AXE: Final = files("axe_playwright_python").joinpath("axe.min.js").read_text()
FINDINGS: Final = """async (rule) =>
  (await axe.run({exclude: ['tbody tr:nth-child(n+9)']}, {resultTypes: ['violations'], ...(rule && {runOnly: [rule]})})).violations
  .filter((each) => ['serious', 'critical'].includes(each.impact))
  .map((each) => `${each.id}: ${each.nodes.map((node) => node.failureSummary + ' ' + node.html.slice(0, 200)).join('; ')}`)"""
"""What axe finds. Rows of a table behind the eighth are made as those before."""

OPENED: Final = "() => document.querySelectorAll('details').forEach((each) => { each.open = true; })"
"""Shows all that can be done on a page."""

OPERATORS: Final = {
    "requests": "/requests",
    "errors": "/errors?since=24h",
    "charts": "/charts?since=24h",
    "search": "/search?q=acme-",
    "documents": "/docs/deploy/operators.md",
    "documents-found": "/docs?q=token",
    "requests-none": "/requests?account=fresh",
    "accounts": "/accounts",
    "accounts-none": "/accounts?q=nobody",
    "account": "/accounts/acme",
    "account-statement": "/accounts/acme/statement",
    "account-new": "/accounts/fresh",
    "account-closed": "/accounts/gone",
    "channels": "/channels",
    "money": "/money",
    "money-by": "/money?by=account&by=model&by=channel",
    "money-none": "/money?account=fresh",
    "configuration": "/configuration",
    "audit": "/audit",
    "audit-none": "/audit?target=nobody",
}
"""Pages that need nothing but to be opened, and what their pictures are called."""
CALLERS: Final = {"my": "/my", "my-models": "/my/models", "my-requests": "/my/requests"}
"""Those of callers, which are looked at for one who has called and for one who has not."""


async def check(window: Window, name: str) -> None:
    """Look at the page that is open in both widths and both themes: how wide it is, what axe finds, and keep a picture."""
    await window.check_size()
    await window.page.evaluate(AXE)
    for (width, height), theme, rule in LOOKS:
        await window.page.set_viewport_size({"width": width, "height": height})
        await window.page.emulate_media(color_scheme=theme)
        await window.shoot(f"{name}-{width}-{theme}")
        findings = await window.page.evaluate(FINDINGS, rule)
        assert findings == [], f"{name}, {width} pixels, {theme}"
        await window.check_width()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lived_in(house: Operated) -> Operated:
    """Let the gateway have accounts in all conditions, and one with requests of today."""
    token = await house.account("acme", external_id="shop-4711@example.com", credit_line_micros=1_000_000)
    await house.account("bolt", credit=120_000, budgets={"day_micros": 100_000})
    await house.account("fresh", credit=0)
    await house.account("paused", group="trial")
    await house.account("gone")
    await house.call("PATCH", "/accounts/paused", status="suspended")
    await house.call("POST", "/accounts/gone/close")
    await house.call("POST", "/channels/spare/disable", reason="The upstream is being moved to another region.")
    await house.call(
        "POST", "/accounts/acme/adjustments", transaction="a-1", amount_micros=-250_000, reason="A refund."
    )
    house.upstream.refused.add("sk-number-two-4711")
    for model in ("words", "other", "words", "other", "missing"):
        await house.ask(token, model)
    return house


@pytest_asyncio.fixture(loop_scope="module")
async def operator(lived_in: Operated, browser: Browser) -> AsyncIterator[Window]:
    """Yield the window of an operator who has entered."""
    async with window(browser, lived_in.hosts) as opened:
        await opened.page.goto(await lived_in.link())
        await opened.page.wait_for_url(f"{lived_in.admin}/")
        yield opened


@pytest.mark.parametrize("name", OPERATORS)
async def test_a_page_of_operators(name: str, lived_in: Operated, operator: Window) -> None:
    await operator.goto(lived_in.admin + OPERATORS[name])
    await operator.page.evaluate(OPENED)
    await check(operator, name)


async def test_now_while_requests_end(lived_in: Operated, operator: Window) -> None:
    await operator.page.locator("#live tbody tr").nth(3).wait_for()
    await check(operator, "now")


async def test_now_where_nothing_fits(lived_in: Operated, operator: Window) -> None:
    await operator.goto(f"{lived_in.admin}/?account=nobody")
    await operator.page.get_by_text("live", exact=True).wait_for()
    await check(operator, "now-none")


async def test_a_request(lived_in: Operated, operator: Window) -> None:
    await operator.goto(f"{lived_in.admin}/requests?outcome=completed")
    await operator.page.locator("tbody a").first.click()
    await operator.page.get_by_role("heading", name="What happened").wait_for()
    await check(operator, "request")


@pytest.mark.parametrize("account", ["acme", "fresh"])
async def test_the_pages_of_a_caller(account: str, lived_in: Operated, browser: Browser) -> None:
    async with window(browser, lived_in.hosts) as caller:
        await caller.page.goto(await lived_in.own_link(account))
        await caller.page.wait_for_url(f"{lived_in.portal}/my")
        for name, path in CALLERS.items():
            await caller.goto(lived_in.portal + path)
            await caller.page.evaluate(OPENED)
            await check(caller, f"{name}-{account}")
        if account == "acme":
            await caller.page.locator("tbody a").first.click()
            await caller.page.get_by_role("heading", name="Request", exact=True).wait_for()
            await check(caller, "my-request")


async def test_a_token_that_is_shown_once(lived_in: Operated, operator: Window) -> None:
    await operator.goto(f"{lived_in.admin}/accounts/paused")
    await operator.page.evaluate(OPENED)
    await operator.page.get_by_role("button", name="Make the token").click()
    await operator.page.locator("#secret").wait_for()
    await operator.page.evaluate("document.getElementById('secret').textContent = 'sk-paused-' + 'x'.repeat(36)")
    await check(operator, "token-new")


async def test_an_action_that_is_refused(lived_in: Operated, operator: Window) -> None:
    operator.refusals = {400}
    await operator.goto(f"{lived_in.admin}/accounts/acme")
    await operator.page.evaluate(OPENED)
    form = operator.page.locator("form[action$='/credit']")
    await form.locator("[name=amount]").fill("much")
    await form.get_by_role("button", name="Credit").click()
    await operator.page.locator("p.notice.bad").first.wait_for()
    await check(operator, "account-refused")


async def test_pages_for_nobody_and_of_nothing(lived_in: Operated, operator: Window, browser: Browser) -> None:
    operator.refusals = {404}
    await operator.goto(f"{lived_in.admin}/accounts/nobody")
    await check(operator, "not-found")
    async with window(browser, lived_in.hosts) as stranger:
        stranger.refusals = {401, 403}
        await stranger.goto(f"{lived_in.admin}/accounts")
        await check(stranger, "stranger")

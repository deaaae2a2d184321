"""A real browser for tests: where it is, what it must not complain of, and a person who has only a keyboard."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, Request, async_playwright

from tests.patience import PATIENCE_S

INSISTS: Final = "GATEWAY_TEST_BROWSER"
"""An environment variable: where it is set, tests that need a browser fail without one, and are not skipped."""
CHROMIUM: Final = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")
needs_browser: Final = pytest.mark.skipif(
    not CHROMIUM and not os.environ.get(INSISTS), reason="needs a browser: on Debian, `apt install chromium`"
)
OPTIONS: Final = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
OUT: Final = Path(__file__).parent.parent.parent / ".ci" / "out"
"""The folder of the screenshots, which git ignores. They are for people, and taken where `INSISTS` is set."""
MOST_TABS: Final = 400
MOST_PASSES: Final = 5
LARGEST_VIEW: Final = 100_000
"""Bytes of a page with its style sheet, scripts and icon."""

STOPS = """
globalThis.tabStops = () => [...document.querySelectorAll('a[href], button, input:not([type=hidden]), select, textarea, summary')]
  .filter((each) => each.checkVisibility({visibilityProperty: true}) && !each.disabled);
globalThis.tabbed = {reached: new Set(), unseen: [], over: false};
addEventListener('focusin', ({target}) => {
  tabbed.reached.add(target);
  const seen = target.tagName === 'MAIN' || getComputedStyle(target).outlineStyle !== 'none';
  if (!seen) tabbed.unseen.push(target.outerHTML.slice(0, 200));
});
addEventListener('focusout', ({relatedTarget}) => { tabbed.over ||= !relatedTarget; });
"""
"""What must be reached with Tab, and a note of what is. A page is told by this, since each look at it takes longer than a key."""
BEGIN = """() => {
  document.body.tabIndex = -1;
  document.body.focus();  // where Tab goes on from
  document.body.removeAttribute('tabindex');
  tabbed = {reached: new Set(), unseen: [], over: false};
  return tabStops().length;
}"""
END = """() => ({
  missed: tabStops().filter((each) => !tabbed.reached.has(each)).map((each) => each.outerHTML.slice(0, 200)),
  unseen: tabbed.unseen,
  stops: tabbed.reached.size,
})"""
CLOSED = """() => {
  const closed = tabStops().find((each) => each.matches('details:not([open]) > summary'));
  closed?.focus();
  return closed !== undefined;
}"""
BEFORE = """(node) => {
  const stops = tabStops();
  if (node === document.activeElement) return 0;
  return Math.max(1, stops.indexOf(node) - stops.indexOf(document.activeElement) - 1);
}"""
"""How often Tab may be pressed without a look at what has the focus: up to the stop before this one."""
SIZE = """() => [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]
  .reduce((sum, each) => sum + each.decodedBodySize, 0)"""
WIDER = """() => {
  const wide = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= wide) return [];
  return [...document.querySelectorAll('body *')].filter((each) => each.getBoundingClientRect().right > wide + 1)
    .map((each) => each.outerHTML.slice(0, 120));
}"""
CUT = """() => [...document.querySelectorAll('.card .scroll')].filter((each) => each.scrollWidth > each.clientWidth)
  .map((each) => each.ariaLabel)"""
VIOLATIONS = """addEventListener('securitypolicyviolation',
  (event) => console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`));"""


@asynccontextmanager
async def launched() -> AsyncIterator[Browser]:
    """Run a browser without a window."""
    assert CHROMIUM, f"{INSISTS} is set, and there is no browser"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS, timeout=PATIENCE_S * 1000)
        yield browser
        await browser.close()


class Window:
    """A window of somebody's own, with cookies of its own. What the browser complains of is in `complaints`."""

    def __init__(self, context: BrowserContext, page: Page, hosts: set[str]) -> None:
        self.context = context
        self.page = page
        self.complaints: list[str] = []
        self.refusals: set[int] = set()
        """Statuses of pages that a test expects, which the browser would complain of."""
        self._hosts = hosts
        context.on("console", self._said)
        context.on("weberror", lambda error: self.complaints.append(f"error: {error.error}"))
        context.on("request", self._asked)

    async def goto(self, url: str) -> None:
        """Open a page, which must be small enough."""
        await self.page.goto(url)
        await self.check_size()

    async def check_size(self) -> None:
        """Fail if the page with all that belongs to it is too large."""
        size = await self.page.evaluate(SIZE)
        assert 1_000 < size < LARGEST_VIEW, f"{self.page.url} has {size} bytes"

    async def check_width(self) -> None:
        """Fail if the page is wider than the window."""
        assert await self.page.evaluate(WIDER) == [], self.page.url
        assert await self.page.evaluate(CUT) == [], self.page.url

    async def shoot(self, name: str) -> None:
        """Keep a picture of the whole page, where somebody wants to look at them: it takes as long as all the rest."""
        if not os.environ.get(INSISTS):
            return
        OUT.mkdir(parents=True, exist_ok=True)
        # Without `caret`, Playwright adds a style of its own to the page, which the page's policy forbids.
        await self.page.screenshot(path=OUT / f"{name}.png", full_page=True, caret="initial")

    async def tab_to(self, target: Locator) -> None:
        """Press Tab until something has the focus. Fail if it never gets it."""
        await target.wait_for()
        for tabs in range(MOST_TABS):
            before = await target.evaluate(BEFORE)
            if before == 0:
                return
            await self._tab(before if tabs == 0 else 1)
        raise AssertionError(f"{target} is not reached by the Tab key")

    async def press(self, target: Locator, key: str = "Enter") -> None:
        """Do something by the keyboard alone."""
        await self.tab_to(target)
        await self.page.keyboard.press(key)

    async def type(self, target: Locator, text: str) -> None:
        """Write into a field by the keyboard alone."""
        await self.tab_to(target)
        await self.page.keyboard.press("Control+A")
        await self.page.keyboard.type(text)

    async def check_reach(self) -> int:
        """Go through the page with Tab, and open what is closed; return the number of stops.

        Fail if anything that can be done is not reached, or does not show that it has the focus. It is gone through again where
        something was opened, or came meanwhile.
        """
        found: dict[str, Any] = {}
        for _ in range(MOST_PASSES):
            found = await self._pass()
            opened = 0
            while await self.page.evaluate(CLOSED):
                await self.page.keyboard.press("Enter")
                opened += 1
            assert found["unseen"] == [], self.page.url
            if not opened and not found["missed"]:
                return int(found["stops"])
        raise AssertionError(f"{self.page.url}: Tab does not reach {found['missed']}")

    async def _pass(self) -> dict[str, Any]:
        """Press Tab from the beginning of the page to its end, and return what was reached."""
        stops = await self.page.evaluate(BEGIN)
        for _ in range(MOST_TABS // 10):
            await self._tab(stops)
            if await self.page.evaluate("tabbed.over"):
                return dict(await self.page.evaluate(END))
            stops = 10  # what scrolls is a stop, too
        raise AssertionError(f"{self.page.url}: the Tab key goes round and round")

    async def _tab(self, times: int) -> None:
        await asyncio.gather(*(self.page.keyboard.press("Tab") for _ in range(times)))

    def _said(self, message: ConsoleMessage) -> None:
        known = any(f"responded with a status of {status}" in message.text for status in self.refusals)
        if message.type in ("error", "warning") and not known:
            self.complaints.append(f"{message.type}: {message.text}")

    def _asked(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.netloc not in self._hosts and parts.scheme not in ("data", "blob"):
            self.complaints.append(f"another host: {request.url}")


@asynccontextmanager
async def window(
    browser: Browser, hosts: set[str], *, width: int = 1440, height: int = 900, **options: Any
) -> AsyncIterator[Window]:
    """Open a window. Fail at the end if the browser complained, or asked another host. `options`: of Playwright's context."""
    context = await browser.new_context(viewport={"width": width, "height": height}, **options)
    context.set_default_timeout(PATIENCE_S * 1000)
    await context.add_init_script(VIOLATIONS + STOPS)
    opened = Window(context, await context.new_page(), hosts)
    try:
        yield opened
        assert opened.complaints == []
    finally:
        await context.close()

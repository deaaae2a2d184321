"""A token's text is shown once, and making it twice by one form makes one token."""

from __future__ import annotations

import re

from gateway.admin.actions import accounts, tokens
from gateway.admin.actions.accounts import NewAccount
from gateway.admin.actions.tokens import TokenList
from gateway.base.errors import Refused
from gateway.store.client.steps import run_steps
from tests.admin.pages.conftest import House, PlainBrowser


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

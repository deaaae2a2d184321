"""Channels are shown with their credentials by number, switched, and tried."""

from __future__ import annotations

from gateway.admin.actions import channels
from gateway.store.channels import Condition
from tests.admin.pages.conftest import House


async def test_a_channel_is_disabled_with_a_reason_and_enabled(house: House) -> None:
    browser = await house.browser()
    _, text = await browser.get("/channels")
    assert ("healthy" in text, "sk-secret" in text) == (True, False)
    assert (await browser.post("/channels/up/disable", reason="too <b>slow</b>"))[0] == 303
    _, text = await browser.get("/channels")
    assert ("too &lt;b&gt;slow&lt;/b&gt;" in text, "page by link of test for alice" in text) == (True, True)
    assert (await channels.read(house.local_client(), "up")).condition is Condition.DISABLED
    assert (await browser.post("/channels/up/enable"))[0] == 303
    assert (await channels.read(house.local_client(), "up")).condition is Condition.HEALTHY
    assert (await browser.post("/channels/nothing/disable"))[0] == 404
    status, text = await browser.post("/channels/up/disable", reason="x" * 300)
    assert (status, 'role="alert"' in text) == (400, True)


async def test_a_channel_whose_name_needs_quoting_is_switched(house: House) -> None:
    browser = await house.browser()
    _, text = await browser.get("/channels")
    address = "/channels/%3Cb%20onclick%3Dx%3E%22%26%2F"
    assert f'action="{address}/disable"' in text
    assert (await browser.post(f"{address}/disable", reason="x"))[0] == 303
    assert (await channels.read(house.local_client(), '<b onclick=x>"&/')).condition is Condition.DISABLED


async def test_credentials_are_switched_by_number(house: House) -> None:
    browser = await house.browser()
    assert (await browser.post("/channels/up/credentials/2", state="off"))[0] == 303
    states = [str(each.state) for each in (await channels.read(house.local_client(), "up")).credentials]
    assert states == ["in use", "off"]
    _, text = await browser.get("/channels")
    assert "Switch on" in text
    assert (await browser.post("/channels/up/credentials/2", state="on"))[0] == 303
    for number, state in (("0", "off"), ("3", "off"), ("x", "off"), ("1", "gone")):
        assert (await browser.post(f"/channels/up/credentials/{number}", state=state))[0] == 400


async def test_a_trial_says_how_the_upstream_answered(house: House) -> None:
    browser = await house.browser()
    status, text = await browser.post("/channels/up/test", model="words")  # nothing listens there
    assert (status, "not good" in text, "sk-secret" in text) == (200, True, False)

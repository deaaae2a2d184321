"""Channels, alerts and the configuration are shown without secrets, with their state; channels are switched, and tried."""

from __future__ import annotations

import re
import time

import msgspec

from gateway.admin.actions import channels
from gateway.admin.actions.local import GatewayState
from gateway.alerts.event import Outbox
from gateway.runtime.handover import RefusedReload
from gateway.store.channels import ChannelReport, Condition
from gateway.usage.completeness import About
from gateway.usage.database import UsageFiles
from gateway.usage.gateways import Membership, now_ms
from gateway.usage.stream import GATEWAYS, HEARD, HOME
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


async def test_a_card_draws_the_calls_of_the_last_minutes(house: House) -> None:
    browser = await house.browser()
    assert 'class="spark"' not in (await browser.get("/channels"))[1]
    await house.store.channels.sync("w", {"up": ChannelReport(ok=3, failed=1)})
    _, text = await browser.get("/channels")
    numbers = re.search(r"Calls of each of the last 6 minutes: ([0-9, ]+); failed: ([0-9, ]+)", text)
    assert numbers is not None
    assert [sum(map(int, each.split(", "))) for each in numbers.groups()] == [4, 1]
    assert ('height="32.0"' in text, 'class="part"' in text) == (True, True)


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


ALERTS = "alerts: {webhook: 'http://127.0.0.1:9/secret-path', others: {shop: {webhook: 'http://127.0.0.1:9/', events: [account]}}}"


async def test_alerts_are_listed_by_their_state(house: House) -> None:
    browser = await house.browser()
    assert "No alerts are sent" in (await browser.get("/alerts"))[1]
    house.loaded = house.configured(ALERTS)
    assert "No alert here" in (await browser.get("/alerts"))[1]
    for name in ("alice", "bobby"):
        await browser.post("/accounts", id=name, group="default")
    outbox = Outbox(house.store.client, "shop")
    _, (taken,) = await outbox.take(1, 10_000)
    await outbox.report(taken, msgspec.structs.replace(taken.entry, attempts=3, error="<b>it answered 500</b>"))
    status, text = await browser.get("/alerts")
    assert (status, text.count("account.created"), "secret-path" in text) == (200, 2, False)
    assert "given up" in text and "&lt;b&gt;it answered 500" in text and "shop" in text
    _, text = await browser.get("/alerts?state=pending")
    assert text.count("account.created") == 1
    assert (await browser.get("/alerts?state=lost"))[0] == 400


BY_UNITS = ("0.01 for each image low", "0.17 for each image high 1024x1024")
OF_SESSIONS = ("5.00 a session", "500 requests a session")


async def test_the_configuration_has_no_secret_and_says_what_was_refused(house: House) -> None:
    browser = await house.browser()
    status, text = await browser.get("/configuration")
    assert status == 200
    for part in ("usage-logger", "model-routing", "words", "trial", "2.00", "gateway.yaml", *BY_UNITS, *OF_SESSIONS):
        assert part in text, part
    assert "sk-secret" not in text
    assert "was refused" not in text
    house.running = GatewayState(3, RefusedReload("gateway.yaml:7: models.m: <b>wrong</b>", time.time()))
    _, text = await browser.get("/configuration")
    assert ("was refused" in text, "models.m: &lt;b&gt;wrong&lt;/b&gt;" in text, "generation 3" in text) == (True,) * 3


async def test_a_gateway_that_serves_something_else_is_named(house: House) -> None:
    client, folder = house.store.client, house.folder
    own = house.store.usage.installation
    await Membership(client, UsageFiles(folder), own, {"models": "a", "groups": "g"}).say(0)
    await client.call("SET", HOME, "postgresql x")
    for name, settings in (("<b>1", {"models": "b", "groups": "g"}), ("two", {"models": "a", "groups": "g"})):
        about = msgspec.json.encode(About(host=name, settings=settings))
        await client.call("HSET", GATEWAYS, f"{name:>08}", about)
        await client.call("ZADD", HEARD, await now_ms(client), f"{name:>08}")
    _, text = await (await house.browser()).get("/configuration")
    assert text.count("serves other") == 1
    assert "Gateway &lt;b&gt;1" in text and "serves other models" in text

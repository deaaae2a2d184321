"""What is served is shown without secrets, with the last change that was refused."""

from __future__ import annotations

import time

import msgspec

from gateway.admin.actions.local import GatewayState
from gateway.runtime.handover import RefusedReload
from gateway.usage.gateways import About, Membership, now_ms
from gateway.usage.stream import GATEWAYS, HEARD, HOME
from tests.admin.pages.conftest import House

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
    await Membership(client, folder, own, {"models": "a", "groups": "g"}).say(0)
    await client.call("SET", HOME, "postgresql x")
    for name, settings in (("<b>1", {"models": "b", "groups": "g"}), ("two", {"models": "a", "groups": "g"})):
        about = msgspec.json.encode(About(host=name, settings=settings))
        await client.call("HSET", GATEWAYS, f"{name:>08}", about)
        await client.call("ZADD", HEARD, await now_ms(client), f"{name:>08}")
    _, text = await (await house.browser()).get("/configuration")
    assert text.count("serves other") == 1
    assert "Gateway &lt;b&gt;1" in text and "serves other models" in text

"""What is served is shown without secrets, with the last change that was refused."""

from __future__ import annotations

import time

from gateway.admin.actions.local import GatewayState
from gateway.runtime.handover import RefusedReload
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

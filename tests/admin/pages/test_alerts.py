"""The page of alerts: what each receiver was sent, and what waits."""

from __future__ import annotations

import msgspec

from gateway.alerts.event import Outbox
from tests.admin.pages.conftest import House

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

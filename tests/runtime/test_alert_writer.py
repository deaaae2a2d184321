"""A worker's events reach the store soon, also those of its last moments, and after the store was away."""

from __future__ import annotations

import asyncio
from decimal import Decimal

import pytest
from structlog.testing import capture_logs

from gateway.alerts.alerts import Alerts
from gateway.alerts.event import Outbox
from gateway.config.schema import AlertSettings
from gateway.runtime import maintenance as module
from gateway.runtime.maintenance import AlertWriter
from gateway.store.accounts import Accounts
from gateway.store.channels import Channels
from gateway.store.client.client import Client
from tests.patience import PATIENCE_S

SETTINGS = AlertSettings("http://127.0.0.1:9/", low_balance=Decimal(5))


async def pending(client: Client, number: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while len(await Outbox(client).pending(1000)) != number:
            await asyncio.sleep(0.01)


async def test_what_is_noted_is_written(client: Client) -> None:
    alerts = Alerts(client, Channels(client), SETTINGS)
    async with AlertWriter(alerts):
        for number in range(200):
            alerts.balance(f"account{number}", 1)
        await pending(client, 200)


async def test_the_last_events_are_written_when_the_worker_stops(client: Client) -> None:
    alerts = Alerts(client, Channels(client), SETTINGS)
    async with AlertWriter(alerts):
        for number in range(200):
            alerts.balance(f"account{number}", 1)
    assert len(await Outbox(client).pending(1000)) == 200


async def test_a_store_that_is_away_is_logged_once_and_nothing_is_lost(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    away = Client.connect("unix:///nowhere/store.sock", timeout_s=0.05)
    alerts = Alerts(away, Channels(away), SETTINGS)
    writer = AlertWriter(alerts)
    alerts.balance("alice", 1)
    with capture_logs() as lines:
        for _ in range(5):
            await writer.run_once()
    assert [line["event"] for line in lines] == ["alerts_not_written"]
    alerts._outbox, alerts._accounts = Outbox(client), Accounts(client)
    await writer.run_once()
    assert len(await Outbox(client).pending(9)) == 1
    await away.close()

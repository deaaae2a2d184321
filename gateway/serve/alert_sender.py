"""The child process that sends alerts. It follows reloads."""

from __future__ import annotations

import asyncio
from typing import Final

from gateway.alerts.event import Outbox
from gateway.alerts.sender import Sender, Webhook
from gateway.alerts.signature import secrets_of
from gateway.config.schema import Config, Loaded
from gateway.metrics.registry import Metrics
from gateway.metrics.shared import SharedNumbers
from gateway.runtime.handover import Handover
from gateway.runtime.reload import following
from gateway.store.client.client import Client

STORE_TIMEOUT_S: Final = 2.0


async def run(loaded: Loaded, handover: Handover, url: str, shared: SharedNumbers, stop: asyncio.Event) -> None:
    """Send the alerts of the store at `url` until `stop` is set. `loaded`: the configuration to begin with."""
    metrics = Metrics(shared)
    client = Client.connect(url, timeout_s=STORE_TIMEOUT_S, connections=1)
    sender = Sender(
        Outbox(client),
        count=lambda result: metrics.count("alerts", result),
        pending=lambda number: metrics.set("alerts_pending", number),
    )
    _use(sender, loaded.config)
    try:
        async with following(loaded, handover, lambda adopted, _: _use(sender, adopted.config)):
            await sender.run(stop)
    finally:
        await client.close()


def _use(sender: Sender, config: Config) -> None:
    """Send to the webhook of this configuration from now on, or nowhere if it has none."""
    settings = config.alerts
    if settings is None:
        sender.use(None, store_events=False)
    else:
        sender.use(Webhook(settings.webhook, secrets_of(config)), store_events="store" in settings.events)

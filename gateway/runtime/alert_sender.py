"""The child process that sends alerts. It follows reloads: on SIGHUP it reads which configuration the parent has adopted."""

from __future__ import annotations

import asyncio
import signal
from typing import Final

from gateway.alerts.outbox import Outbox
from gateway.alerts.sender import Sender
from gateway.alerts.signature import secrets_of
from gateway.alerts.webhook import Webhook
from gateway.config.schema import Config, Loaded, load
from gateway.errors import GatewayError
from gateway.log import Logger
from gateway.metrics.registry import Metrics
from gateway.metrics.shared import SharedNumbers
from gateway.runtime.handover import Handover
from gateway.runtime.reload import after_reload
from gateway.store.client.client import Client

STORE_TIMEOUT_S: Final = 2.0
RESULTS: Final = ("sent", "failed", "given_up", "dropped")

log = Logger("gateway.runtime.alert_sender")


async def run(loaded: Loaded, handover: Handover, url: str, shared: SharedNumbers, stop: asyncio.Event) -> None:
    """Send the alerts of the store at `url` until `stop` is set. `loaded`: the configuration to begin with."""
    metrics = Metrics(shared)
    for result in RESULTS:
        metrics.shared.at(("alerts", result))  # so that a scrape has it as 0 before the first
    client = Client.connect(url, timeout_s=STORE_TIMEOUT_S, connections=1)
    sender = Sender(
        Outbox(client),
        count=lambda result: metrics.count("alerts", result),
        pending=lambda number: metrics.set("alerts_pending", number),
    )
    changed = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, changed.set)
    _use(sender, loaded.config)
    following = asyncio.get_running_loop().create_task(_follow(sender, loaded, handover, changed))
    try:
        await sender.run(stop)
    finally:
        following.cancel()
        await asyncio.wait((following,))
        await client.close()


async def _follow(sender: Sender, loaded: Loaded, handover: Handover, changed: asyncio.Event) -> None:
    while True:
        await changed.wait()
        changed.clear()
        try:
            offer = handover.read()
            if offer is not None and offer.phase == "adopted":
                _use(sender, after_reload(loaded.config, load(loaded.document.path, raw=offer.raw).config))
        except GatewayError as error:
            log.error("alerts_not_reloaded", reason=str(error))


def _use(sender: Sender, config: Config) -> None:
    """Send to the webhook of this configuration from now on, or nowhere if it has none."""
    settings = config.alerts
    if settings is None:
        sender.use(None, store_events=False)
    else:
        sender.use(Webhook(settings.webhook, secrets_of(config)), store_events="store" in settings.events)

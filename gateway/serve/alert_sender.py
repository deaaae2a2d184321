"""The child process that sends alerts, to each receiver at its own pace. It follows reloads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
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
    pending: dict[str, int] = {}

    def count_pending(name: str, number: int) -> None:
        pending[name] = number
        metrics.set("alerts_pending", sum(pending.values()))

    def sender_to(name: str) -> Sender:
        count = partial(metrics.count, "alerts")
        return Sender(Outbox(client, name), count=count, pending=partial(count_pending, name))

    senders = Senders(sender_to, stop)
    senders.use(loaded.config)
    try:
        async with following(loaded, handover, lambda adopted, _: senders.use(adopted.config)):
            await stop.wait()
            await senders.end()
    finally:
        await client.close()


class Senders:
    """A sender for each receiver, so that one that does not answer delays no other."""

    def __init__(self, sender_to: Callable[[str], Sender], stop: asyncio.Event) -> None:
        self._sender_to = sender_to
        self._stop = stop
        self._senders: dict[str, Sender] = {}
        self._running: list[asyncio.Task[None]] = []

    def use(self, config: Config) -> None:
        """Send to the receivers of this configuration from now on, and to no others."""
        receivers = {} if config.alerts is None else config.alerts.receivers
        for name in self._senders.keys() - receivers:
            self._senders[name].use(None, store_events=False)
        for name, receiver in receivers.items():
            if name not in self._senders:
                self._senders[name] = sender = self._sender_to(name)
                self._running.append(asyncio.get_running_loop().create_task(sender.run(self._stop)))
            webhook = Webhook(receiver.webhook, secrets_of(config, name))
            self._senders[name].use(webhook, store_events="store" in receiver.events and not receiver.groups)

    async def end(self) -> None:
        """Wait for the ends of all senders, once `stop` is set."""
        await asyncio.gather(*self._running)

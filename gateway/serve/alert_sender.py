"""The child process that sends alerts, to each receiver at its own pace. It follows reloads."""

from __future__ import annotations

import asyncio
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
    client = Client.connect(url, timeout_s=STORE_TIMEOUT_S, connections=1)
    senders = Senders(client, Metrics(shared), stop)
    senders.use(loaded.config)
    try:
        async with following(loaded, handover, lambda adopted, _: senders.use(adopted.config)):
            await stop.wait()
            await senders.end()
    finally:
        await client.close()


class Senders:
    """A sender for each receiver, so that one that does not answer delays no other."""

    def __init__(self, client: Client, metrics: Metrics, stop: asyncio.Event) -> None:
        self._client = client
        self._metrics = metrics
        self._stop = stop
        self._senders: dict[str, Sender] = {}
        self._pending: dict[str, int] = {}
        self._running: list[asyncio.Task[None]] = []

    def use(self, config: Config) -> None:
        """Send to the receivers of this configuration from now on, and to no others."""
        receivers = {} if config.alerts is None else config.alerts.receivers
        for name in self._senders.keys() - receivers:
            self._senders[name].use(None, store_events=False)
        for name, receiver in receivers.items():
            if name not in self._senders:
                count, pending = partial(self._metrics.count, "alerts"), partial(self._count_pending, name)
                self._senders[name] = sender = Sender(Outbox(self._client, name), count=count, pending=pending)
                self._running.append(asyncio.get_running_loop().create_task(sender.run(self._stop)))
            webhook = Webhook(receiver.webhook, secrets_of(config, name))
            self._senders[name].use(webhook, store_events="store" in receiver.events and not receiver.groups)

    def _count_pending(self, name: str, number: int) -> None:
        self._pending[name] = number
        self._metrics.set("alerts_pending", sum(self._pending.values()))

    async def end(self) -> None:
        """Wait for the ends of all senders, once `stop` is set."""
        await asyncio.gather(*self._running)

"""What plugins are started with: the store, the catalogue, the clock and the log of one configuration."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

from gateway.alerts.alerts import Alerts
from gateway.budgets import Calendar
from gateway.catalogue import Catalogue
from gateway.config.schema import Config
from gateway.errors import GatewayError
from gateway.log import Logger
from gateway.metrics.own import OwnMetrics
from gateway.metrics.shared import SharedNumbers
from gateway.spending import Spending, Window
from gateway.store.accounts import Accounts
from gateway.store.channels import Channels
from gateway.store.client.client import Client
from gateway.store.client.masters import Masters
from gateway.store.directory import Directory
from gateway.store.external_ids import ExternalIds
from gateway.store.limits import RateLimiter
from gateway.store.money.journal import Journal
from gateway.store.money.wallet import Wallet
from gateway.store.pepper import PepperSource
from gateway.store.tokens import Tokens
from gateway.usage.log import UsageLog
from gateway.usage.sink import crashed_after_s
from gateway.work import Work

if TYPE_CHECKING:
    from aiohttp import ClientSession


class Clock(Protocol):
    """The time. Tests replace it."""

    def time(self) -> float:
        """Return UTC as seconds since 1970."""

    def monotonic(self) -> float:
        """Return seconds that never jump, for durations."""


class Store:
    """All state that processes and machines share, by kind.

    Calls before the upstream and settlements after it use different connections, so that a burst of new requests cannot delay
    a charge.
    """

    def __init__(self, client: Client, settling: Client, config: Config) -> None:
        self.client = client
        self.settling = settling
        self.accounts = Accounts(client)
        self.directory = Directory(client)
        self.external_ids = ExternalIds(client)
        self.tokens = Tokens(client, PepperSource.of(config.data_path))
        self.limits = RateLimiter(client)
        self.channels = Channels(client)
        self.alerts = Alerts(client, self.channels, config.alerts)
        self.channels.on_status = self.alerts.channel_states
        self.channels.credentials.on_refused = self.alerts.credential_refused
        self.journal = Journal(config.data_path / "journal")
        self.wallet = Wallet(client, settling=settling, journal=self.journal)
        elsewhere = None
        if config.usage.clickhouse:
            from gateway.usage.clickhouse import (
                ClickHouse,
            )  # it imports aiohttp's client, which takes a fifth of a second

            elsewhere = ClickHouse(config.usage.clickhouse, timeout_s=2)
        longest_s = crashed_after_s(config)
        self.usage = UsageLog(client, config.data_path / "usage", clickhouse=elsewhere, longest_s=longest_s)
        self._masters = Masters(client, settling)

    async def replay_after_failover(self) -> tuple[int, int]:
        """Repeat recent settlements and usage records if another master answers now. Return how many of each.

        A master that took over may lack what the one before acknowledged. Call this at start and every few seconds. Raises
        `StoreAway`.
        """
        settlements, records = await self._masters.replay_after_failover(self.wallet.repeat, self.usage.repeat)
        return settlements, records

    async def answers(self) -> bool:
        """Return whether the store answers now."""
        try:
            await self.client.call("PING")
        except GatewayError:
            return False
        return True

    @classmethod
    @asynccontextmanager
    async def open(cls, config: Config, url: str) -> AsyncIterator[Store]:
        """Yield the store at `url`, and close it at the end. Nothing is sent before the first call."""
        settings = config.store
        client = Client.connect(url, timeout_s=settings.timeout, connections=settings.connections)
        settling = Client.connect(url, timeout_s=settings.timeout, connections=2)
        store = cls(client, settling, config)
        try:
            yield store
        finally:
            store.journal.close()
            await client.close()
            await settling.close()


class Services:
    """What a plugin gets when it starts.

    `name`: the plugin's name in the chain. `store`: accounts, tokens, wallet, limits, usage. `redis`: the pipelining client,
    for keys of the plugin's own, which `key(...)` names. `catalogue`: models, prices, groups. `log`: a structured logger; never
    log a token. `metrics`: counters and histograms of the plugin's own.
    """

    def __init__(
        self,
        *,
        name: str,
        store: Store,
        redis: Client,
        clock: Clock,
        log: Any,
        catalogue: Catalogue,
        own_metrics: OwnMetrics | None = None,
        spending: Spending | None = None,
    ) -> None:
        self.name = name
        self.store = store
        self.redis = redis
        self.clock = clock
        self.log = log
        self.catalogue = catalogue
        self._own_metrics = own_metrics or OwnMetrics(SharedNumbers())
        self.metrics = self._own_metrics.of(name)
        self.spending = spending or Spending(store.usage.folder, Calendar(catalogue.time_zone, clock))
        """What `spent` reads."""
        self._work = Work(name, log)

    def key(self, *parts: str) -> str:
        """Return a key of this plugin's own. Put braces around a part, as in `{account}`, to keep its keys in one cluster slot."""
        return ":".join(("gw", "plugin", self.name, *parts))

    @property
    def http(self) -> ClientSession:
        """A client session of aiohttp, which is closed after `stop`. A request takes 30 s at most, unless it says otherwise."""
        return self._work.http

    def every(self, seconds: float, function: Callable[[], Awaitable[None]]) -> None:
        """Call an asynchronous function again and again: first after `seconds`, then `seconds` after it has ended.

        What it raises is logged with the plugin's name, and it is called again. It is cancelled before `stop` is called. Each
        worker calls it. Raises `ValueError` for what is no time and for more than 16 functions, and `TypeError` for no function.
        """
        self._work.every(seconds, function)

    async def spent(self, account: str, window: Window = "day") -> int:
        """Return what an account was charged in this day, week or month, in micros. They begin as those of budgets do.

        It is read from the usage log, which lacks the requests in progress, and those that ended in the last two seconds or so, on
        whichever gateway; longer where a sink does not run. Raises `StoreAway` where a file of the log cannot be read.
        """
        return await self.spending.spent(account, window)

    def named(self, name: str) -> Services:
        """Return the same services for the plugin called `name`."""
        return Services(
            name=name,
            store=self.store,
            redis=self.redis,
            clock=self.clock,
            log=self.log,
            catalogue=self.catalogue,
            own_metrics=self._own_metrics,
            spending=self.spending,
        )

    async def end_tasks(self) -> None:
        """Cancel what `every` calls, and wait until it has ended. The gateway calls it before `stop`."""
        await self._work.end_tasks()

    async def close(self) -> None:
        """End what was begun with these services. The gateway calls it after `stop`."""
        await self._work.close()


class SystemClock:
    """The clock of the machine."""

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


def services_of(config: Config, store: Store, own_metrics: OwnMetrics | None = None) -> Services:
    """Return what the plugins of one configuration are started with. Without `own_metrics` what they count is not exported."""
    return Services(
        name="gateway",
        store=store,
        redis=store.client,
        clock=SystemClock(),
        log=Logger("gateway.plugin"),
        catalogue=Catalogue(config),
        own_metrics=own_metrics,
    )

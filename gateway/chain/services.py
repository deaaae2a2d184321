"""Services: the store, the catalogue, the clock, the log and the sums of spending that plugins are started with, and their work.

A plugin's work beside its hooks is tasks that repeat, and a session of HTTP. Both end with the plugin.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from copy import copy
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from gateway.alerts.alerts import Alerts
from gateway.base.errors import GatewayError, StoreAway
from gateway.base.ids import Clock
from gateway.base.log import log, place_of
from gateway.config.schema import Config
from gateway.domain.budgets import Calendar
from gateway.domain.catalogue import Catalogue
from gateway.metrics.own import OwnMetrics
from gateway.metrics.shared import SharedNumbers
from gateway.store.accounts import Accounts, Directory
from gateway.store.channels import Channels
from gateway.store.client.client import Client
from gateway.store.client.durability import Masters
from gateway.store.external_ids import ExternalIds
from gateway.store.kept_ids import KeptIds
from gateway.store.limits import RateLimiter
from gateway.store.money.journal import Journal
from gateway.store.money.wallet import Wallet
from gateway.store.pepper import PepperSource
from gateway.store.tokens import Tokens
from gateway.usage.database import UnusableFile
from gateway.usage.home import Home, home_of
from gateway.usage.log import UsageLog
from gateway.usage.sums import Selected, grouped

if TYPE_CHECKING:
    from aiohttp import ClientSession

MAX_TASKS: Final = 16
"""Repeated functions of one plugin."""
TOTAL_S: Final = 30.0
"""How long one request of the session may take, where the plugin does not say otherwise."""
CONNECT_S: Final = 5.0
MAX_CONNECTIONS: Final = 20
"""Connections of the session that are open at once; more requests wait."""

Window = Literal["day", "week", "month"]

REMEMBERED_S: Final = 1.0
"""How long a sum is used again: one query a second for each account, however many requests it sends."""
MAX_REMEMBERED: Final = 10_000


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
        self.tokens = Tokens(client, PepperSource(config.data_path))
        self.limits = RateLimiter(client)
        self.channels = Channels(client)
        self.kept_ids = KeptIds(client)
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
        self.usage = UsageLog(client, home_of(config), callers=config.usage.callers, clickhouse=elsewhere)
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
            store.usage.home.close()
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
    ) -> None:
        self.name = name
        self.store = store
        self.redis = redis
        self.clock = clock
        self.log = log
        self.catalogue = catalogue
        self._own_metrics = own_metrics or OwnMetrics(SharedNumbers())
        self.metrics = self._own_metrics.of(name)
        self.spending = Spending(store.usage.home, Calendar(catalogue.time_zone, clock))
        """What `spent` reads."""
        self._tasks: list[asyncio.Task[None]] = []
        self._http: ClientSession | None = None

    def key(self, *parts: str) -> str:
        """Return a key of this plugin's own. Put braces around a part, as in `{account}`, to keep its keys in one cluster slot."""
        return ":".join(("gw", "plugin", self.name, *parts))

    @property
    def http(self) -> ClientSession:
        """A client session of aiohttp, which is closed after `stop`. A request takes 30 s at most, unless it says otherwise."""
        if self._http is None:
            from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

            self._http = ClientSession(
                timeout=ClientTimeout(total=TOTAL_S, sock_connect=CONNECT_S),
                connector=TCPConnector(limit=MAX_CONNECTIONS),
                cookie_jar=DummyCookieJar(),
            )
        return self._http

    def every(self, seconds: float, function: Callable[[], Awaitable[None]]) -> None:
        """Call an asynchronous function again and again: first after `seconds`, then `seconds` after it has ended.

        What it raises is logged with the plugin's name, and it is called again. It is cancelled before `stop` is called. Each
        worker calls it. Raises `ValueError` for what is no time and for more than 16 functions, and `TypeError` for no function.
        """
        if isinstance(function, Coroutine):
            function.close()
            raise TypeError("every: give the function without calling it, as in `services.every(60, self.refresh)`")
        if not callable(function):
            raise TypeError(f"every: give an `async` function, not {function!r}")
        if not seconds > 0:
            raise ValueError(f"every: give seconds above 0, not {seconds}")
        if len(self._tasks) >= MAX_TASKS:
            raise ValueError(f"every: a plugin has {MAX_TASKS} tasks at most")
        name = getattr(function, "__qualname__", repr(function))
        task = asyncio.get_running_loop().create_task(
            self._repeat(seconds, function, name), name=f"{self.name}: {name}"
        )
        self._tasks.append(task)

    async def spent(self, account: str, window: Window = "day") -> int:
        """Return what an account was charged in this day, week or month, in micros. They begin as those of budgets do.

        It is read from the usage log, which lacks the requests in progress, and those that ended in the last two seconds or so, on
        whichever gateway; longer where a sink does not run. Raises `StoreAway` where the log cannot be read.
        """
        return await self.spending.spent(account, window)

    def named(self, name: str) -> Services:
        """Return the same services for the plugin called `name`."""
        own = copy(self)
        own.name, own.metrics, own._tasks, own._http = name, self._own_metrics.of(name), [], None
        return own

    async def end_tasks(self) -> None:
        """Cancel what `every` calls, and wait until it has ended. The gateway calls it before `stop`."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """End what was begun with these services. The gateway calls it after `stop`."""
        await self.end_tasks()
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    async def _repeat(self, seconds: float, function: Callable[[], Awaitable[None]], name: str) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await function()
            except BaseException as error:
                if _cancelled():
                    raise
                at = place_of(error)
                self.log.error("plugin_failed", plugin=self.name, hook="every", work=name, at=at, exc_info=error)


def _cancelled() -> bool:
    """Return whether the running task is cancelled. A frame that names its own task is freed with the next collection alone."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def services_of(config: Config, store: Store, own_metrics: OwnMetrics | None = None) -> Services:
    """Return the services that one configuration's plugins share. Without `own_metrics`, their metrics are not exported."""
    return Services(
        name="gateway",
        store=store,
        redis=store.client,
        clock=Clock(),
        log=log,
        catalogue=Catalogue(config),
        own_metrics=own_metrics,
    )


class Spending:
    """The sums of one usage log. `calendar` says when windows begin."""

    def __init__(self, home: Home, calendar: Calendar) -> None:
        self._home = home
        self._calendar = calendar
        self._sums: dict[tuple[str, Window], tuple[float, asyncio.Task[int]]] = {}

    async def spent(self, account: str, window: Window) -> int:
        """Return what an account was charged in the current window, in micros. Raises `ValueError` and `StoreAway`."""
        if window not in get_args(Window):
            raise ValueError(f"spent: the window is one of {', '.join(get_args(Window))}, not {window}")
        key, now = (account, window), time.monotonic()
        until, task = self._sums.get(key, (0.0, None))
        if task is None or now >= until or (task.done() and task.exception() is not None):
            if len(self._sums) >= MAX_REMEMBERED:
                self._sums.clear()
            since_ms = self._calendar.began_ms(window)
            task = asyncio.get_running_loop().create_task(asyncio.to_thread(self._sum, account, since_ms))
            self._sums[key] = now + REMEMBERED_S, task
        return await asyncio.shield(task)

    def forget(self) -> None:
        """Read each sum again when it is asked for next."""
        self._sums.clear()

    def _sum(self, account: str, since_ms: int) -> int:
        unusable: list[UnusableFile] = []
        rows = grouped(self._home, (), Selected(account=account, since_ms=since_ms), unusable)
        if unusable:
            raise StoreAway(f"the usage log cannot be read: {unusable[0]}")
        return sum(row["charge_micros"] or 0 for row in rows)

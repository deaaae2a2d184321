"""What plugins are started with: the stores, the catalogue, the clock and the log of one configuration."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

import structlog

from gateway.catalogue import Catalogue
from gateway.config.schema import Config
from gateway.errors import GatewayError
from gateway.store.accounts import Accounts
from gateway.store.channels import Channels
from gateway.store.client.client import Client
from gateway.store.client.masters import Masters
from gateway.store.limits import RateLimiter
from gateway.store.money.journal import Journal
from gateway.store.money.wallet import Wallet
from gateway.store.tokens import Tokens, pepper_of
from gateway.usage.clickhouse import ClickHouse
from gateway.usage.log import UsageLog


class Clock(Protocol):
    """The time, replaceable in tests."""

    def time(self) -> float:
        """UTC, seconds since 1970."""

    def monotonic(self) -> float:
        """Seconds that never jump; for durations."""


class Store:
    """All that is shared between processes and machines.

    Decisions before the upstream is called and settlements after it have connections of their own, so that a burst of
    arrivals cannot keep a charge waiting.
    """

    def __init__(self, client: Client, settling: Client, config: Config) -> None:
        self.client = client
        self.settling = settling
        self.accounts = Accounts(client)
        self.tokens = Tokens(client, pepper_of(config.data_path))
        self.limits = RateLimiter(client)
        self.channels = Channels(client)
        self.journal = Journal(config.data_path / "journal")
        self.wallet = Wallet(client, settling=settling, journal=self.journal)
        elsewhere = ClickHouse(config.usage.clickhouse, timeout_s=2) if config.usage.clickhouse else None
        self.usage = UsageLog(client, config.data_path / "usage", clickhouse=elsewhere)

        self._masters = Masters(client, settling)

    async def replay_after_failover(self) -> tuple[int, int]:
        """Repeat to another incarnation of the store what was acknowledged lately: so many settlements and records.

        Call it at start and every few seconds. Raises `StoreAway`.
        """
        settlements, records = await self._masters.replay_after_failover(self.wallet.repeat, self.usage.repeat)
        return settlements, records

    async def answers(self) -> bool:
        """Whether the store answers just now."""
        try:
            await self.client.call("PING")
        except GatewayError:
            return False
        return True

    @classmethod
    @asynccontextmanager
    async def open(cls, config: Config, url: str) -> AsyncIterator[Store]:
        """The store at `url`, closed at the end. Nothing is sent before the first call."""
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
    """What a plugin is given when it starts.

    `name`: the plugin's name in the chain. `store`: accounts, tokens, wallet, limits, usage. `redis`: the coalescing
    client for a plugin's own keys, which `key(...)` names. `catalogue`: models, prices, groups. `log`: a structured
    logger (never hand it a token).
    """

    def __init__(self, *, name: str, store: Store, redis: Client, clock: Clock, log: Any, catalogue: Catalogue) -> None:
        self.name = name
        self.store = store
        self.redis = redis
        self.clock = clock
        self.log = log
        self.catalogue = catalogue

    def key(self, *parts: str) -> str:
        """A key of this plugin's own. Put what must live together in one slot of a cluster in braces: `{account}`."""
        return ":".join(("gw", "plugin", self.name, *parts))

    def named(self, name: str) -> Services:
        """The same services for the plugin called `name`."""
        return Services(
            name=name,
            store=self.store,
            redis=self.redis,
            clock=self.clock,
            log=self.log,
            catalogue=self.catalogue,
        )


class SystemClock:
    """The machine's clock."""

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


def services_of(config: Config, store: Store) -> Services:
    """What the plugins of one configuration are started with."""
    return Services(
        name="gateway",
        store=store,
        redis=store.client,
        clock=SystemClock(),
        log=structlog.get_logger("gateway.plugin"),
        catalogue=Catalogue(config),
    )

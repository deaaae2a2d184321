"""What plugins are started with: the stores, the catalogue, the clock and the log of one configuration."""

from __future__ import annotations

import time
from typing import Any, Protocol

import structlog

from gateway.catalogue import Catalogue
from gateway.config.schema import Config
from gateway.store.client.client import Client
from gateway.store.store import Store


class Clock(Protocol):
    """The time, replaceable in tests."""

    def time(self) -> float:
        """UTC, seconds since 1970."""

    def monotonic(self) -> float:
        """Seconds that never jump; for durations."""


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

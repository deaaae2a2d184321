"""What plugins are started with: the stores, the catalogue, the clock and the log of one configuration."""

from __future__ import annotations

import time

import structlog

from gateway.catalogue import Catalogue
from gateway.config import Config
from gateway.plugin import Services
from gateway.store.store import Store


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

"""The child process that serves the operator's port, and the one that serves the portal: what callers may be let to.

Each is a process of its own, so that no caller at the portal takes anything from operators. Both follow reloads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from gateway.admin.actions.action import Actor
from gateway.admin.actions.links import AdminToken
from gateway.admin.actions.local import GatewayState, LocalClient
from gateway.admin.actions.management_tokens import ManagementTokens
from gateway.admin.http import port
from gateway.admin.http.api import ClientOf
from gateway.admin.http.app import Admin, Callers, portal
from gateway.chain.services import Store
from gateway.config.schema import Loaded
from gateway.metrics.exporter import Exporter
from gateway.metrics.registry import Metrics
from gateway.metrics.shared import SharedNumbers
from gateway.runtime.active_config import ActiveConfig
from gateway.runtime.handover import Handover
from gateway.runtime.reload import following


async def run(
    active: ActiveConfig, handover: Handover, url: str, numbers: Mapping[str, SharedNumbers], stop: asyncio.Event
) -> None:
    """Serve the operator's port until `stop` is set, beginning with the configuration that is active at the moment.

    `url`: the store's. `numbers`: what all processes count, by their names.
    """
    from gateway.admin.pages.pages import Pages  # with the template engine, which few processes need

    metrics = Metrics(numbers["admin"])
    metrics.shared.at(("admin_tokens_refused",))  # so that a scrape has it as 0 before the first
    config = active.loaded.config
    async with Store.open(config, url) as store, _clients(active, handover, store) as client_of:
        admin_token = AdminToken(config)
        callers = Callers(admin_token, ManagementTokens(store.client), lambda: metrics.count("admin_tokens_refused"))
        pages = Pages(client_of, admin_token, numbers)
        admin = Admin(callers, Exporter(numbers), client_of, pages)
        await port.run(admin.application(), str(config.admin), stop)


async def run_portal(active: ActiveConfig, handover: Handover, url: str, stop: asyncio.Event) -> None:
    """Serve the callers' pages until `stop` is set, as `run` does the operator's port."""
    from gateway.admin.pages.pages import Pages

    config = active.loaded.config
    async with Store.open(config, url) as store, _clients(active, handover, store) as client_of:
        pages = Pages(client_of, AdminToken(config), {}, operators=False)
        await port.run(portal(pages), config.portal.listen if config.portal else "", stop, "portal")


@asynccontextmanager
async def _clients(active: ActiveConfig, handover: Handover, store: Store) -> AsyncIterator[ClientOf]:
    """Yield what makes the client of an actor, with the configuration that is served at the moment."""
    served, generation = active.loaded, active.generation

    def use(adopted: Loaded, number: int) -> None:
        nonlocal served, generation
        served, generation = adopted, number

    def client_of(actor: Actor, key: str) -> LocalClient:
        return LocalClient(served, store, actor, key, running=GatewayState(generation, handover.refused()))

    async with following(active.loaded, handover, use):
        yield client_of

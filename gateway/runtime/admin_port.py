"""The child process that serves the operator's port. It follows reloads."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from gateway.admin import port
from gateway.admin.app import Admin
from gateway.admin.callers import Callers
from gateway.admin.portal import Portal
from gateway.config.schema import Loaded
from gateway.management.admin_token import AdminToken
from gateway.management.desk import Actor, LocalDesk, Running
from gateway.metrics.exporter import Exporter
from gateway.metrics.registry import Metrics
from gateway.metrics.shared import SharedNumbers
from gateway.runtime.active import ActiveConfig
from gateway.runtime.following import following
from gateway.runtime.handover import Handover
from gateway.services import Store
from gateway.store.management_tokens import ManagementTokens


async def run(
    active: ActiveConfig, handover: Handover, url: str, numbers: Mapping[str, SharedNumbers], stop: asyncio.Event
) -> None:
    """Serve the operator's port until `stop` is set, beginning with the configuration that is active at the moment.

    `url`: the store's. `numbers`: what all processes count, by their names.
    """
    from gateway.admin.pages.pages import Pages  # with the template engine, which no other process needs

    served, generation = active.loaded, active.generation
    metrics = Metrics(numbers["admin"])
    metrics.shared.at(("admin_tokens_refused",))  # so that a scrape has it as 0 before the first

    def use(adopted: Loaded, number: int) -> None:
        nonlocal served, generation
        served, generation = adopted, number

    async with Store.open(active.loaded.config, url) as store, following(active.loaded, handover, use):

        def desk_of(actor: Actor, key: str) -> LocalDesk:
            return LocalDesk(served, store, actor, key, running=Running(generation, handover.refused()))

        admin_token = AdminToken(active.loaded.config)
        callers = Callers(
            admin_token,
            ManagementTokens(store.client),
            lambda: metrics.count("admin_tokens_refused"),
        )
        pages = Pages(desk_of, admin_token, numbers)
        admin = Admin(store.usage.folder, callers, Exporter(numbers), desk_of, pages)
        sites = [port.run(admin, str(active.loaded.config.admin), stop)]
        if active.loaded.config.portal is not None:
            portal = Portal(Pages(desk_of, admin_token, numbers, operators=False))
            sites.append(port.run(portal, active.loaded.config.portal, stop, "portal"))
        await asyncio.gather(*sites)

"""`gateway check`: does everything that `gateway serve` does before it listens."""

from __future__ import annotations

import asyncio

import typer

from gateway import loading
from gateway.chain import warnings
from gateway.cli.common import ConfigOption, JsonOption, print_fields, print_json, store_of
from gateway.config.schema import find, load
from gateway.services import services_of
from gateway.store.client.durability import check_store
from gateway.tools.exposure import exposure_of


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(check)


def check(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Check the configuration, the order of the chain, the plugins' settings and the store, without serving.

    Example: `gateway check --config gateway.yaml`
    """
    path = find(config)
    loaded = load(path)
    chain = loading.build(loaded)
    notes = warnings(chain.steps)

    async def started() -> list[str]:
        async with store_of(loaded.config) as store:
            store_notes = await check_store(store.client, accept_loss=loaded.config.store.accept_loss)
            await chain.start(services_of(loaded.config, store))
            await chain.stop()
            return store_notes

    notes += asyncio.run(started())
    result = {
        "config": str(path),
        "chain": [step.name for step in chain.steps],
        "models": list(loaded.config.models),
        "channels": list(loaded.config.channels),
        "bound": None if (bound := exposure_of(loaded.config, chain)) is None else str(bound),
        "warnings": notes,
    }
    if as_json:
        print_json(result)
    else:
        print_fields({key: ", ".join(value) if isinstance(value, list) else value for key, value in result.items()})
        typer.echo("good")

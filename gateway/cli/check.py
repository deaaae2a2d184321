"""`gateway check`: does everything that `gateway serve` does before it listens."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from gateway.cli.common import ConfigOption, JsonOption, print_fields, print_json, store_url
from gateway.config.schema import Loaded, find, load
from gateway.errors import StoreAway
from gateway.runtime.store_check import refuse_database
from gateway.runtime.trial import Trial
from gateway.services import Store
from gateway.store.client.durability import check_store
from gateway.tools.exposure import Exposure


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(check)


def check(
    config: ConfigOption = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show the bound of every balance in figures.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check the configuration, the order of the chain, the plugins' settings and the store, without serving.

    Example: `gateway check --config gateway.yaml`
    """
    path = find(config)
    loaded = load(path)
    with Trial(loaded) as trial:
        trial.wait()
    with store_url(loaded.config) as url:
        store_notes = asyncio.run(_store_notes(loaded, url))
        with Trial(loaded, url) as trial:
            report = trial.wait()
    requests = {name: words for name, each in loaded.config.channels.items() if (words := each.request_in_words)}
    result = {
        "config": str(path),
        "chain": report.plugins,
        "models": list(loaded.config.models),
        "channels": list(loaded.config.channels),
        "requests": requests,
        "bound": None if report.exposure is None else str(report.exposure),
        "warnings": report.warnings + store_notes,
    }
    if as_json:
        print_json(result)
    else:
        result["requests"] = [f"{name} ({words})" for name, words in requests.items()]
        result["bound"] = _in_words(report.exposure, verbose=verbose)
        print_fields(
            {key: ", ".join(value) or "none" if isinstance(value, list) else value for key, value in result.items()}
        )
        typer.echo("good")


def _in_words(exposure: Exposure | None, *, verbose: bool) -> str:
    if exposure is None:
        return "none: no plugin charges, or every model is free"
    return str(exposure) if verbose else exposure.in_words


async def _store_notes(loaded: Loaded, url: str) -> list[str]:
    async with Store.open(loaded.config, url) as store:
        try:
            return await check_store(store.client, accept_loss=loaded.config.store.accept_loss)
        except StoreAway as error:
            refuse_database(loaded.document, error)
            raise

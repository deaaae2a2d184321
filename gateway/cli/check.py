"""`gateway check`: does everything that `gateway serve` does before it listens."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from gateway.base.errors import StoreAway
from gateway.chain.services import Store
from gateway.cli.common import ConfigOption, JsonOption, found, print_fields, print_json, store_url
from gateway.config.schema import Loaded, load
from gateway.runtime.active_config import ConfigTest
from gateway.runtime.data_folder import check_place, has_store
from gateway.server.tls import Certificate
from gateway.store.client.durability import check_store, refuse_database
from gateway.store.client.topology import naming_the_store
from gateway.store.pepper import PepperSource, record_of, refuse_other

if TYPE_CHECKING:
    from gateway.chain.checks import Exposure


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
    path = found(config)
    loaded = load(path)
    with _with_store(loaded) as (tried, place):
        with ConfigTest(tried) as trial:
            trial.wait()
        if loaded.config.tls is not None:
            Certificate(loaded.config.tls)
        with store_url(tried.config) as url, naming_the_store(url):
            store_notes = asyncio.run(_store_notes(tried, url, PepperSource.of(loaded.config.data_path)))
            with ConfigTest(tried, url) as trial:
                report = trial.wait()
    requests = {name: words for name, each in loaded.config.channels.items() if (words := each.request_in_words)}
    result = {
        "config": str(path),
        "store": place,
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
        result["warnings"] = "\n".join(report.warnings + store_notes) or "none"
        print_fields(
            {key: ", ".join(value) or "none" if isinstance(value, list) else value for key, value in result.items()}
        )
        typer.echo("good")


def _in_words(exposure: Exposure | None, *, verbose: bool) -> str:
    if exposure is None:
        return "none: no plugin charges, or every model is free"
    return str(exposure) if verbose else exposure.in_words


@contextmanager
def _with_store(loaded: Loaded) -> Iterator[tuple[Loaded, str]]:
    """Yield what to check, and in words where its store is: one that is not there yet gets a folder that is removed at the end."""
    if has_store(loaded.config):
        yield loaded, loaded.config.data
        return
    check_place(loaded.config.data_path)
    with TemporaryDirectory(prefix="gateway-check-") as folder:
        (Path(folder) / "store.lock").touch()
        config = msgspec.structs.replace(loaded.config, data=folder)
        yield Loaded(config, loaded.document), f"none at {loaded.config.data} yet: `gateway serve` makes it"


async def _store_notes(loaded: Loaded, url: str, source: PepperSource) -> list[str]:
    async with Store.open(loaded.config, url) as store:
        try:
            notes = await check_store(store.client, accept_loss=loaded.config.store.accept_loss)
            if (record := await record_of(store.client)) is not None:
                refuse_other(record, source)
            return notes
        except StoreAway as error:
            refuse_database(loaded.document, error)
            raise

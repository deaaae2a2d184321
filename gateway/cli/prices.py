"""`gateway prices`: the configured prices beside those of a public catalogue."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import asdict

from gateway.base.errors import Misconfigured
from gateway.cli.common import ConfigOption, JsonOption, configuration, print_json, print_table
from gateway.domain.catalogue import matches
from gateway.tools.prices import Comparison, PriceChange, compare, load, plain

if TYPE_CHECKING:
    from gateway.config.schema import Config

prices = typer.Typer()


def _choice(text: str) -> tuple[str, str]:
    model, separator, key = text.partition("=")
    if not (separator and model and key):
        raise typer.BadParameter(f"`{text}` is not MODEL=KEY, as in gpt-4o=azure/gpt-4o")
    return model, key


@prices.command("import")
def import_(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="The catalogue, downloaded before: nothing is fetched.", show_default=False
        ),
    ],
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this model, or those that match, as in `gpt-*`. May be given again."),
    ] = None,
    chosen: Annotated[
        list[str] | None,
        typer.Option(
            "--as",
            metavar="MODEL=KEY",
            help="Take the price of this model from this entry of the catalogue. May be given again.",
        ),
    ] = None,
    costs: Annotated[
        bool, typer.Option("--costs", help="Compare what the channels cost you (`cost`), not what callers pay.")
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how the configured prices differ from a catalogue, as a table.

    FILE is LiteLLM's `model_prices_and_context_window.json`. The configuration file is not changed.

    A model is found by its own name, or by the one that a channel has for it, or with any provider before it: `--as` chooses one.
    Prices are per million tokens; those by the size of the prompt are not compared. The exit code is 1 where a price is of no use.

    Examples: `gateway prices import model_prices_and_context_window.json`,
    `gateway prices import catalogue.json --model 'gpt-*' --as gpt-4o=azure/gpt-4o`
    """
    keys = dict(map(_choice, chosen or ()))
    settings = configuration(config)
    names = _names(settings, model or ["*"], keys)
    result = compare(settings, load(file), names, keys, costs=costs)
    if as_json:
        _print_json(result)
    else:
        _print(result, len(names))
    if any(note.wrong for note in result.notes):
        raise typer.Exit(1)


def _names(config: Config, patterns: list[str], chosen: Iterable[str]) -> list[str]:
    known = ", ".join(config.models) or "none yet"
    for pattern in (*patterns, *chosen):
        if not any(matches([pattern], name) for name in config.models):
            raise Misconfigured(f"the configuration has no model `{pattern}`; known: {known}")
    return [name for name in config.models if matches(patterns, name)]


def _print(result: Comparison, models: int) -> None:
    rows = [
        (
            _place(each.model, each.channel),
            each.price,
            "-" if each.now is None else plain(each.now),
            plain(each.becomes),
            _change_of(each),
            each.entry,
        )
        for each in result.changes
    ]
    print_table(
        ("model", "price", "now", "catalogue", "change", "entry"),
        rows,
        empty=f"No price differs: {result.same} of {models} models are in the catalogue and agree.",
    )
    for note in result.notes:
        typer.echo(f"{'wrong' if note.wrong else 'note'}: {_place(note.model, note.channel)}: {note.text}", err=True)


def _print_json(result: Comparison) -> None:
    changes = [
        {name: plain(value) if isinstance(value, Decimal) else value for name, value in asdict(each).items()}
        for each in result.changes
    ]
    print_json({"changes": changes, "notes": result.notes})


def _place(model: str, channel: str) -> str:
    return f"{model}, channel {channel}" if channel else model


def _change_of(change: PriceChange) -> str:
    if not change.now:
        return "-"
    return f"{(change.becomes / change.now - 1) * 100:+.1f}%"

"""`gateway prices`: the configured prices beside those of a public catalogue."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.base.errors import Misconfigured
from gateway.cli.common import ConfigOption, JsonOption, configuration, print_json, print_table
from gateway.domain.catalogue import matches
from gateway.tools.prices import catalogues
from gateway.tools.prices.catalogues import plain
from gateway.tools.prices.match import Comparison, compare

if TYPE_CHECKING:
    from gateway.config.schema import Config
    from gateway.tools.prices.match import PriceChange

prices = typer.Typer(no_args_is_help=True, help="Compare the configured prices with a public catalogue: import.")


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.add_typer(prices, name="prices")


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

    A model is found by the name that its channels' provider has for it, else by its own name. Prices are per million tokens. What
    the catalogue does not say stays as it is. The exit code is 1 where a price cannot be used.

    Examples: `gateway prices import model_prices_and_context_window.json`,
    `gateway prices import catalogue.json --model 'gpt-*' --as gpt-4o=azure/gpt-4o`
    """
    keys = dict(map(_choice, chosen or ()))
    settings = configuration(config)
    names = _names(settings, model or ["*"], keys)
    result = compare(settings, catalogues.load(file), names, keys, costs=costs)
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
        [
            _place(found.model, found.channel),
            change.label,
            _now(change),
            plain(change.becomes),
            _factor_of(change),
            found.key,
        ]
        for found in result.found
        for change in found.changes
    ]
    same = sum(not found.changes for found in result.found)
    print_table(
        ("model", "price", "now", "catalogue", "change", "entry"),
        rows,
        empty=f"No price differs: {same} of {models} models are in the catalogue and agree.",
    )
    for note in result.notes:
        typer.echo(f"{'wrong' if note.wrong else 'note'}: {_place(note.model, note.channel)}: {note.text}", err=True)


def _print_json(result: Comparison) -> None:
    print_json(
        {
            "changes": [
                {
                    "model": found.model,
                    "channel": found.channel,
                    "price": change.price,
                    "above": change.above,
                    "now": None if change.now is None else plain(change.now),
                    "becomes": plain(change.becomes),
                    "entry": found.key,
                }
                for found in result.found
                for change in found.changes
            ],
            "notes": result.notes,
        }
    )


def _place(model: str, channel: str) -> str:
    return f"{model}, channel {channel}" if channel else model


def _now(change: PriceChange) -> str:
    if change.now is None:
        return "-"
    return plain(change.now) if change.given else f"- ({plain(change.now)})"


def _factor_of(change: PriceChange) -> str:
    if change.now is None:
        return "-"
    if not change.now:
        return "from 0"
    percent = (change.becomes / change.now - 1) * 100
    return f"{percent:+.1f}%" if abs(percent) < 1000 else f"x{change.becomes / change.now:.0f}"

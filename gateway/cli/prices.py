"""`gateway prices`: the configured prices beside those of a public catalogue."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gateway.base.errors import Misconfigured
from gateway.cli.common import ConfigOption, JsonOption, configuration, print_json, print_table, refuse
from gateway.domain.catalogue import matches
from gateway.tools.prices import catalogues
from gateway.tools.prices.catalogues import plain
from gateway.tools.prices.match import Comparison, MatchedPrice, compare

if TYPE_CHECKING:
    from gateway.config.schema import Config
    from gateway.tools.prices.match import PriceChange

prices = typer.Typer(no_args_is_help=True, help="Compare the configured prices with a public catalogue: import.")

NAMED: Final = 3
"""Rises that the refusal names."""


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.add_typer(prices, name="prices")


def _factor(text: str) -> Decimal:
    try:
        factor = Decimal(text.removesuffix("x"))
    except InvalidOperation:
        factor = Decimal(0)
    if not (factor.is_finite() and factor >= 1):
        raise typer.BadParameter(f"`{text}` is not a factor; write it as in 2x or 1.1x")
    return factor


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
    most_rise: Annotated[
        str, typer.Option(metavar="FACTOR", help="Without --yes, refuse prices that rise by more than this.")
    ] = "2x",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Accept every rise.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how the configured prices differ from a catalogue, as a table.

    FILE is LiteLLM's `model_prices_and_context_window.json`. The configuration file is not changed.

    A model is found by the name that its channels' provider has for it, else by its own name. Prices are per million tokens. What
    the catalogue does not say stays as it is. The exit code is 1 where a price rises too far, or cannot be used.

    Examples: `gateway prices import model_prices_and_context_window.json`,
    `gateway prices import catalogue.json --model 'gpt-*' --as gpt-4o=azure/gpt-4o --most-rise 1.2x`
    """
    most, keys = _factor(most_rise), dict(map(_choice, chosen or ()))
    settings = configuration(config)
    names = _names(settings, model or ["*"], keys)
    result = compare(settings, catalogues.load(file), names, keys, costs=costs)
    rises = [] if yes else result.rises(most)
    if as_json:
        _print_json(result, rises)
    else:
        _print(result, len(names))
    for found, change in rises[:NAMED]:
        typer.echo(
            f"gateway: {_place(found.model, found.channel)}: {change.label} would rise {_factor_of(change)}", err=True
        )
    if rises:
        raise refuse(
            f"{len(rises)} prices would rise by more than {plain(most)}x: check them, "
            "then give --yes, or leave models out with --model"
        )
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


def _print_json(result: Comparison, rises: list[tuple[MatchedPrice, PriceChange]]) -> None:
    refused = {(found.model, found.channel, change) for found, change in rises}
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
                    "refused": (found.model, found.channel, change) in refused,
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

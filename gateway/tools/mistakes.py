"""What a configuration allows and is probably a mistake: names of models that no model has, and nothing that charges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Final

from gateway.catalogue import matches
from gateway.chain.chain import Chain
from gateway.config.schema import Config
from gateway.tools.exposure import Holding

MOST_NAMES: Final = 20
"""Names of a list in a sentence."""


def mistakes(config: Config, chain: Chain) -> Iterator[str]:
    """Yield a sentence for each probable mistake."""
    for name, group in config.groups.items():
        for pattern in unknown_models(config, group.models):
            yield f"groups.{name}.models: {about_unknown_model(config, pattern)}"
    if "default" not in config.groups:
        yield "groups: there is no `default`, the group of accounts that are created without --group"
    free = all(model.free for model in config.models.values())
    if not free and not any(isinstance(entry.plugin, Holding) for entry in chain.entries):
        yield "plugins: nothing charges, so every request is free: add `- use: quota` above model-routing"


def unknown_models(config: Config, names: Iterable[str]) -> list[str]:
    """Return the names and patterns that match no model. `*` matches also where there is none yet."""
    return [name for name in names if name != "*" and not any(matches([name], model) for model in config.models)]


def about_unknown_model(config: Config, name: str) -> str:
    """Return a sentence about a name that matches no model, with the model that it resembles, or else with all."""
    what = f"no model matches `{name}`" if "*" in name else f"there is no model `{name}`"
    if close := get_close_matches(name, config.models, 1):
        return f"{what}; did you mean `{close[0]}`?"
    return f"{what}; known: {listed(config.models) or 'none yet'}"


def listed(names: Iterable[str]) -> str:
    """Return names with commas between them, of many the first ones."""
    shown = list(names)
    more = f" and {len(shown) - MOST_NAMES} more" if len(shown) > MOST_NAMES else ""
    return ", ".join(shown[:MOST_NAMES]) + more

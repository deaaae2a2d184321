"""What is probably a mistake where models are named: names that are no model's, and lists that leave none."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.catalogue import matches
from gateway.config.schema import Config


def model_notes(config: Config, given: Sequence[str], *others: Sequence[str], whose: str) -> list[str]:
    """Return notes on names that are no model's, and where `given` and the other lists leave none. No names allow all."""
    from gateway.tools.mistakes import about_unknown_model, unknown_models

    notes = [about_unknown_model(config, name) for name in unknown_models(config, given)]
    lists = [names for names in (given, *others) if names]
    if config.models and not any(all(matches(names, model) for names in lists) for model in config.models):
        notes.append(f"{whose} may use no model now: its group, its account and the token allow none in common")
    return notes

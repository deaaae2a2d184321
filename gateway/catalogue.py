"""The catalogue: the models that callers may use, their prices, and the channels that serve them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import Final

from gateway.chat.prompt_bound import PartTokens
from gateway.chat.request import Body
from gateway.config.model import Model
from gateway.config.schema import Config, Group
from gateway.facts import Caller, Candidate
from gateway.prices import Price, price_of

MAX_ATTEMPTS: Final = 3
"""Upstream calls that one request may cause. Leases are computed from it."""

GLOB_CHARACTERS = re.compile(r"([?\[])")


class Catalogue:
    """The models, groups and channels of one configuration, indexed."""

    def __init__(self, config: Config) -> None:
        self.models = config.models
        self.groups = config.groups
        self.channels = config.channels
        self._candidates = {
            (name, group): self._tiers(name, model, config.groups[group].channels)
            for name, model in config.models.items()
            for group in config.groups
        }
        self.part_tokens = {
            name: PartTokens(model.image_tokens, model.audio_tokens, model.file_tokens)
            for name, model in config.models.items()
        }
        ratios: dict[str | None, Fraction] = {None: Fraction(1)}
        ratios.update((name, Fraction(group.ratio)) for name, group in config.groups.items())
        self._prices = {
            (name, group): price_of(model, ratio)
            for name, model in config.models.items()
            for group, ratio in ratios.items()
        }
        self._served = {
            (name, group)
            for (name, group), tiers in self._candidates.items()
            if tiers and matches(config.groups[group].models, name)
        }

    def group(self, name: str) -> Group | None:
        """Return the group, or None where the configuration has no such group."""
        return self.groups.get(name)

    def price(self, model: str, group: str) -> Price | None:
        """Return the price of `model` for members of `group`, or None where there is no such model."""
        return self._prices.get((model, group if group in self.groups else None))

    def allows(self, caller: Caller, model: str) -> bool:
        """Return whether the caller's group and account may use `model`. The token's own restriction is not checked."""
        served = (model, caller.group) in self._served
        return served and (caller.account_models is None or matches(caller.account_models, model))

    def visible(self, caller: Caller) -> list[str]:
        """Return the models that this caller may use, in the order of the file."""
        return [
            name
            for name in self.models
            if self.allows(caller, name) and (caller.token_models is None or matches(caller.token_models, name))
        ]

    def tiers(self, model: str, group: str) -> tuple[tuple[tuple[Candidate, int], ...], ...]:
        """Return the candidates for members of `group` with their weights, in tiers of equal priority, first tier first."""
        return self._candidates[model, group]

    def prompt_tokens_bound(self, body: Body) -> int:
        """Return an upper bound of the input tokens of a body for a model of the file, by the bounds of its encoded parts."""
        return body.prompt_tokens_bound(self.part_tokens[body.model])

    def attempts(self, model: str) -> int:
        """Return how many upstream calls one request for `model` may cause at most."""
        return min(MAX_ATTEMPTS, len(self.models[model].channels))

    @property
    def longest_s(self) -> float:
        """The longest time that a request may take, in seconds: every attempt is as slow as its channel allows."""
        timers = [channel.timers for channel in self.channels.values()]
        return max((max(each.total, MAX_ATTEMPTS * (2 * each.connect + each.first_byte)) for each in timers), default=0)

    def _tiers(self, name: str, model: Model, channels: Sequence[str]) -> tuple[tuple[tuple[Candidate, int], ...], ...]:
        tiers: dict[int, list[tuple[Candidate, int]]] = {}
        for serving in model.servings:
            if not matches(channels, serving.use):
                continue
            channel = self.channels[serving.use]
            cost = None if serving.cost is None else price_of(serving.cost)
            candidate = Candidate(serving.use, channel, serving.model or name, model.max_output_tokens, cost)
            tiers.setdefault(serving.priority, []).append((candidate, serving.weight))
        return tuple(tuple(tiers[priority]) for priority in sorted(tiers))


def matches(patterns: Sequence[str], name: str) -> bool:
    """Return whether `name` matches one of `patterns`, in which `*` matches anything. No other character is special."""
    return any(pattern == "*" or fnmatchcase(name, GLOB_CHARACTERS.sub(r"[\1]", pattern)) for pattern in patterns)

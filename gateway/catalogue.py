"""What callers may name, what it costs, and who serves it.

Money is integers: amounts in micros (a millionth of the currency unit), prices in micros per million tokens. The cost of
a request is rounded up once, at its end; there are no floats.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from fractions import Fraction

import msgspec

from gateway.chat.usage import Usage
from gateway.config.schema import Config, Group, Model
from gateway.facts import Caller, Candidate

MICROS = 1_000_000
"""Micros in one unit of the currency."""

SPECIAL = re.compile(r"([?\[])")


class Price(msgspec.Struct, frozen=True):
    """Micros per million tokens, and the ratio of the caller's group."""

    input: int
    output: int
    ratio: Fraction = Fraction(1)

    def cost(self, prompt_tokens: int, completion_tokens: int) -> int:
        """Micros for so many tokens, rounded up."""
        tokens_times_price = prompt_tokens * self.input + completion_tokens * self.output
        return -(-tokens_times_price * self.ratio.numerator // (1_000_000 * self.ratio.denominator))

    def of(self, usage: Usage) -> int:
        """Micros for what was used."""
        return self.cost(usage.prompt_tokens, usage.completion_tokens)

    def record(self) -> dict[str, object]:
        """The price as it goes into a usage record, so that a bill can be computed again."""
        return {"input": self.input, "output": self.output, "ratio": str(self.ratio)}


class Catalogue:
    """Models, groups and channels of one configuration, ready to be asked."""

    def __init__(self, config: Config) -> None:
        self.models = config.models
        self.groups = config.groups
        self.channels = config.channels
        self._candidates = {
            (name, group): self._tiers(name, model, config.groups[group].channels)
            for name, model in config.models.items()
            for group in config.groups
        }
        ratios: dict[str | None, Fraction] = {None: Fraction(1)}
        ratios.update((name, Fraction(group.ratio)) for name, group in config.groups.items())
        self._prices = {
            (name, group): Price(int((model.input or 0) * MICROS), int((model.output or 0) * MICROS), ratio)
            for name, model in config.models.items()
            for group, ratio in ratios.items()
        }
        self._served = {
            (name, group)
            for (name, group), tiers in self._candidates.items()
            if tiers and matches(config.groups[group].models, name)
        }

    def group(self, name: str) -> Group | None:
        """The group, or None where the configuration has no such one."""
        return self.groups.get(name)

    def price(self, model: str, group: str) -> Price | None:
        """What `model` costs members of `group`; None where there is no such model."""
        return self._prices.get((model, group if group in self.groups else None))

    def allows(self, caller: Caller, model: str) -> bool:
        """Whether the caller's group and account may use `model`. The token's own restriction is another question."""
        served = (model, caller.group) in self._served
        return served and (caller.account_models is None or matches(caller.account_models, model))

    def visible(self, caller: Caller) -> list[str]:
        """The models that this caller may use, in the order of the file."""
        return [
            name
            for name in self.models
            if self.allows(caller, name) and (caller.token_models is None or matches(caller.token_models, name))
        ]

    def tiers(self, model: str, group: str) -> tuple[tuple[tuple[Candidate, int], ...], ...]:
        """Who may serve members of `group`, with their weights, in tiers of equal priority, the first to try first."""
        return self._candidates[model, group]

    def attempts(self, model: str, most: int = 3) -> int:
        """How many upstream calls one request for `model` may lead to."""
        return min(most, len(self.models[model].channels))

    @property
    def longest_s(self) -> float:
        """Seconds that one request may take, where every attempt is as slow as its channel allows."""
        timers = [channel.timers for channel in self.channels.values()]
        return max((max(each.total, 3 * (2 * each.connect + each.first_byte)) for each in timers), default=0)

    def _tiers(self, name: str, model: Model, channels: Sequence[str]) -> tuple[tuple[tuple[Candidate, int], ...], ...]:
        tiers: dict[int, list[tuple[Candidate, int]]] = {}
        for serving in model.servings:
            if not matches(channels, serving.use):
                continue
            candidate = Candidate(serving.use, self.channels[serving.use], serving.model or name)
            tiers.setdefault(serving.priority, []).append((candidate, serving.weight))
        return tuple(tuple(tiers[priority]) for priority in sorted(tiers))


def matches(patterns: Sequence[str], name: str) -> bool:
    """Whether `name` is one of `patterns`, in which `*` stands for anything; no other character is special."""
    return any(pattern == "*" or fnmatchcase(name, SPECIAL.sub(r"[\1]", pattern)) for pattern in patterns)

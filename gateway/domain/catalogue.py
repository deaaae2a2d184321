"""The catalogue: the models that callers may use, their prices, and the channels that serve them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import Final, Literal

import msgspec

from gateway.base.amounts import MICROS
from gateway.chat.prompt import PartTokens
from gateway.chat.request import AUTO_TIER, Body, BodyRules
from gateway.config.model import AFFINITY, Model
from gateway.config.schema import Config, Group, GroupBudgets, GroupLimits, Port, time_zone
from gateway.domain.facts import NO_BUDGETS, NO_LIMITS, AccountLimits, Budgets, Caller, Candidate, with_defaults
from gateway.domain.prices import Price, price_of
from gateway.operations.operation import SERVED, Operation

MAX_ATTEMPTS: Final = 3
"""Upstream calls that one request may cause. Leases are computed from it."""

GLOB_CHARACTERS = re.compile(r"([?\[])")

Tiers = tuple[tuple[tuple[Candidate, int], ...], ...]
"""Candidates with their weights, in tiers of equal priority."""
Barrier = Literal["configuration", "group", "account", "token"]
"""What keeps a caller from using a model."""


class RoutingOptions(msgspec.Struct, frozen=True):
    """How requests for a model are routed beside weights and priorities: by what a conversation is known, and to which models a
    request falls back. `by_latency`: the channels of one priority are ordered by how soon they begin their answers.
    """

    affinity: tuple[str, ...] = ()
    fallback: tuple[str, ...] = ()
    by_latency: bool = False


class Catalogue:
    """The models, groups and channels of one configuration, indexed. `time_zone`: where the windows of budgets begin.

    `session_headers`: those by which requests name the session that a budget is for.
    """

    def __init__(self, config: Config) -> None:
        self.models = config.models
        self.aliases = config.aliases
        self._names = {
            model: [alias for alias, named in config.aliases.items() if named == model]
            for model in config.aliases.values()
        }
        self.groups = config.groups
        self.channels = config.channels
        self.time_zone = time_zone(config.time_zone)
        self.session_headers = config.session_headers
        self._budgets = {name: _budgets(group.budgets) for name, group in config.groups.items()}
        self._limits = {name: _limits(group.limits) for name, group in config.groups.items()}
        self._candidates = {
            (name, group): self._tiers(name, model, config.groups[group].channels)
            for name, model in config.models.items()
            for group in config.groups
        }
        self.routing = {name: options for name, model in config.models.items() if (options := self._options(model))}
        """The options of the models that have any."""
        self.part_tokens = {
            name: PartTokens(model.image_tokens, model.audio_tokens, model.file_tokens, self._added_tokens(model))
            for name, model in config.models.items()
        }
        self._serving: dict[tuple[str, str, Operation], Tiers] = {}
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
            if tiers and self.named_in(config.groups[group].models, name)
        }

    def group(self, name: str) -> Group | None:
        """Return the group, or None where the configuration has no such group."""
        return self.groups.get(name)

    def budgets(self, group: str, own: Budgets) -> Budgets:
        """Return the budgets of an account in `group`: its own, and the group's where it has none."""
        defaults = self._budgets.get(group, NO_BUDGETS)
        return own if defaults is NO_BUDGETS else with_defaults(own, defaults)

    def limits(self, group: str, own: AccountLimits) -> AccountLimits:
        """Return the limits of an account in `group`: its own, and the group's where it has none."""
        defaults = self._limits.get(group, NO_LIMITS)
        return own if defaults is NO_LIMITS else with_defaults(own, defaults)

    def price(self, model: str, group: str) -> Price | None:
        """Return the price of `model` for members of `group`, or None where there is no such model."""
        return self._prices.get((model, group if group in self.groups else None))

    def allows(self, caller: Caller, model: str) -> bool:
        """Return whether the caller may use `model`: its group, its account and the token that it sent."""
        return (
            (model, caller.group) in self._served
            and (caller.account_models is None or self.named_in(caller.account_models, model))
            and (caller.token_models is None or self.named_in(caller.token_models, model))
        )

    def why_not(self, caller: Caller, model: str) -> tuple[Barrier, str] | None:
        """Return what keeps the caller from using `model`, and in the operator's words why; None where it may use it."""
        if self.allows(caller, model):
            return None
        group = self.groups.get(caller.group)
        if model not in self.models:
            return "configuration", f"the configuration has no model `{model}`"
        if group is None or not self.named_in(group.models, model):
            return "group", f"group {caller.group} allows {_listed(group.models if group else ())}"
        if not self._candidates[model, caller.group]:
            return (
                "group",
                f"group {caller.group} may use channels {_listed(group.channels)}, and none of them serves {model}",
            )
        if caller.account_models is not None and not self.named_in(caller.account_models, model):
            return "account", f"account {caller.account} allows {_listed(caller.account_models)}"
        return "token", f"token {caller.token_id} allows {_listed(caller.token_models or ())}"

    def serves(self, group: str, model: str) -> bool:
        """Return whether members of `group` may use `model`, unless their account or token restricts them further."""
        return (model, group) in self._served

    def visible(self, caller: Caller) -> list[str]:
        """Return the models that this caller may use, in the order of the file, and their aliases."""
        usable = [name for name in self.models if self.allows(caller, name)]
        return usable + [alias for alias, model in self.aliases.items() if model in usable]

    def tiers(self, model: str, group: str, operation: Operation) -> Tiers:
        """Return the candidates for members of `group` with their weights, in tiers of equal priority, first tier first.

        None where the model has no price for what the operation is billed by.
        """
        found = self._serving.get((model, group, operation))
        if found is None:
            unit = "" if operation.wire is None else operation.wire.unit
            candidates = self._candidates[model, group] if self.models[model].has_price(unit) else ()
            tiers = (
                tuple(entry for entry in tier if operation.value in entry[0].channel.operations) for tier in candidates
            )
            found = self._serving[model, group, operation] = tuple(filter(None, tiers))
        return found

    def first_operation(self, model: str) -> Operation:
        """Return the first operation that a model is served on; chat completions where there is none."""
        model = self.aliases.get(model, model)
        return next(
            (
                each
                for each in SERVED
                for group in self.groups
                if model in self.models and self.tiers(model, group, each)
            ),
            Operation.CHAT,
        )

    def paths(self, model: str, group: str) -> list[str]:
        """Return the paths on which members of `group` may ask for `model`."""
        return [wire.path for operation, wire in SERVED.items() if self.tiers(model, group, operation)]

    def body_rules(self, port: Port) -> BodyRules:
        """Return the rules for the bodies that arrive at a port."""
        tiers = {name: tuple(model.service_tiers) for name, model in self.models.items() if model.service_tiers}
        tiers |= {alias: tiers[model] for alias, model in self.aliases.items() if model in tiers}
        return BodyRules(port.allow_non_streaming, frozenset(port.allow_fields), tiers, self.aliases)

    def can_serve(self, model: str, body: Body) -> bool:
        """Return whether a model can do what a request asks for: its window, its service tier, tools and pictures."""
        settings, tier = self.models[model], body.service_tier
        window = settings.context_length
        if window is not None and body.prompt_tokens_estimate + (body.max_tokens or 0) > window:
            return False
        if tier not in ("", AUTO_TIER, *(settings.service_tiers or ())):
            return False
        if "tools" in settings.cannot and not body.top.keys().isdisjoint(("tools", "functions")):
            return False
        return not ("pictures" in settings.cannot and body.prompt_bound.images)

    def is_longer(self, model: str, other: str) -> bool:
        """Return whether a model may take a prompt that is too long for another one."""
        window, others = self.models[model].context_length, self.models[other].context_length
        return window is None or others is None or window > others

    def prompt_tokens_bound(self, body: Body) -> int:
        """Return an upper bound of the input tokens of a body for a model of the file, by the bounds of its encoded parts."""
        return body.prompt_tokens_bound(self.part_tokens[body.model])

    def attempts(self, model: str) -> int:
        """Return how many upstream calls one request for `model` may cause at most."""
        names = (model, *self.models[model].fallback)
        return min(MAX_ATTEMPTS, sum(len(self.models[name].channels) for name in names))

    @property
    def longest_s(self) -> float:
        """The longest time that a request may take, in seconds: every attempt is as slow as its channel allows."""
        timers = [channel.timers for channel in self.channels.values()]
        return max((max(each.total, MAX_ATTEMPTS * (2 * each.connect + each.first_byte)) for each in timers), default=0)

    def named_in(self, patterns: Sequence[str], model: str) -> bool:
        """Return whether one of `patterns` names a model, or an alias of it."""
        return matches(patterns, model) or any(matches(patterns, name) for name in self._names.get(model, ()))

    def _options(self, model: Model) -> RoutingOptions | None:
        """Return the options of a model, None where nothing is to be chosen by them."""
        channels = {each.use: self.channels[each.use] for each in model.servings}
        one = len(channels) == 1 and all(len(channel.credentials) < 2 for channel in channels.values())
        told = any(channel.session_header for channel in channels.values())
        affinity = (AFFINITY if model.cached_input is not None else ()) if model.affinity is None else model.affinity
        options = RoutingOptions(() if one and not told else affinity, model.fallback, model.order == "latency")
        return None if options == RoutingOptions() else options

    def _added_tokens(self, model: Model) -> int:
        """Return the most tokens that the fields of one of the model's channels can add to a prompt."""
        added = [fields.tokens_bound() for each in model.servings if (fields := self.channels[each.use].fields)]
        return max(added, default=0)

    def _tiers(self, name: str, model: Model, channels: Sequence[str]) -> Tiers:
        tiers: dict[int, list[tuple[Candidate, int]]] = {}
        for serving in model.servings:
            if not matches(channels, serving.use):
                continue
            channel = self.channels[serving.use]
            cost = None if serving.cost is None else price_of(serving.cost, model=model)
            candidate = Candidate(serving.use, channel, serving.model or name, model.max_output_tokens, cost)
            tiers.setdefault(serving.priority, []).append((candidate, serving.weight))
        return tuple(tuple(tiers[priority]) for priority in sorted(tiers))


def _budgets(given: GroupBudgets) -> Budgets:
    fields = msgspec.structs.asdict(given)
    own = Budgets(**{name: int(each * MICROS) if isinstance(each, Decimal) else each for name, each in fields.items()})
    return NO_BUDGETS if own == NO_BUDGETS else own


def _limits(given: GroupLimits) -> AccountLimits:
    own = AccountLimits(**msgspec.structs.asdict(given))
    return NO_LIMITS if own == NO_LIMITS else own


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def matches(patterns: Sequence[str], name: str) -> bool:
    """Return whether `name` matches one of `patterns`, in which `*` matches anything. No other character is special."""
    return any(pattern == "*" or fnmatchcase(name, GLOB_CHARACTERS.sub(r"[\1]", pattern)) for pattern in patterns)

"""Inputs of actions as people give them: names, budgets and limits, and names of models.

Names are shown in lists and in the
audit log, where one must not look like another line. Of budgets and limits, a field that is left out stays as it is, and null
takes it away. Names that are no model's, and lists that leave no model, are probably mistakes, and are noted.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from gateway.base.errors import Refused
from gateway.base.ids import Clock
from gateway.base.text import is_one_line
from gateway.chain.services import Store
from gateway.config.schema import LARGEST_BUDGET, LARGEST_RATE, Config
from gateway.domain.budgets import Calendar
from gateway.domain.catalogue import Catalogue, matches
from gateway.domain.facts import IN_MICROS, AccountLimits, Budgets, Caller
from gateway.store.accounts import Account
from gateway.store.tokens import Token

Most = Annotated[int, msgspec.Meta(ge=1, le=LARGEST_BUDGET)] | None | UnsetType
Rate = Annotated[int, msgspec.Meta(ge=1, le=LARGEST_RATE)] | None | UnsetType


def check_name(name: str, param: str = "name") -> None:
    """Raise `Refused` (400) for a name with line ends or with characters that change how a line looks."""
    if not is_one_line(name):
        what = "A name" if param == "name" else "An external id"
        raise Refused(400, "invalid_request", f"{what} has no control characters and no line ends.", param=param)


class GivenBudgets(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename=IN_MICROS):
    """Budgets: amounts for each calendar day, week and month, in total and for each session; requests a day and in each session.

    Null takes one away.
    """

    day: Most = UNSET
    week: Most = UNSET
    month: Most = UNSET
    total: Most = UNSET
    requests: Most = UNSET
    session: Most = UNSET
    session_requests: Most = UNSET

    def applied(self, before: Budgets) -> Budgets:
        """Return the budgets after this change."""
        return msgspec.structs.replace(before, **changes(self, Budgets))


class GivenLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of requests and tokens a minute, and of requests at once. Null takes one away."""

    requests_per_minute: Rate = UNSET
    tokens_per_minute: Rate = UNSET
    concurrent: Rate = UNSET

    def applied(self, before: AccountLimits) -> AccountLimits:
        """Return the limits after this change."""
        return msgspec.structs.replace(before, **changes(self, AccountLimits))


def changes(
    given: GivenBudgets | GivenLimits | UnsetType | None, kind: type[Budgets | AccountLimits]
) -> dict[str, int | None]:
    """Return the fields that are given, with their values; null for all takes all of them away."""
    if given is UNSET:
        return {}
    if given is None:
        return dict.fromkeys(kind.__struct_fields__)
    return {name: value for name in given.__struct_fields__ if (value := getattr(given, name)) is not UNSET}


class BudgetWindow(msgspec.Struct, frozen=True):
    """What is charged and held in the current window of a budget. It has micros, or for a budget of requests their numbers.

    `ends_at`: when the window ends, in the configured time zone; null for a budget in total, or of a session.
    """

    of: Literal["account", "token"]
    window: Literal["day", "week", "month", "total", "session"]
    limit_micros: int | UnsetType = UNSET
    used_micros: int | UnsetType = UNSET
    left_micros: int | UnsetType = UNSET
    limit_requests: int | UnsetType = UNSET
    used_requests: int | UnsetType = UNSET
    left_requests: int | UnsetType = UNSET
    ends_at: str | None = None

    @property
    def left(self) -> int:
        """What is left of it: micros, or requests."""
        return self.left_requests if self.left_micros is UNSET else self.left_micros  # type: ignore[return-value]

    @property
    def name(self) -> str:
        """What people call it: `month`, or `requests a day`."""
        return self.window if self.left_requests is UNSET else f"requests a {self.window}"

    @property
    def share(self) -> float:
        """The part of it that is used."""
        used, limit = (
            (self.used_requests, self.limit_requests)
            if self.left_micros is UNSET
            else (self.used_micros, self.limit_micros)
        )
        return used / limit  # type: ignore[operator]


async def budget_use(store: Store, catalogue: Catalogue, account: Account) -> list[BudgetWindow]:
    """Return what each budget of an account counts now: those of its own, and those of its group."""
    budgets = catalogue.budgets(account.group, account.budgets)
    return await _use(store, catalogue.time_zone, Caller(account.id, "", account.group, budgets=budgets))


async def use_of_token(store: Store, zone: tzinfo, token: Token) -> list[BudgetWindow]:
    """Return what each budget of a token counts now."""
    account = token.id.rpartition("-")[0]
    return await _use(
        store, zone, Caller(account, token.id, "", token_budgets=token.budgets, counts_as=token.counts_as)
    )


async def _use(store: Store, zone: tzinfo, caller: Caller) -> list[BudgetWindow]:
    calendar = Calendar(zone, Clock())
    uses = await store.wallet.budgets(caller.account, calendar.budgets(caller))
    return [msgspec.convert(calendar.report(use), BudgetWindow) for use in uses]


def model_notes(config: Config, given: Sequence[str], *others: Sequence[str], whose: str) -> list[str]:
    """Return notes on names that are no model's, and where `given` and the other lists leave none. No names allow all."""
    from gateway.chain.checks import about_unknown_model, unknown_models

    notes = [about_unknown_model(config, name) for name in unknown_models(config, given)]
    lists = [names for names in (given, *others) if names]
    if config.models and not any(all(matches(names, model) for names in lists) for model in config.models):
        notes.append(f"{whose} may use no model now: its group, its account and the token allow none in common")
    return notes

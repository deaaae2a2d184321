"""The operation on user groups: what their accounts may use. The file rules: nothing is changed here."""

from __future__ import annotations

import msgspec

from gateway.catalogue import Catalogue
from gateway.config.schema import Group
from gateway.facts import NO_BUDGETS, NO_LIMITS, AccountLimits, Budgets
from gateway.management.desk import LocalDesk
from gateway.management.operation import Scope, operation
from gateway.management.page import Page


class GroupServed(msgspec.Struct, frozen=True):
    """A user group: what its accounts may use, and the ratio of their prices.

    `models` and `channels` are names and `*` patterns, as the file has them; `served` are the models that they come to. `budgets`
    and `limits` are for each account that has none of its own.
    """

    name: str
    enabled: bool
    ratio: str
    models: list[str]
    channels: list[str]
    served: list[str]
    budgets: Budgets
    limits: AccountLimits


@operation("GET", "/groups", Scope.READ)
async def list_(desk: LocalDesk) -> Page[GroupServed]:
    """List the user groups, in the order of the file."""
    catalogue = Catalogue(desk.config)
    return Page([_described(catalogue, name, group) for name, group in catalogue.groups.items()])


def _described(catalogue: Catalogue, name: str, group: Group) -> GroupServed:
    return GroupServed(
        name,
        group.enabled,
        f"{group.ratio}",
        group.models,
        group.channels,
        [model for model in catalogue.models if catalogue.serves(name, model)],
        catalogue.budgets(name, NO_BUDGETS),
        catalogue.limits(name, NO_LIMITS),
    )

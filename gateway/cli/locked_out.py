"""Whom a new configuration would lock out: accounts and tokens of the store that may use a model now, and none then."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import msgspec

from gateway.chain.services import Store
from gateway.cli.common import store_of
from gateway.config.schema import Config, Group
from gateway.domain.catalogue import Catalogue
from gateway.domain.facts import Caller
from gateway.store.accounts import AccountStatus

Terms = tuple[str, tuple[str, ...], tuple[str, ...]]
"""What decides which models a caller may use: the group of its account, and the models of its account and of its token."""


class LockedOut(msgspec.Struct):
    """The ids of those that are locked out: accounts by a group that is not served any more, other accounts, tokens of others."""

    by_group: dict[str, list[str]] = {}
    accounts: list[str] = []
    tokens: list[str] = []


def may_lock_out(before: Config, after: Config) -> bool:
    """Return whether the change takes a model or a group away, or changes what a group may use."""
    if not before.models.keys() <= after.models.keys():
        return True
    return any(_allowed(group) != _allowed(after.groups.get(name)) for name, group in before.groups.items())


async def locked_out(before: Config, after: Config) -> LockedOut:
    """Return whom a change of the configuration would lock out. Raises `GatewayError` where the store cannot be read."""
    async with store_of(before) as store:
        return await _in_store(store, Catalogue(before), Catalogue(after))


async def _in_store(store: Store, before: Catalogue, after: Catalogue) -> LockedOut:
    found, groups = LockedOut(), {}

    @cache
    def loses_all(terms: Terms) -> bool:
        return _may_use_any(before, terms) and not _may_use_any(after, terms)

    async for account in store.accounts.all():
        if account.status is AccountStatus.CLOSED:
            continue
        if not loses_all((account.group, account.models, ())):
            groups[account.id] = (account.group, account.models)
        elif _is_served(after, account.group):
            found.accounts.append(account.id)
        else:
            found.by_group.setdefault(account.group, []).append(account.id)
    async for token in store.tokens.all():
        terms = groups.get(token.id.rpartition("-")[0])
        if token.models and terms is not None and loses_all((*terms, token.models)):
            found.tokens.append(token.id)
    return found


def _allowed(group: Group | None) -> object:
    return group and (group.enabled, group.models, group.channels)


def _may_use_any(catalogue: Catalogue, terms: Terms) -> bool:
    group, of_account, of_token = terms
    caller = Caller("", "", group, account_models=of_account or None, token_models=of_token or None)
    return _is_served(catalogue, group) and bool(catalogue.visible(caller))


def _is_served(catalogue: Catalogue, name: str) -> bool:
    group = catalogue.group(name)
    return group is not None and group.enabled


def named(ids: Sequence[str], most: int = 5) -> str:
    """Return ids with commas between them, of many the first ones."""
    return ", ".join(sorted(ids)[:most]) + (", ..." if len(ids) > most else "")

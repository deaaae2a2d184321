"""Operations on accounts: create, list, read, change, close."""

from __future__ import annotations

from typing import Annotated

import msgspec

from gateway.errors import Refused
from gateway.facts import NO_BUDGETS, Budgets
from gateway.management.desk import LocalDesk
from gateway.management.operation import Scope, operation
from gateway.management.page import DEFAULT_PAGE, After, Limit, Page
from gateway.store.accounts import Account, unknown

AccountId = Annotated[str, msgspec.Meta(pattern="^[a-z0-9]{3,32}$", description="The account's id.")]


class NewAccount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An account to be created."""

    id: AccountId
    group: str = "default"
    credit_line_micros: Annotated[int, msgspec.Meta(ge=0)] = 0
    budgets: Budgets = NO_BUDGETS
    external_id: str = ""


class Accounts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which accounts are listed."""

    limit: Limit = DEFAULT_PAGE
    after: After = ""


@operation("POST", "/accounts", Scope.ACCOUNTS, status=201)
async def create(desk: LocalDesk, body: NewAccount) -> Account:
    """Create an active account with a balance of zero.

    409 `exists` where there is an account of this id, or one with this external id.
    """
    if body.group not in desk.config.groups:
        raise Refused(400, "invalid_request", f"There is no group `{body.group}` in the configuration.", param="group")
    async with desk.store.external_ids.claimed(body.id, body.external_id):
        desk.change.after = account = await desk.store.accounts.create(
            body.id,
            body.group,
            body.credit_line_micros,
            budgets=body.budgets,
            external_id=body.external_id,
        )
    return account


@operation("GET", "/accounts", Scope.READ)
async def list_(desk: LocalDesk, query: Accounts) -> Page[Account]:
    """List accounts in the order of their ids."""
    found = sorted(
        [each async for each in desk.store.accounts.all() if each.id > query.after], key=lambda each: each.id
    )
    shown = found[: query.limit]
    more = len(found) > len(shown)
    return Page(shown, more, shown[-1].id if more else None)


@operation("GET", "/accounts/{account}", Scope.READ)
async def read(desk: LocalDesk, account: str) -> Account:
    """Return an account: status, balance, what is held, limits."""
    found = await desk.store.accounts.get(account)
    if found is None:
        raise unknown(account)
    return found

"""Operations on accounts: create, list, read, change, close."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from itertools import islice
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from gateway.admin.actions.action import DEFAULT_PAGE, After, LongLimit, Page, Scope, action
from gateway.admin.actions.inputs import BudgetWindow, GivenBudgets, GivenLimits, budget_use, check_name, model_notes
from gateway.admin.actions.local import LocalClient
from gateway.base.errors import Refused
from gateway.base.ids import new_id
from gateway.config.schema import ACCOUNT_ID
from gateway.domain.catalogue import Catalogue
from gateway.domain.facts import NO_BUDGETS, NO_LIMITS
from gateway.store.accounts import (
    MAX_AMOUNT,
    Account,
    AccountChanged,
    AccountEntry,
    AccountError,
    AccountStatus,
    unknown,
)

AccountId = Annotated[
    str,
    msgspec.Meta(
        description="The account's id: 3 to 32 characters, a-z and 0-9. One is made where none is given.",
        extra_json_schema={"pattern": "^([a-z0-9]{3,32})?$"},  # the store checks it, in words
    ),
]
Micros = Annotated[int, msgspec.Meta(ge=0, le=MAX_AMOUNT)]
ModelName = Annotated[str, msgspec.Meta(pattern="^[^,]+$", max_length=256)]
Models = Annotated[
    tuple[ModelName, ...], msgspec.Meta(max_length=256, description="Names and `*` patterns; none for no restriction.")
]
ExternalId = Annotated[
    str, msgspec.Meta(max_length=200, description="What the account is called elsewhere: unique, at most 200 bytes.")
]
AccountName = Annotated[str, msgspec.Meta(max_length=200, description="To recognise the account by.")]
Metadata = Annotated[
    dict[Annotated[str, msgspec.Meta(min_length=1, max_length=40)], Annotated[str, msgspec.Meta(max_length=500)]],
    msgspec.Meta(max_length=20, description="Texts of one's own: up to 20 names of 40 characters, with values of 500."),
]
Searched = Annotated[str, msgspec.Meta(max_length=200)]


class NewAccount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An account to be created."""

    id: AccountId = ""
    group: str = "default"
    credit_line_micros: Micros = 0
    models: Models = ()
    limits: GivenLimits = GivenLimits()
    budgets: GivenBudgets = GivenBudgets()
    external_id: ExternalId = ""
    name: AccountName = ""
    metadata: Metadata = {}


class AccountChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be changed of an account. What is left out stays as it is; null takes it away.

    Of `limits` and `budgets`, too, those that are left out stay as they are. `metadata` is replaced as a whole.
    """

    status: Literal["active", "suspended"] | UnsetType = UNSET
    group: str | UnsetType = UNSET
    credit_line_micros: Micros | UnsetType | None = UNSET
    models: Models | UnsetType | None = UNSET
    limits: GivenLimits | UnsetType | None = UNSET
    budgets: GivenBudgets | UnsetType | None = UNSET
    external_id: ExternalId | UnsetType | None = UNSET
    name: AccountName | UnsetType | None = UNSET
    metadata: Metadata | UnsetType | None = UNSET


class AccountQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which accounts are listed: those to which all of it applies. `q` is a part of the id, of the external id or of
    the name."""

    limit: LongLimit = DEFAULT_PAGE
    after: After = ""
    status: AccountStatus | None = None
    group: str | None = None
    external_id: str | None = None
    q: Searched = ""


class ListedAccount(Account, frozen=True, kw_only=True):
    """An account, and what each budget of it and of its group counts now."""

    budget_use: list[BudgetWindow]

    @property
    def fullest(self) -> BudgetWindow | None:
        """The budget of which most is used."""
        return max(self.budget_use, key=lambda use: use.share, default=None)


class AccountNow(Account, frozen=True, kw_only=True):
    """An account with what it may spend now, and what each budget of it and of its group counts.

    `may_spend_micros`: the balance and the credit line without what is held, as far as its budgets leave it; null where no request
    of it is served, since it is suspended or closed, or its group is not served. `currency`: of all amounts, as the file says.
    """

    may_spend_micros: int | None
    budget_use: list[BudgetWindow]
    currency: str


class ChangedAccount(Account, frozen=True, kw_only=True):
    """An account as it is now. `notes`: what is probably a mistake of what was given, in words."""

    notes: tuple[str, ...] = ()


@action("POST", "/accounts", Scope.ACCOUNTS, status=201)
async def create(client: LocalClient, body: NewAccount) -> ChangedAccount:
    """Create an active account with a balance of zero.

    404 where the configuration has no such group; 409 `exists` where there is an account of this id, or another one with this
    external id. A credit line needs the scope `money`, too.
    """
    if body.credit_line_micros and Scope.MONEY not in client.actor.scopes:
        raise _no_credit_line()
    account_id = body.id or _made_id(client)
    if not ACCOUNT_ID.fullmatch(account_id):
        text = f"`{body.id[:64]}` is not an account id: use 3 to 32 of a-z and 0-9."
        raise Refused(400, "invalid_request", text, param="id")
    _check_group(client, body.group)
    check_name(body.external_id, "external_id")
    check_name(body.name)
    async with client.store.external_ids.claimed(account_id, body.external_id):
        client.change.after = account = await client.store.accounts.create(
            account_id,
            body.group,
            body.credit_line_micros,
            models=body.models,
            limits=body.limits.applied(NO_LIMITS),
            budgets=body.budgets.applied(NO_BUDGETS),
            external_id=body.external_id,
            name=body.name,
            metadata=body.metadata,
            key=client.key,
        )
    return _with_notes(client, account, body.models) if body.models else ChangedAccount(**asdict(account))


@action("GET", "/accounts", Scope.READ)
async def list_(client: LocalClient, query: AccountQuery) -> Page[ListedAccount]:
    """List accounts in the order of their ids."""
    store, found = client.store, list[str]()
    if query.external_id is not None:
        owner = await store.external_ids.find(query.external_id)
        found = [owner] if owner is not None and owner > query.after else []
    elif query.status is None and query.group is None and not query.q:
        found = list((await store.directory.ids(query.after))[: query.limit + 1])
    else:
        entries = await store.directory.entries(query.after)
        found = [each.id for each in islice(filter(partial(_selects, query), entries), query.limit + 1)]
    accounts = await store.accounts.several(found[: query.limit])
    shown = [each for each in accounts if _selects(query, AccountEntry.of(each))]
    catalogue = Catalogue(client.config)
    uses = await asyncio.gather(*(budget_use(store, catalogue, each) for each in shown))
    listed = [ListedAccount(**asdict(each), budget_use=used) for each, used in zip(shown, uses, strict=True)]
    more = len(found) > query.limit
    return Page(listed, more, found[query.limit - 1] if more else None)


@action("GET", "/accounts/{account}", Scope.READ)
async def read(client: LocalClient, account: str) -> AccountNow:
    """Return an account with what it may spend now, and how much of each budget is used."""
    found = await existing(client, account)
    catalogue = Catalogue(client.config)
    uses = await budget_use(client.store, catalogue, found)
    group = catalogue.group(found.group)
    served = found.status is AccountStatus.ACTIVE and group is not None and group.enabled
    spendable = may_spend(found, uses) if served else None
    return AccountNow(**asdict(found), may_spend_micros=spendable, budget_use=uses, currency=client.config.currency)


@action("PATCH", "/accounts/{account}", Scope.ACCOUNTS)
async def change(client: LocalClient, account: str, body: AccountChange) -> ChangedAccount:
    """Change an account. A suspended one is served no more: its requests in progress end, charged for what they used.

    404 where there is no such account or group, 400 where the account is closed, 409 `exists` where another account has this
    external id. To change the credit line needs the scope `money`, too.
    """
    if body.group is not UNSET:
        _check_group(client, body.group)
    check_name(body.name or "")
    client.change.before = before = await existing(client, account)
    if body.credit_line_micros is not UNSET and Scope.MONEY not in client.actor.scopes:
        if (body.credit_line_micros or 0) != before.credit_line_micros:
            raise _no_credit_line()
        body = msgspec.structs.replace(
            body, credit_line_micros=UNSET
        )  # not written: it may have been lowered meanwhile
    if body.external_id is UNSET:
        after = await _changed(client, account, body, None)
    else:
        external_id = body.external_id or ""
        check_name(external_id, "external_id")
        async with client.store.external_ids.claimed(account, external_id):
            after = await _changed(client, account, body, external_id)
    client.change.after = after
    if body.models is UNSET and body.group is UNSET:
        return ChangedAccount(**asdict(after))
    return _with_notes(client, after, () if body.models is UNSET else body.models or ())


@action("POST", "/accounts/{account}/close", Scope.ACCOUNTS)
async def close(client: LocalClient, account: str) -> Account:
    """Close an account for good. Its requests in progress end, charged for what they used; its history is kept."""
    client.change.before = before = await existing(client, account)
    if before.status is AccountStatus.CLOSED:
        return before
    client.change.after = after = await client.store.accounts.change(account, status=AccountStatus.CLOSED)
    return after


async def existing(client: LocalClient, account: str) -> Account:
    """Return an account. Raises `AccountError` where there is none."""
    found = await client.store.accounts.get(account)
    if found is None:
        raise unknown(account)
    return found


def _made_id(client: LocalClient) -> str:
    """Return an id for a new account: the same one where the request is repeated with its key."""
    return f"a{sha256((client.key or new_id()).encode()).hexdigest()[:15]}"


def _no_credit_line() -> Refused:
    return Refused(403, "scope_missing", "A credit line needs the scope `money`, too.", param="credit_line_micros")


def _check_group(client: LocalClient, group: str) -> None:
    groups = client.config.groups
    if group not in groups:
        has = ", ".join(groups) or "none yet"
        raise AccountError(f"the configuration has no group `{group}`; it has: {has}").of_kind("not_found")


def _with_notes(client: LocalClient, account: Account, given: Sequence[str]) -> ChangedAccount:
    group = client.config.groups.get(account.group)
    allowed = group.models if group else ()
    notes = model_notes(client.config, given, account.models, allowed, whose=f"`{account.id}`")
    return ChangedAccount(**asdict(account), notes=tuple(notes))


def _selects(query: AccountQuery, entry: AccountEntry) -> bool:
    return (
        query.status in (None, entry.status) and query.group in (None, entry.group) and query.q.casefold() in entry.text
    )


def may_spend(account: Account, uses: list[BudgetWindow]) -> int:
    """Return what is left of the balance and the credit line without what is held, as far as budgets leave it."""
    available = account.balance_micros - account.held_micros + account.credit_line_micros
    left = [use.left for use in uses if use.limit_micros is not UNSET or use.left == 0]
    return max(0, min([available, *left]))


async def _changed(client: LocalClient, account: str, body: AccountChange, external_id: str | None) -> Account:
    """Change an account. Of limits and budgets others may change another one meanwhile: then this is done again, on theirs."""
    limits, budgets = body.limits, body.budgets
    while True:
        mark = await client.store.accounts.mark(account) if limits or budgets else b""
        before = await existing(client, account)
        try:
            return await client.store.accounts.change(
                account,
                status=None if body.status is UNSET else AccountStatus(body.status),
                group=None if body.group is UNSET else body.group,
                credit_line=None if body.credit_line_micros is UNSET else body.credit_line_micros or 0,
                models=None if body.models is UNSET else body.models or (),
                limits=None if limits is UNSET else limits.applied(before.limits) if limits else NO_LIMITS,
                budgets=None if budgets is UNSET else budgets.applied(before.budgets) if budgets else NO_BUDGETS,
                external_id=external_id,
                name=None if body.name is UNSET else body.name or "",
                metadata=None if body.metadata is UNSET else body.metadata or {},
                mark=mark,
            )
        except AccountChanged:
            continue

"""Operations on tokens: create, list, read, change, disable, enable, delete, rotate."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from gateway.admin.actions.accounts import Models, existing
from gateway.admin.actions.action import DEFAULT_PAGE, After, LongLimit, Page, Scope, action
from gateway.admin.actions.inputs import (
    BudgetWindow,
    GivenBudgets,
    GivenLimits,
    changes,
    check_name,
    model_notes,
    use_of_token,
)
from gateway.admin.actions.local import LocalClient
from gateway.base.errors import Refused
from gateway.config.schema import time_zone
from gateway.domain.facts import NO_BUDGETS, NO_LIMITS, AccountLimits, Budgets
from gateway.store.token_format import short_id_of
from gateway.store.tokens import MadeBefore, Token, TokenStatus

LONGEST_OVERLAP_S: Final = 365 * 86_400
LATEST_S: Final = 221_845_392_000
"""The first moment of the year 9000."""
AT_ONCE: Final = 200
"""Accounts whose tokens are read at once."""

Expiry = Annotated[
    datetime, msgspec.Meta(tz=True, description="When the token expires, in RFC 3339, to the second; null for never.")
]
Name = Annotated[str, msgspec.Meta(max_length=200, description="To recognise the token by.")]
Addresses = Annotated[
    tuple[str, ...], msgspec.Meta(max_length=256, description="Addresses and networks, as in 10.0.0.0/8; none for any.")
]


class NewToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token to be created. What is left out does not restrict it."""

    name: Name = ""
    expires_at: Expiry | None = None
    models: Models = ()
    addresses: Addresses = ()
    budgets: GivenBudgets = GivenBudgets()
    limits: GivenLimits = GivenLimits()


class TokenChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be changed of a token. What is left out stays as it is; null takes it away.

    Of `limits` and `budgets`, too, those that are left out stay as they are.
    """

    name: Name | UnsetType | None = UNSET
    expires_at: Expiry | UnsetType | None = UNSET
    models: Models | UnsetType | None = UNSET
    addresses: Addresses | UnsetType | None = UNSET
    budgets: GivenBudgets | UnsetType | None = UNSET
    limits: GivenLimits | UnsetType | None = UNSET


class Rotation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a token is replaced. `overlap_s`: for how long the old one is still accepted.

    `expires_at`: null for that of the old one.
    """

    overlap_s: Annotated[int, msgspec.Meta(ge=0, le=LONGEST_OVERLAP_S)]
    expires_at: Expiry | None = None


class TokenList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which tokens are listed."""

    limit: LongLimit = DEFAULT_PAGE
    after: After = ""


class ShownToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token without its secret. `state`: whether it is accepted now. Times are UTC; `last_used` is rounded down to the hour.

    `models` are names and `*` patterns, `addresses` networks such as `10.0.0.0/8`; empty means no restriction. `budgets` and
    `limits` apply in addition to those of the account. `replaces` and `replaced_by` are the ids of its predecessor and its
    successor, `counts_as` that of the first token of such a row, under which the budgets and limits of all of them count.
    """

    id: str
    name: str
    status: TokenStatus
    state: str
    created_at: datetime
    expires_at: datetime | None
    last_used: datetime | None
    models: tuple[str, ...]
    addresses: tuple[str, ...]
    budgets: Budgets
    limits: AccountLimits
    replaces: str
    replaced_by: str
    counts_as: str


def fields_of(token: Token) -> dict[str, Any]:
    """Return a token's fields as they are shown."""
    fields = {name: getattr(token, name) for name in ShownToken.__struct_fields__}
    return fields | {name: at(fields[name]) for name in ("created_at", "expires_at", "last_used")}


def shown(token: Token) -> ShownToken:
    """Return a token as it is shown."""
    return ShownToken(**fields_of(token))


def at(seconds: int | None) -> datetime | None:
    """Return a time that is kept in seconds since 1970."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def seconds(moment: datetime | None) -> int | None:
    """Return a time as it is kept. Raises `Refused` (400) for one that no token has."""
    if moment is None:
        return None
    if not 0 <= (kept := int(moment.timestamp())) <= LATEST_S:
        raise Refused(400, "invalid_request", "`expires_at`: give a time from 1970 to 8999.", param="expires_at")
    return kept


class MadeToken(ShownToken, frozen=True, kw_only=True):
    """A new token. `token` is its text, which is shown once: null where a request that is repeated finds it made before.

    `notes`: what is probably a mistake of what was given, in words.
    """

    token: str | None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<MadeToken {self.id}>"


class ChangedToken(ShownToken, frozen=True, kw_only=True):
    """A token as it is now. `notes`: what is probably a mistake of what was given, in words."""

    notes: tuple[str, ...] = ()


class TokenNow(ShownToken, frozen=True, kw_only=True):
    """A token with what each budget of its own counts now."""

    budget_use: list[BudgetWindow]


@action("POST", "/accounts/{account}/tokens", Scope.TOKENS, status=201, shown_once="token")
async def create(client: LocalClient, account: str, body: NewToken) -> MadeToken:
    """Create a token. Its text is in the answer and cannot be shown again.

    Repeated with the same `Idempotency-Key`, it makes no second one: the answer has the token's id, and null for its text.
    """
    check_name(body.name)
    try:
        made: Token = await client.store.tokens.create(
            account,
            name=body.name,
            expires_at=seconds(body.expires_at),
            models=body.models,
            addresses=body.addresses,
            budgets=body.budgets.applied(NO_BUDGETS),
            limits=body.limits.applied(NO_LIMITS),
            short_id=_short_id(client, f"create {account}"),
        )
    except MadeBefore as error:
        made, client.change.is_repeated = error.token, True
    return _made(client, made, await _notes(client, made) if body.models else ())


@action("GET", "/accounts/{account}/tokens", Scope.READ)
async def list_(client: LocalClient, account: str, query: TokenList) -> Page[ShownToken]:
    """List the tokens of an account, the oldest first."""
    await existing(client, account)
    found = await client.store.tokens.all_of(account)
    return _page([token for token in found if not query.after or _place(token) > _place_in(query.after)], query.limit)


@action("GET", "/tokens", Scope.READ)
async def list_all(client: LocalClient, query: TokenList) -> Page[ShownToken]:
    """List the tokens of all accounts, in the order of the accounts' ids, the oldest first."""
    found: list[Token] = []
    begun = ""
    if query.after:
        place = _place_in(query.after)
        begun = place[1].rpartition("-")[0]
        found = [token for token in await client.store.tokens.all_of(begun) if _place(token) > place]
    accounts = await client.store.directory.ids(begun)
    for first in range(0, len(accounts), AT_ONCE):
        if len(found) > query.limit:
            break
        for tokens in await client.store.tokens.of_several(accounts[first : first + AT_ONCE]):
            found += tokens
    return _page(found, query.limit)


@action("GET", "/tokens/{token}", Scope.READ)
async def read(client: LocalClient, token: str) -> TokenNow:
    """Return a token, and what each budget of its own counts now. Its text is not known to the gateway."""
    found = await client.store.tokens.get(token)
    use = await use_of_token(client.store, time_zone(client.config.time_zone), found)
    return TokenNow(**fields_of(found), budget_use=use)


@action("PATCH", "/tokens/{token}", Scope.TOKENS)
async def change(client: LocalClient, token: str, body: TokenChange) -> ChangedToken:
    """Change a token, from its next request on."""
    if body.name:
        check_name(body.name)
    before = await client.store.tokens.get(token)
    client.change.before = shown(before)
    after = await client.store.tokens.change(
        before.id,
        name=None if body.name is UNSET else body.name or "",
        expires_at=UNSET if body.expires_at is UNSET else seconds(body.expires_at),
        models=None if body.models is UNSET else body.models or (),
        addresses=None if body.addresses is UNSET else body.addresses or (),
        budgets=changes(body.budgets, Budgets),
        limits=changes(body.limits, AccountLimits),
    )
    client.change.after = shown(after)
    notes = await _notes(client, after) if body.models else ()
    return ChangedToken(**fields_of(after), notes=tuple(notes))


@action("POST", "/tokens/{token}/disable", Scope.TOKENS)
async def disable(client: LocalClient, token: str) -> ShownToken:
    """Refuse requests with a token until it is enabled. Those in progress end within two seconds, charged for what they used."""
    return await _set_status(client, token, TokenStatus.DISABLED)


@action("POST", "/tokens/{token}/enable", Scope.TOKENS)
async def enable(client: LocalClient, token: str) -> ShownToken:
    """Accept a disabled token again."""
    return await _set_status(client, token, TokenStatus.ACTIVE)


@action("DELETE", "/tokens/{token}", Scope.TOKENS, status=204)
async def delete(client: LocalClient, token: str) -> None:
    """Delete a token for good. Its requests in progress end as with `disable`."""
    client.change.before = shown(await client.store.tokens.delete(token))


@action("POST", "/tokens/{token}/rotate", Scope.TOKENS, status=201, shown_once="token")
async def rotate(client: LocalClient, token: str, body: Rotation) -> MadeToken:
    """Replace a token by a new one with the same settings, whose text is in the answer and cannot be shown again.

    Both count in the same budgets and limits. With an overlap of 0, requests in progress with the old one end as with `disable`.
    Repeated with the same `Idempotency-Key`, it makes no second one: the answer has the token's id, and null for its text.
    """
    client.change.before = shown(await client.store.tokens.get(token))
    try:
        made: Token = await client.store.tokens.rotate(
            token, body.overlap_s, seconds(body.expires_at), short_id=_short_id(client, f"rotate {token}")
        )
    except MadeBefore as error:
        made, client.change.is_repeated = error.token, True
    return _made(client, made)


async def _set_status(client: LocalClient, token: str, status: TokenStatus) -> ShownToken:
    client.change.before = shown(await client.store.tokens.get(token))
    client.change.after = after = shown(await client.store.tokens.set_status(token, status))
    return after


def _short_id(client: LocalClient, what: str) -> str:
    """Return the id of the token that a repeated request makes, or an empty text where there is no key to know it by."""
    return short_id_of(f"{client.key} {what}") if client.key else ""


def _made(client: LocalClient, made: Token, notes: Sequence[str] = ()) -> MadeToken:
    client.change.after = shown(made)
    return MadeToken(**fields_of(made), token=getattr(made, "token", None), notes=tuple(notes))


async def _notes(client: LocalClient, token: Token) -> list[str]:
    """Return notes on models of a token that there are not, or that its account may not use."""
    account = await existing(client, token.id.rpartition("-")[0])
    group = client.config.groups.get(account.group)
    others = (account.models, group.models if group else ())
    return model_notes(client.config, token.models, *others, whose=f"`{token.id}`")


def _page(found: list[Token], limit: int) -> Page[ShownToken]:
    more = len(found) > limit
    last = found[limit - 1] if more else None
    return Page(list(map(shown, found[:limit])), more, f"{last.created_at}:{last.id}" if last else None)


def _place(token: Token) -> tuple[int, str]:
    return token.created_at, token.id


def _place_in(after: str) -> tuple[int, str]:
    created, _, token = after.partition(":")
    if not (created.isascii() and created.isdecimal() and token.isascii()):
        raise Refused(400, "invalid_request", "`after` is the `next` of the answer before.", param="after")
    return int(created), token

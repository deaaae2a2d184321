"""Operations on tokens: create, list, read, change, disable, enable, delete, rotate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, UnsetType

from gateway.budgets import Calendar
from gateway.config.time_zone import time_zone
from gateway.errors import Refused
from gateway.facts import NO_BUDGETS, NO_LIMITS, AccountLimits, Budgets
from gateway.management.accounts import Models, existing
from gateway.management.allowance import BudgetUse, GivenBudgets, GivenLimits, changes, use_of_token
from gateway.management.desk import LocalDesk
from gateway.management.model_notes import model_notes
from gateway.management.names import check_name
from gateway.management.operation import Scope, operation
from gateway.management.page import DEFAULT_PAGE, After, LongLimit, Page
from gateway.services import SystemClock
from gateway.store.known_tokens import Token, TokenStatus
from gateway.store.token_format import short_id_of
from gateway.store.tokens import MadeBefore

LONGEST_OVERLAP_S: Final = 365 * 86_400
LATEST_S: Final = 221_845_392_000
"""The first moment of the year 9000."""
AT_ONCE: Final = 200
"""Accounts whose tokens are read at once."""

Expiry = Annotated[
    int, msgspec.Meta(ge=0, le=LATEST_S, description="When the token expires, in seconds since 1970; null for never.")
]
Name = Annotated[str, msgspec.Meta(max_length=200, description="To recognise the token by.")]
Addresses = Annotated[
    tuple[str, ...],
    msgspec.Meta(max_length=256, description="Addresses and networks, as in 10.0.0.0/8; none for any."),
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


class MadeToken(Token, frozen=True, kw_only=True):
    """A new token. `token` is its text, which is shown once: null where a request that is repeated finds it made before.

    `notes`: what is probably a mistake of what was given, in words.
    """

    token: str | None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<MadeToken {self.id}>"


class ChangedToken(Token, frozen=True, kw_only=True):
    """A token as it is now. `notes`: what is probably a mistake of what was given, in words."""

    notes: tuple[str, ...] = ()


class TokenNow(Token, frozen=True, kw_only=True):
    """A token with what each budget of its own counts now."""

    budget_use: list[BudgetUse]


@operation("POST", "/accounts/{account}/tokens", Scope.TOKENS, status=201, shown_once="token")
async def create(desk: LocalDesk, account: str, body: NewToken) -> MadeToken:
    """Create a token. Its text is in the answer and cannot be shown again.

    Repeated with the same `Idempotency-Key`, it makes no second one: the answer has the token's id, and null for its text.
    """
    check_name(body.name)
    try:
        made: Token = await desk.store.tokens.create(
            account,
            name=body.name,
            expires_at=body.expires_at,
            models=body.models,
            addresses=body.addresses,
            budgets=body.budgets.applied(NO_BUDGETS),
            limits=body.limits.applied(NO_LIMITS),
            short_id=_short_id(desk, f"create {account}"),
        )
    except MadeBefore as error:
        made = error.token
    return _made(desk, made, await _notes(desk, made) if body.models else ())


@operation("GET", "/accounts/{account}/tokens", Scope.READ)
async def list_(desk: LocalDesk, account: str, query: TokenList) -> Page[Token]:
    """List the tokens of an account, the oldest first."""
    await existing(desk, account)
    found = await desk.store.tokens.all_of(account)
    return _page([token for token in found if not query.after or _place(token) > _place_in(query.after)], query.limit)


@operation("GET", "/tokens", Scope.READ)
async def list_all(desk: LocalDesk, query: TokenList) -> Page[Token]:
    """List the tokens of all accounts, in the order of the accounts' ids, the oldest first."""
    found: list[Token] = []
    begun = ""
    if query.after:
        place = _place_in(query.after)
        begun = place[1].rpartition("-")[0]
        found = [token for token in await desk.store.tokens.all_of(begun) if _place(token) > place]
    accounts = await desk.store.directory.ids(begun)
    for first in range(0, len(accounts), AT_ONCE):
        if len(found) > query.limit:
            break
        for tokens in await desk.store.tokens.of_several(accounts[first : first + AT_ONCE]):
            found += tokens
    return _page(found, query.limit)


@operation("GET", "/tokens/{token}", Scope.READ)
async def read(desk: LocalDesk, token: str) -> TokenNow:
    """Return a token, and what each budget of its own counts now. Its text is not known to the gateway."""
    found = await desk.store.tokens.get(token)
    calendar = Calendar(time_zone(desk.config.time_zone), SystemClock())
    return TokenNow(**msgspec.structs.asdict(found), budget_use=await use_of_token(desk.store, calendar, found))


@operation("PATCH", "/tokens/{token}", Scope.TOKENS)
async def change(desk: LocalDesk, token: str, body: TokenChange) -> ChangedToken:
    """Change a token, from its next request on."""
    if body.name:
        check_name(body.name)
    desk.change.before = before = await desk.store.tokens.get(token)
    desk.change.after = after = await desk.store.tokens.change(
        before.id,
        name=None if body.name is UNSET else body.name or "",
        expires_at=body.expires_at,
        models=None if body.models is UNSET else body.models or (),
        addresses=None if body.addresses is UNSET else body.addresses or (),
        budgets=changes(body.budgets, Budgets),
        limits=changes(body.limits, AccountLimits),
    )
    notes = await _notes(desk, after) if body.models else ()
    return ChangedToken(**msgspec.structs.asdict(after), notes=tuple(notes))


@operation("POST", "/tokens/{token}/disable", Scope.TOKENS)
async def disable(desk: LocalDesk, token: str) -> Token:
    """Refuse requests with a token until it is enabled. Those in progress end within two seconds, charged for what they used."""
    return await _set_status(desk, token, TokenStatus.DISABLED)


@operation("POST", "/tokens/{token}/enable", Scope.TOKENS)
async def enable(desk: LocalDesk, token: str) -> Token:
    """Accept a disabled token again."""
    return await _set_status(desk, token, TokenStatus.ACTIVE)


@operation("DELETE", "/tokens/{token}", Scope.TOKENS, status=204)
async def delete(desk: LocalDesk, token: str) -> None:
    """Delete a token for good. Its requests in progress end as with `disable`."""
    desk.change.before = await desk.store.tokens.delete(token)


@operation("POST", "/tokens/{token}/rotate", Scope.TOKENS, status=201, shown_once="token")
async def rotate(desk: LocalDesk, token: str, body: Rotation) -> MadeToken:
    """Replace a token by a new one with the same settings, whose text is in the answer and cannot be shown again.

    Both count in the same budgets and limits. With an overlap of 0, requests in progress with the old one end as with `disable`.
    Repeated with the same `Idempotency-Key`, it makes no second one: the answer has the token's id, and null for its text.
    """
    desk.change.before = await desk.store.tokens.get(token)
    try:
        made: Token = await desk.store.tokens.rotate(
            token, body.overlap_s, body.expires_at, short_id=_short_id(desk, f"rotate {token}")
        )
    except MadeBefore as error:
        made = error.token
    return _made(desk, made)


async def _set_status(desk: LocalDesk, token: str, status: TokenStatus) -> Token:
    desk.change.before = await desk.store.tokens.get(token)
    desk.change.after = after = await desk.store.tokens.set_status(token, status)
    return after


def _short_id(desk: LocalDesk, what: str) -> str:
    """Return the id of the token that a repeated request makes, or an empty text where there is no key to know it by."""
    return short_id_of(f"{desk.key} {what}") if desk.key else ""


def _made(desk: LocalDesk, made: Token, notes: Sequence[str] = ()) -> MadeToken:
    fields = {name: getattr(made, name) for name in Token.__struct_fields__}
    desk.change.after = Token(**fields)
    return MadeToken(**fields, token=getattr(made, "token", None), notes=tuple(notes))


async def _notes(desk: LocalDesk, token: Token) -> list[str]:
    """Return notes on models of a token that there are not, or that its account may not use."""
    account = await existing(desk, token.id.rpartition("-")[0])
    group = desk.config.groups.get(account.group)
    others = (account.models, group.models if group else ())
    return model_notes(desk.config, token.models, *others, whose=f"`{token.id}`")


def _page(found: list[Token], limit: int) -> Page[Token]:
    more = len(found) > limit
    last = found[limit - 1] if more else None
    return Page(found[:limit], more, f"{last.created_at}:{last.id}" if last else None)


def _place(token: Token) -> tuple[int, str]:
    return token.created_at, token.id


def _place_in(after: str) -> tuple[int, str]:
    created, _, token = after.partition(":")
    if not (created.isascii() and created.isdecimal() and token.isascii()):
        raise Refused(400, "invalid_request", "`after` is the `next` of the answer before.", param="after")
    return int(created), token

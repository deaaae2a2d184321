"""Operations on management tokens: create, list, revoke."""

from __future__ import annotations

import time
from typing import Annotated

import msgspec

from gateway.errors import Refused
from gateway.management.desk import LocalDesk
from gateway.management.names import check_name
from gateway.management.operation import Scope, operation
from gateway.management.page import DEFAULT_PAGE, After, LongLimit, Page
from gateway.management.tokens import Expiry
from gateway.store.management_tokens import ManagementToken, ManagementTokens

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200, description="Who uses it: it is in the audit log.")]


class NewManagementToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A management token to be created. Without `expires_at` it lasts as long as the token that makes it."""

    name: Name
    scopes: Annotated[tuple[Scope, ...], msgspec.Meta(min_length=1, max_length=len(Scope))]
    expires_at: Expiry | None = None


class MadeManagementToken(ManagementToken, frozen=True, kw_only=True):
    """A new management token. `token` is its text, which is shown once: null where a repeated request finds it made before."""

    token: str | None

    def __repr__(self) -> str:
        return f"<MadeManagementToken {self.id}>"


class ManagementTokenList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which management tokens are listed."""

    limit: LongLimit = DEFAULT_PAGE
    after: After = ""


@operation("POST", "/management-tokens", Scope.ADMIN, status=201, shown_once="token")
async def create(desk: LocalDesk, body: NewManagementToken) -> MadeManagementToken:
    """Create a management token. Its text is in the answer and cannot be shown again.

    It has no scope that the token which makes it does not have, and lasts no longer. Repeated with the same `Idempotency-Key`, it
    makes no second one: the answer has the token's id, and null for its text.
    """
    check_name(body.name)
    missing = sorted(set(body.scopes) - set(desk.actor.scopes))
    if missing:
        raise Refused(403, "scope_missing", f"You do not have {', '.join(missing)} yourself.", param="scopes")
    made, text = await ManagementTokens(desk.store.client).create(
        body.name,
        sorted(set(body.scopes)),
        await _expiry(desk, body.expires_at),
        desk.actor.name,
        desk.key[:12],
    )
    desk.change.after = made
    return MadeManagementToken(**msgspec.structs.asdict(made), token=text or None)


@operation("GET", "/management-tokens", Scope.ADMIN)
async def list_(desk: LocalDesk, query: ManagementTokenList) -> Page[ManagementToken]:
    """List the management tokens, the oldest first, with those that have expired."""
    found = await ManagementTokens(desk.store.client).all()
    places = {token.id: number for number, token in enumerate(found, start=1)}
    found = found[places.get(query.after, 0) :]
    shown, more = found[: query.limit], len(found) > query.limit
    return Page(shown, more, shown[-1].id if more else None)


@operation("DELETE", "/management-tokens/{token}", Scope.ADMIN, status=204)
async def revoke(desk: LocalDesk, token: str) -> None:
    """Revoke a management token. Links and sessions that were made with it end, too."""
    desk.change.before = await ManagementTokens(desk.store.client).revoke(token)


async def _expiry(desk: LocalDesk, wanted: int | None) -> int | None:
    """Return when a new token expires: not after the one that makes it. Raises `Refused`."""
    if wanted is not None and wanted <= time.time():
        raise Refused(400, "invalid_request", "This time has passed.", param="expires_at")
    if not desk.actor.token:
        return wanted
    own = await ManagementTokens(desk.store.client).get(desk.actor.token)
    if own is None:
        raise Refused(401, "token_invalid", "Your own token was revoked meanwhile.")
    latest = own.expires_at
    if latest is None:
        return wanted
    if wanted is not None and wanted > latest:
        raise Refused(400, "invalid_request", f"Your own token expires at {latest}: no later.", param="expires_at")
    return wanted or latest

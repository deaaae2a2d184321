"""Management tokens: programs and people use the operator's API with them. They are created, listed and revoked here.

The store has their digests, not their texts. A text is random, of 256 bits, so that its digest needs no pepper: who reads the
store learns no text, and cannot find one by trying.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Annotated, Final

import msgspec

from gateway.admin.actions.action import DEFAULT_PAGE, After, LongLimit, Page, Scope, action
from gateway.admin.actions.inputs import check_name
from gateway.admin.actions.local import LocalClient
from gateway.admin.actions.times import local
from gateway.admin.actions.tokens import Expiry, seconds
from gateway.base.errors import GatewayError, Refused
from gateway.store.client.client import Client

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200, description="Who uses it: it is in the audit log.")]

KEY: Final = "gw:{management}:tokens"
PREFIX: Final = "sk-mgmt-"
"""Commands and logs hide texts that begin with `sk-`."""
MAX_TOKENS: Final = 1000


class NewManagementToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A management token to be created. Without `expires_at` it lasts as long as the token that makes it."""

    name: Name
    scopes: Annotated[tuple[Scope, ...], msgspec.Meta(min_length=1, max_length=len(Scope))]
    expires_at: Expiry | None = None


class ManagementToken(msgspec.Struct, frozen=True):
    """A management token. Times are UTC. `made_by`: who made it, as in the audit log."""

    id: str
    name: str
    scopes: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None = None
    made_by: str = ""


class MadeManagementToken(ManagementToken, frozen=True, kw_only=True):
    """A new management token. `token` is its text, which is shown once: null where a repeated request finds it made before."""

    token: str | None

    def __repr__(self) -> str:
        return f"<MadeManagementToken {self.id}>"


class ManagementTokenList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which management tokens are listed."""

    limit: LongLimit = DEFAULT_PAGE
    after: After = ""


@action("POST", "/management-tokens", Scope.ADMIN, status=201, shown_once="token")
async def create(client: LocalClient, body: NewManagementToken) -> MadeManagementToken:
    """Create a management token. Its text is in the answer and cannot be shown again.

    It has no scope that the token which makes it does not have, and lasts no longer. Repeated with the same `Idempotency-Key`, it
    makes no second one: the answer has the token's id, and null for its text.
    """
    check_name(body.name)
    missing = sorted(set(body.scopes) - set(client.actor.scopes))
    if missing:
        raise Refused(403, "scope_missing", f"You do not have {', '.join(missing)} yourself.", param="scopes")
    made, text = await ManagementTokens(client.store.client).create(
        body.name, sorted(set(body.scopes)), await _expiry(client, body.expires_at), client.actor.name, client.key[:12]
    )
    client.change.after = made
    return MadeManagementToken(**msgspec.structs.asdict(made), token=text or None)


@action("GET", "/management-tokens", Scope.ADMIN)
async def list_(client: LocalClient, query: ManagementTokenList) -> Page[ManagementToken]:
    """List the management tokens, the oldest first, with those that have expired."""
    found = await ManagementTokens(client.store.client).all()
    places = {token.id: number for number, token in enumerate(found, start=1)}
    found = found[places.get(query.after, 0) :]
    shown, more = found[: query.limit], len(found) > query.limit
    return Page(shown, more, shown[-1].id if more else None)


@action("DELETE", "/management-tokens/{token}", Scope.ADMIN, status=204)
async def revoke(client: LocalClient, token: str) -> None:
    """Revoke a management token. Links and sessions that were made with it end, too."""
    client.change.before = await ManagementTokens(client.store.client).revoke(token)


async def _expiry(client: LocalClient, wanted: datetime | None) -> datetime | None:
    """Return when a new token expires: not after the one that makes it. Raises `Refused`."""
    if wanted is not None and (seconds(wanted) or 0) <= time.time():
        raise Refused(400, "invalid_request", "This time has passed.", param="expires_at")
    if not client.actor.token:
        return wanted
    own = await ManagementTokens(client.store.client).get(client.actor.token)
    if own is None:
        raise Refused(401, "token_invalid", "Your own token was revoked meanwhile.")
    latest = own.expires_at
    if latest is None:
        return wanted
    if wanted is not None and wanted > latest:
        raise Refused(
            400, "invalid_request", f"Your own token expires at {local(latest, UTC)}: no later.", param="expires_at"
        )
    return wanted or latest


class _Stored(ManagementToken, frozen=True, kw_only=True):
    digest: str


class ManagementTokens:
    """The management tokens of one store. Every method may also raise `StoreAway`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def create(
        self, name: str, scopes: Sequence[str], expires_at: datetime | None, made_by: str, token_id: str = ""
    ) -> tuple[ManagementToken, str]:
        """Make a token and return it with its text, which is empty where one of the id `token_id` is there already."""
        token_id = token_id or secrets.token_hex(6)
        text = f"{PREFIX}{token_id}-{secrets.token_urlsafe(32)}"
        now = datetime.now(UTC).replace(microsecond=0)
        token = ManagementToken(token_id, name, tuple(scopes), now, expires_at, made_by)
        stored = _Stored(**msgspec.structs.asdict(token), digest=sha256(text.encode()).hexdigest())
        if await self._client.call("HLEN", KEY) >= MAX_TOKENS:
            raise GatewayError(f"there are {MAX_TOKENS} management tokens: revoke some")
        if not await self._client.call("HSETNX", KEY, token_id, msgspec.json.encode(stored)):
            made = await self.get(token_id)
            if made is None:
                raise unknown(token_id)
            return made, ""
        return token, text

    async def all(self) -> list[ManagementToken]:
        """Return the tokens, the oldest first, with those that have expired."""
        found = await self._client.call("HVALS", KEY)
        return sorted(map(_decode, found), key=lambda token: (token.created_at, token.id))

    async def get(self, token_id: str) -> ManagementToken | None:
        """Return the token of this id, or None; also one that has expired."""
        raw = await self._client.call("HGET", KEY, token_id)
        return None if raw is None else _decode(raw)

    async def revoke(self, token_id: str) -> ManagementToken:
        """Delete a token: nothing is accepted with it from now on. Raises `GatewayError` for an unknown one."""
        token = await self.get(token_id)
        if token is None or not await self._client.call("HDEL", KEY, token_id):
            raise unknown(token_id)
        return token

    async def authenticate(self, text: str) -> ManagementToken | None:
        """Return the token with this text, or None for any other text and for one that has expired."""
        token_id, _, _ = text.removeprefix(PREFIX).partition("-")
        if not text.startswith(PREFIX) or not text.isascii():
            return None
        raw = await self._client.call("HGET", KEY, token_id)
        if raw is None:
            return None
        digest = msgspec.json.decode(raw, type=_Stored).digest
        token, right = _decode(raw), hmac.compare_digest(digest, sha256(text.encode()).hexdigest())
        return token if right and is_accepted(token) else None


def is_accepted(token: ManagementToken) -> bool:
    """Return whether a token has not expired."""
    return token.expires_at is None or time.time() < token.expires_at.timestamp()


def unknown(token_id: str) -> GatewayError:
    """Return the error for a token that is not there."""
    return GatewayError(f"there is no management token `{token_id}`").of_kind("not_found")


_decode = msgspec.json.Decoder(ManagementToken).decode

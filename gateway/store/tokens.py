"""Tokens: their records, and the authentication of callers.

1. No record, error or `repr` contains the text of a token.
2. A record is replaced only if it is unchanged since it was read: no change is lost, and no deleted token comes back.
3. An unknown token and a wrong one get the same reply, after the same work.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.errors import GatewayError, Refused, StoreAway
from gateway.store.accounts import account_key, profile_of
from gateway.store.client.client import Client, Script
from gateway.store.client.step import Step
from gateway.store.known_tokens import Authenticated, KnownTokens, Token, TokenStatus
from gateway.store.token_changes import SWAP, Created, MadeBefore, TokenError
from gateway.store.token_record import decode, encode, tokens_key
from gateway.store.token_rotation import TokenRotation

__all__ = ["Created", "MadeBefore", "TokenError", "TokenRefused", "Tokens", "invalid_token", "tokens_key"]

HOUR_S: Final = 3600

_GUARD: Final = Script.load(Path(__file__).with_name("token_guard.lua"))


class TokenRefused(Refused):
    """A 401. `token` is the refused token if its secret was right, else None."""

    def __init__(self, code: str, message: str, token: Token | None = None) -> None:
        super().__init__(401, code, message)
        self.token = token


class Tokens(TokenRotation):
    """The tokens of one store. Every method may also raise `StoreAway`."""

    def __init__(self, client: Client, pepper: Callable[[], bytes]) -> None:
        """Call `pepper` when it is first needed: what concerns no secret works without it."""
        super().__init__(client, pepper)
        self._known = KnownTokens()

    async def refresh_pepper(self) -> None:
        """Take up a change of the pepper, see `Peppers.refresh`. Raises `StoreAway`."""
        if await self._codec.refresh():
            self._known.clear()

    async def authenticate(self, text: str) -> Authenticated:
        """Return the token with this text and its account, in one round trip; a text that is no token needs none.

        Raises `TokenRefused` (401): `token_invalid`, `token_disabled` or `token_expired`.
        """
        try:
            ids = self._codec.read(text)
        except GatewayError as error:  # the file is gone since the gateway was started
            raise StoreAway(str(error)) from None
        if ids is None:
            raise invalid_token()
        account_id, short_id = ids
        pending = self._client.submit("HGET", tokens_key(account_id), short_id)
        fields = await self._client.submit("HGETALL", account_key(account_id))
        return self._judge(text, account_id, await pending, fields)

    async def look(self, account_id: str, token_id: str = "") -> Authenticated:
        """Return a token and its account by their ids, for explanations; without a token's id, one without restrictions.

        Raises `TokenRefused` where the caller would get it, and for a token or an account that does not exist.
        """
        account = profile_of(account_id, await self._client.call("HGETALL", account_key(account_id)))
        if account is None:
            raise invalid_token()
        if not token_id:
            return Authenticated(Token(id=f"{account_id}-", created_at=0), account, b"", "", ())
        raw = await self._client.call("HGET", tokens_key(account_id), token_id.rpartition("-")[2])
        if raw is None:
            raise invalid_token()
        token = decode(raw).token
        _check_usable(token)
        return Authenticated(token, account, raw, "", ())

    def known(self, text: str) -> Authenticated | None:
        """Return what the store last said of this text to this process, or None.

        It may have changed since: `guard_step` finds out. A token that has expired meanwhile is not known any more.
        """
        return self._known.get(text)

    def guard_step(self, known: Authenticated, then: Callable[[Authenticated | TokenRefused], Awaitable[bool]]) -> Step:
        """Return a step that ends the script where the token or its account is not what is known.

        `then` is awaited only in that case, with what `authenticate` would return or raise now.
        """
        account_id, _, short_id = known.token.id.rpartition("-")

        async def read(reply: Any) -> bool:
            if reply == 1:
                return False
            raw, flat = reply
            self._known.forget(known.text)
            try:
                now = self._judge(known.text, account_id, raw, dict(zip(flat[::2], flat[1::2], strict=True)))
            except TokenRefused as refused:
                return await then(refused)
            return await then(now)

        return Step(
            _GUARD, (tokens_key(account_id), account_key(account_id)), (short_id, known.record, *known.profile), read
        )

    def touch_step(self, authenticated: Authenticated) -> Step | None:
        """Return a step which records that the token was used, at most once an hour; None where that is recorded."""
        hour = int(time.time()) // HOUR_S * HOUR_S
        if authenticated.token.last_used == hour:
            return None
        used = decode(authenticated.record).replaced(last_used=hour)
        account_id, _, short_id = authenticated.token.id.rpartition("-")
        record = encode(used)

        async def read(swapped: int) -> None:
            if swapped:
                self._known.replace(
                    authenticated, msgspec.structs.replace(authenticated, token=used.token, record=record)
                )

        return Step(SWAP, (tokens_key(account_id),), (short_id, authenticated.record, record), read, _not_touched)

    def _judge(self, text: str, account_id: str, raw: bytes | None, fields: Mapping[bytes, bytes]) -> Authenticated:
        """Return the token with this text, given its record and its account's fields, and remember it."""
        digest = self._codec.digest(text)
        record = decode(raw) if raw else None
        matches = hmac.compare_digest(record.digest if record else bytes(len(digest)), digest)
        account = profile_of(account_id, fields)
        if raw is None or record is None or account is None or not matches:
            raise invalid_token()
        token = record.token
        _check_usable(token)
        profile = [fields[name] for name in (b"status", b"group", b"models", b"limits")]
        authenticated = Authenticated(token, account, raw, text, (*profile, fields.get(b"budgets", b"")))
        self._known.add(authenticated)
        return authenticated


def _check_usable(token: Token) -> None:
    """Raise `TokenRefused` for a token that is disabled or has expired."""
    if token.status is TokenStatus.DISABLED:
        raise TokenRefused("token_disabled", "The token is disabled. Have it enabled, or use another.", token)
    if token.expires_at is not None and token.expires_at <= time.time():
        cure = "It was replaced: use the new one." if token.replaced_by else "Ask for a new one."
        raise TokenRefused("token_expired", f"The token has expired. {cure}", token)


def invalid_token() -> TokenRefused:
    """Return the error for every token that is unknown, wrong or malformed, the same for all."""
    return TokenRefused(
        "token_invalid", "The token is not valid. Check that all of it was copied, or ask for a new one."
    )


async def _not_touched(_: GatewayError) -> None:
    """Leave the time of the last use as it was."""

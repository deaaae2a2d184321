"""Tokens: their records, and the authentication of callers.

1. No record, error or `repr` contains the text of a token.
2. A record is replaced only if it is unchanged since it was read: no change is lost, and no deleted token comes back.
3. An unknown token and a wrong one get the same reply, after the same work.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import re
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Final

import msgspec

from gateway.errors import GatewayError, Refused, StoreAway
from gateway.store import pepper
from gateway.store.accounts import AccountStatus, Profile, account_key, profile_of
from gateway.store.client.client import Client, Script
from gateway.store.token_format import TokenCodec

HOUR_S: Final = 3600

_ID: Final = re.compile(r"([a-z0-9]{3,32})-([a-z0-9]{8})")
_SWAP: Final = Script.load(Path(__file__).with_name("token_swap.lua"))


class TokenError(GatewayError):
    """An operation on a token cannot be done; the message says why and what to do."""


class TokenStatus(StrEnum):
    """The status of a token. A disabled one is refused until it is enabled again."""

    ACTIVE = "active"
    DISABLED = "disabled"


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A token without its secret.

    `id` is `<account>-<short id>`. Times are seconds since 1970; `last_used` is rounded down to the hour. `models`
    are names and `*` patterns, `addresses` networks such as `10.0.0.0/8`; empty means no restriction.
    """

    id: str
    name: str = ""
    status: TokenStatus = TokenStatus.ACTIVE
    created_at: int
    expires_at: int | None = None
    last_used: int | None = None
    models: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()


class Created(Token, frozen=True, kw_only=True):
    """A new token. `token` is its text, which is returned only here."""

    token: str

    def __repr__(self) -> str:
        return f"<Created {self.id}>"


class Authenticated(msgspec.Struct, frozen=True):
    """A valid token, its record in the store, and its account without the balance, which may have any status."""

    token: Token
    account: Profile
    record: bytes

    def __repr__(self) -> str:
        return f"<Authenticated {self.token.id}>"


class TokenRefused(Refused):
    """A 401. `token` is the refused token if its secret was right, else None."""

    def __init__(self, code: str, message: str, token: Token | None = None) -> None:
        super().__init__(401, code, message)
        self.token = token


class _Record(msgspec.Struct, frozen=True):
    digest: bytes
    token: Token


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Record).decode


class Tokens:
    """The tokens of one store. Every method may also raise `StoreAway`."""

    def __init__(self, client: Client, pepper: Callable[[], bytes]) -> None:
        """Call `pepper` when it is first needed: what concerns no secret works without it."""
        self._client = client
        self._pepper = pepper

    @cached_property
    def _codec(self) -> TokenCodec:
        return TokenCodec(self._pepper())

    async def check_pepper(self) -> None:
        """Check that the tokens were made with this pepper. Raises `Misconfigured` where they were not, and `StoreAway`."""
        await pepper.check(self._client, self._pepper())

    async def authenticate(self, text: str) -> Authenticated:
        """Return the token with this text and its account, in one round trip; a text that is no token needs none.

        Raises `TokenRefused` (401): `token_invalid`, `token_disabled` or `token_expired`.
        """
        try:
            codec = self._codec
        except GatewayError as error:  # the file is gone since the gateway was started
            raise StoreAway(str(error)) from None
        ids = codec.read(text)
        if ids is None:
            raise invalid_token()
        account_id, short_id = ids
        pending = self._client.submit("HGET", _key(account_id), short_id)
        fields = await self._client.submit("HGETALL", account_key(account_id))
        raw = await pending
        digest = codec.digest(text)
        record = _decode(raw) if raw else None
        matches = hmac.compare_digest(record.digest if record else bytes(len(digest)), digest)
        account = profile_of(account_id, fields)
        if record is None or account is None or not matches:
            raise invalid_token()
        token = record.token
        if token.status is TokenStatus.DISABLED:
            raise TokenRefused("token_disabled", "The token is disabled. Have it enabled, or use another.", token)
        if token.expires_at is not None and token.expires_at <= time.time():
            raise TokenRefused("token_expired", "The token has expired. Ask for a new one.", token)
        return Authenticated(token, account, raw)

    async def touch(self, authenticated: Authenticated) -> None:
        """Record that the token was used, at most once an hour. If the store is away, nothing is recorded."""
        hour = int(time.time()) // HOUR_S * HOUR_S
        if authenticated.token.last_used != hour:
            used = _replace(_decode(authenticated.record), last_used=hour)
            with contextlib.suppress(StoreAway):
                await self._swap(authenticated.token.id, authenticated.record, used)

    async def create(
        self,
        account: str,
        *,
        name: str = "",
        expires_at: int | None = None,
        models: Sequence[str] = (),
        addresses: Sequence[str] = (),
    ) -> Created:
        """Create a token. What is left out does not restrict it.

        Raises `TokenError` for an account that is unknown or closed, and for an address that is not a network, and
        `Misconfigured` where the tokens were made with another pepper.
        """
        await self.check_pepper()
        status = await self._client.call("HGET", account_key(account), "status")
        if status is None or status.decode() == AccountStatus.CLOSED:
            raise TokenError(f"there is no open account `{account}`: `gateway account list` shows all")
        networks = tuple(_network(address) for address in addresses)
        while True:
            short_id, text = self._codec.make(account)
            token = Token(
                id=f"{account}-{short_id}",
                name=name,
                created_at=int(time.time()),
                expires_at=expires_at,
                models=tuple(models),
                addresses=networks,
            )
            if await self._swap(token.id, b"", _Record(self._codec.digest(text), token)):
                return Created(**msgspec.structs.asdict(token), token=text)

    async def all_of(self, account: str) -> list[Token]:
        """Return the account's tokens, the oldest first."""
        tokens = [_decode(record).token for record in await self._client.call("HVALS", _key(account))]
        return sorted(tokens, key=lambda token: (token.created_at, token.id))

    async def set_status(self, token_id: str, status: TokenStatus) -> Token:
        """Enable or disable a token from the next request on. Raises `TokenError` if there is none."""
        while True:
            raw = await self._read(token_id)
            changed = _replace(_decode(raw), status=status)
            if await self._swap(token_id, raw, changed):
                return changed.token

    async def delete(self, token_id: str) -> Token:
        """Delete a token and return it. Raises `TokenError` if there is none."""
        while True:
            raw = await self._read(token_id)
            if await self._swap(token_id, raw, None):
                return _decode(raw).token

    async def get(self, token_id: str) -> Token:
        """Return a token. Raises `TokenError` if there is none."""
        return _decode(await self._read(token_id)).token

    async def _read(self, token_id: str) -> bytes:
        ids = _ID.fullmatch(token_id)
        if ids is None:  # it may be the text of a token: never repeat it
            raise TokenError("a token's id is like ACCOUNT-1a2b3c4d: `gateway token list ACCOUNT` shows them")
        raw: bytes | None = await self._client.call("HGET", _key(ids[1]), ids[2])
        if raw is None:
            raise TokenError(f"there is no token `{token_id}`: `gateway token list {ids[1]}` shows the account's")
        return raw

    async def _swap(self, token_id: str, expected: bytes, record: _Record | None) -> bool:
        """Replace the record, or delete it, if it still is `expected`; return whether it was."""
        account, _, short_id = token_id.rpartition("-")
        raw = b"" if record is None else _encode(record)
        return bool(await self._client.run(_SWAP, [_key(account)], [short_id, expected, raw]))


def invalid_token() -> TokenRefused:
    """Return the error for every token that is unknown, wrong or malformed, the same for all."""
    return TokenRefused(
        "token_invalid", "The token is not valid. Check that all of it was copied, or ask for a new one."
    )


def _key(account: str) -> str:
    return f"gw:{{{account}}}:tokens"


def _replace(record: _Record, **changes: object) -> _Record:
    return _Record(record.digest, msgspec.structs.replace(record.token, **changes))


def _network(address: str) -> str:
    try:
        return str(ipaddress.ip_network(address.strip(), strict=False))
    except ValueError:
        raise TokenError(f"`{address}` is no address or network; write 192.0.2.7 or 10.0.0.0/8") from None

"""Tokens: what is kept of them, and whose a token is.

1. The text of a token is in no record, error or `repr`.
2. A record is written only over the one that was read: no change is lost, and no deleted token comes back.
3. An unknown token and a wrong one get the same answer for the same work.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import re
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from gateway.config.secrets import secret_of
from gateway.errors import GatewayError, Refused, StoreAway
from gateway.store.accounts import Account, AccountStatus, account_key, account_of
from gateway.store.client.client import Client, Script
from gateway.store.token_format import TokenCodec

HOUR_S: Final = 3600

_ID: Final = re.compile(r"([a-z0-9]{3,32})-([a-z0-9]{8})")
_SWAP: Final = Script.load(Path(__file__).with_name("token_swap.lua"))


class TokenError(GatewayError):
    """What was asked of a token cannot be done; the message says why and what to do."""


class TokenStatus(StrEnum):
    """A disabled token is refused until it is enabled again."""

    ACTIVE = "active"
    DISABLED = "disabled"


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a token but its secret.

    `id` is `<account>-<short id>`. Times are seconds since 1970; `last_used` is exact to the hour. `models`
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
    """A token just made, and in `token` its text, which is told this once."""

    token: str

    def __repr__(self) -> str:
        return f"<Created {self.id}>"


class Authenticated(msgspec.Struct, frozen=True):
    """A token that is right, what the store keeps of it, and its account, whatever the account's status."""

    token: Token
    account: Account
    record: bytes

    def __repr__(self) -> str:
        return f"<Authenticated {self.token.id}>"


class TokenRefused(Refused):
    """A 401. `token` is the one it speaks of, where the secret was right."""

    def __init__(self, code: str, message: str, token: Token | None = None) -> None:
        super().__init__(401, code, message)
        self.token = token


class _Kept(msgspec.Struct, frozen=True):
    digest: bytes
    token: Token


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Kept).decode


class Tokens:
    """The tokens of one store. Every method may also raise `StoreAway`."""

    def __init__(self, client: Client, pepper: bytes) -> None:
        self._client = client
        self._codec = TokenCodec(pepper)

    async def authenticate(self, text: str) -> Authenticated:
        """Whose token this is: in one round trip, or in none for what never was a token.

        Raises `TokenRefused` (401): `token_invalid`, `token_disabled` or `token_expired`.
        """
        named = self._codec.read(text)
        if named is None:
            raise invalid_token()
        account_id, short_id = named
        asked = self._client.submit("HGET", _key(account_id), short_id)
        fields = await self._client.submit("HGETALL", account_key(account_id))
        record = await asked
        digest = self._codec.digest(text)
        kept = _decode(record) if record else None
        right = hmac.compare_digest(kept.digest if kept else bytes(len(digest)), digest)
        account = account_of(account_id, fields)
        if kept is None or account is None or not right:
            raise invalid_token()
        token = kept.token
        if token.status is TokenStatus.DISABLED:
            raise TokenRefused("token_disabled", "The token is disabled. Have it enabled, or use another.", token)
        if token.expires_at is not None and token.expires_at <= time.time():
            raise TokenRefused("token_expired", "The token has expired. Ask for a new one.", token)
        return Authenticated(token, account, record)

    async def touch(self, known: Authenticated) -> None:
        """Note that the token was used, at most once an hour. Where the store is away, it is not noted."""
        hour = int(time.time()) // HOUR_S * HOUR_S
        if known.token.last_used != hour:
            used = _with(_decode(known.record), last_used=hour)
            with contextlib.suppress(StoreAway):
                await self._swap(known.token.id, known.record, used)

    async def create(
        self,
        account: str,
        *,
        name: str = "",
        expires_at: int | None = None,
        models: Sequence[str] = (),
        addresses: Sequence[str] = (),
    ) -> Created:
        """A new token. Whatever is left out does not restrict it.

        Raises `TokenError` for an account that is unknown or closed, and for an address that is no network.
        """
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
            if await self._swap(token.id, b"", _Kept(self._codec.digest(text), token)):
                return Created(**msgspec.structs.asdict(token), token=text)

    async def all_of(self, account: str) -> list[Token]:
        """The account's tokens, the oldest first."""
        tokens = [_decode(record).token for record in await self._client.call("HVALS", _key(account))]
        return sorted(tokens, key=lambda token: (token.created_at, token.id))

    async def set_status(self, token_id: str, status: TokenStatus) -> Token:
        """Enable or disable a token from the next request on. Raises `TokenError` where there is none."""
        while True:
            record = await self._record(token_id)
            kept = _with(_decode(record), status=status)
            if await self._swap(token_id, record, kept):
                return kept.token

    async def delete(self, token_id: str) -> Token:
        """Forget a token; returns what it was. Raises `TokenError` where there is none."""
        while True:
            record = await self._record(token_id)
            if await self._swap(token_id, record, None):
                return _decode(record).token

    async def get(self, token_id: str) -> Token:
        """A token. Raises `TokenError` where there is none."""
        return _decode(await self._record(token_id)).token

    async def _record(self, token_id: str) -> bytes:
        named = _ID.fullmatch(token_id)
        if named is None:  # perhaps a whole token: never repeat it
            raise TokenError("a token's id is like ACCOUNT-1a2b3c4d: `gateway token list ACCOUNT` shows them")
        record: bytes | None = await self._client.call("HGET", _key(named[1]), named[2])
        if record is None:
            raise TokenError(f"there is no token `{token_id}`: `gateway token list {named[1]}` shows the account's")
        return record

    async def _swap(self, token_id: str, read: bytes, kept: _Kept | None) -> bool:
        account, _, short_id = token_id.rpartition("-")
        record = b"" if kept is None else _encode(kept)
        return bool(await self._client.run(_SWAP, [_key(account)], [short_id, read, record]))


def pepper_of(data: Path) -> bytes:
    """The pepper from `$GATEWAY_PEPPER`, else from the file `pepper` in `data`, made on first use, mode 0600.

    Gateways on several machines that share a store need the same one: give it by the environment. Whoever
    loses it has to make all tokens anew. Raises `Misconfigured` for one that is shorter than 16 bytes.
    """
    return secret_of(data / "pepper", "GATEWAY_PEPPER")


def invalid_token() -> TokenRefused:
    """The one answer to every token that is unknown, wrong or malformed."""
    return TokenRefused(
        "token_invalid", "The token is not valid. Check that all of it was copied, or ask for a new one."
    )


def _key(account: str) -> str:
    return f"gw:{{{account}}}:tokens"


def _with(kept: _Kept, **changes: object) -> _Kept:
    return _Kept(kept.digest, msgspec.structs.replace(kept.token, **changes))


def _network(address: str) -> str:
    try:
        return str(ipaddress.ip_network(address.strip(), strict=False))
    except ValueError:
        raise TokenError(f"`{address}` is no address or network; write 192.0.2.7 or 10.0.0.0/8") from None

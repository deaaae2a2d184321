"""Tokens: their records, and the authentication of callers.

1. No record, error or `repr` contains the text of a token.
2. A record is replaced only if it is unchanged since it was read: no change is lost, and no deleted token comes back.
3. An unknown token and a wrong one get the same reply, after the same work.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.errors import GatewayError, Refused, StoreAway
from gateway.facts import NO_BUDGETS, NO_LIMITS, AccountLimits, Budgets
from gateway.store import pepper
from gateway.store.accounts import AccountStatus, account_key, profile_of, wallet_key
from gateway.store.client.client import Client, Script
from gateway.store.client.step import Step
from gateway.store.known_tokens import Authenticated, KnownTokens, Token, TokenStatus
from gateway.store.token_format import TokenCodec
from gateway.store.token_record import Record, decode, encode, token_of

HOUR_S: Final = 3600

_ID: Final = re.compile(r"([a-z0-9]{3,32})-([a-z0-9]{8})")
_SWAP: Final = Script.load(Path(__file__).with_name("token_swap.lua"))
_GUARD: Final = Script.load(Path(__file__).with_name("token_guard.lua"))


class TokenError(GatewayError):
    """An operation on a token cannot be done; the message says why and what to do."""


class NoSuch(TokenError):
    kind = "not_found"


class Created(Token, frozen=True, kw_only=True):
    """A new token. `token` is its text, which is returned only here."""

    token: str

    def __repr__(self) -> str:
        return f"<Created {self.id}>"


class TokenRefused(Refused):
    """A 401. `token` is the refused token if its secret was right, else None."""

    def __init__(self, code: str, message: str, token: Token | None = None) -> None:
        super().__init__(401, code, message)
        self.token = token


class Tokens:
    """The tokens of one store. Every method may also raise `StoreAway`."""

    def __init__(self, client: Client, pepper: Callable[[], bytes]) -> None:
        """Call `pepper` when it is first needed: what concerns no secret works without it."""
        self._client = client
        self._pepper = pepper
        self._known = KnownTokens()

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
        pending = self._client.submit("HGET", tokens_key(account_id), short_id)
        fields = await self._client.submit("HGETALL", account_key(account_id))
        return self._judge(text, account_id, await pending, fields)

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

        return Step(_SWAP, (tokens_key(account_id),), (short_id, authenticated.record, record), read, _not_touched)

    def _judge(self, text: str, account_id: str, raw: bytes | None, fields: Mapping[bytes, bytes]) -> Authenticated:
        """Return the token with this text, given its record and its account's fields, and remember it."""
        digest = self._codec.digest(text)
        record = decode(raw) if raw else None
        matches = hmac.compare_digest(record.digest if record else bytes(len(digest)), digest)
        account = profile_of(account_id, fields)
        if raw is None or record is None or account is None or not matches:
            raise invalid_token()
        token = record.token
        if token.status is TokenStatus.DISABLED:
            raise TokenRefused("token_disabled", "The token is disabled. Have it enabled, or use another.", token)
        if token.expires_at is not None and token.expires_at <= time.time():
            raise TokenRefused("token_expired", "The token has expired. Ask for a new one.", token)
        profile = [fields[name] for name in (b"status", b"group", b"models", b"limits")]
        authenticated = Authenticated(token, account, raw, text, (*profile, fields.get(b"budgets", b"")))
        self._known.add(authenticated)
        return authenticated

    async def create(
        self,
        account: str,
        *,
        name: str = "",
        expires_at: int | None = None,
        models: Sequence[str] = (),
        addresses: Sequence[str] = (),
        budgets: Budgets = NO_BUDGETS,
        limits: AccountLimits = NO_LIMITS,
    ) -> Created:
        """Create a token. What is left out does not restrict it.

        Raises `TokenError` for an account that is unknown or closed, and for an address that is not a network, and
        `Misconfigured` where the tokens were made with another pepper.
        """
        await self.check_pepper()
        status = await self._client.call("HGET", account_key(account), "status")
        if status is None or status.decode() == AccountStatus.CLOSED:
            raise NoSuch(f"there is no open account `{account}`: `gateway account list` shows all")
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
                budgets=budgets,
                limits=limits,
            )
            if await self._swap(token.id, b"", Record(self._codec.digest(text), token)):
                return Created(**msgspec.structs.asdict(token), token=text)

    async def all_of(self, account: str) -> list[Token]:
        """Return the account's tokens, the oldest first."""
        tokens = [token_of(record) for record in await self._client.call("HVALS", tokens_key(account))]
        return sorted(tokens, key=lambda token: (token.created_at, token.id))

    async def set_status(self, token_id: str, status: TokenStatus) -> Token:
        """Enable or disable a token from the next request on. Raises `TokenError` if there is none."""
        return await self._change(token_id, lambda _: {"status": status})

    async def set_allowance(
        self, token_id: str, budgets: Mapping[str, int | None], limits: Mapping[str, int | None]
    ) -> Token:
        """Set the given budgets and limits, None for none, from the next request on. Raises `TokenError` if there is no such token.

        Raises `ValueError` for a number that is out of range.
        """
        return await self._change(
            token_id,
            lambda token: {
                "budgets": msgspec.structs.replace(token.budgets, **budgets),
                "limits": msgspec.structs.replace(token.limits, **limits),
            },
        )

    async def _change(self, token_id: str, changes: Callable[[Token], dict[str, object]]) -> Token:
        while True:
            raw = await self._read(token_id)
            record = decode(raw)
            changed = record.replaced(**changes(record.token))
            if await self._swap(token_id, raw, changed):
                return changed.token

    async def delete(self, token_id: str) -> Token:
        """Delete a token and return it. Raises `TokenError` if there is none."""
        while True:
            raw = await self._read(token_id)
            if await self._swap(token_id, raw, None):
                return token_of(raw)

    async def get(self, token_id: str) -> Token:
        """Return a token. Raises `TokenError` if there is none."""
        return token_of(await self._read(token_id))

    async def _read(self, token_id: str) -> bytes:
        ids = _ID.fullmatch(token_id)
        if ids is None:  # it may be the text of a token: never repeat it
            raise TokenError("a token's id is like ACCOUNT-1a2b3c4d: `gateway token list ACCOUNT` shows them")
        raw: bytes | None = await self._client.call("HGET", tokens_key(ids[1]), ids[2])
        if raw is None:
            raise NoSuch(f"there is no token `{token_id}`: `gateway token list {ids[1]}` shows the account's")
        return raw

    async def _swap(self, token_id: str, expected: bytes, record: Record | None) -> bool:
        """Replace the record, or delete it, if it still is `expected`; return whether it was."""
        account, _, short_id = token_id.rpartition("-")
        raw = b"" if record is None else encode(record)
        revoked = record is None or record.token.status is TokenStatus.DISABLED
        arguments = (short_id, expected, raw, account) if revoked else (short_id, expected, raw)
        keys = [tokens_key(account), wallet_key(account)] if record is None else [tokens_key(account)]
        return bool(await self._client.run(_SWAP, keys, arguments))


def invalid_token() -> TokenRefused:
    """Return the error for every token that is unknown, wrong or malformed, the same for all."""
    return TokenRefused(
        "token_invalid", "The token is not valid. Check that all of it was copied, or ask for a new one."
    )


async def _not_touched(_: GatewayError) -> None:
    """Leave the time of the last use as it was."""


def tokens_key(account: str) -> str:
    """Return the Redis key of an account's tokens."""
    return f"gw:{{{account}}}:tokens"


def _network(address: str) -> str:
    try:
        return str(ipaddress.ip_network(address.strip(), strict=False))
    except ValueError:
        raise TokenError(f"`{address}` is no address or network; write 192.0.2.7 or 10.0.0.0/8") from None

"""Tokens: their records, the authentication of callers, and what an operator does with them.

1. No record, error or `repr` contains the text of a token.
2. A record is replaced only if it is unchanged since it was read: no change is lost, and no deleted token comes back.
3. An unknown token and a wrong one get the same reply, after the same work.
4. A process remembers the tokens that it has read, so that it need not read them for each request. They may have changed: the
   step of `Tokens.guard` compares each with the store for each request.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from enum import StrEnum
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec

from gateway.base.errors import GatewayError, Refused, StoreAway
from gateway.domain.facts import NO_BUDGETS, NO_LIMITS, AccountLimits, Budgets
from gateway.store.accounts import (
    REVOKED,
    AccountStatus,
    Profile,
    account_key,
    announce,
    profile_of,
    wallet_key,
)
from gateway.store.client.client import Client, Script
from gateway.store.client.steps import Declared, Step
from gateway.store.pepper import Peppers, PepperSource

HOUR_S: Final = 3600

_GUARD: Final = Script.load(Path(__file__).with_name("token_guard.lua"))

SWAP: Final = Script.load(Path(__file__).with_name("token_swap.lua"))
_ID: Final = re.compile(r"([a-z0-9]{3,32})-([a-z0-9]{8})")
PAGE: Final = 200
"""Accounts whose tokens are read at once."""

_ROTATE: Final = Script.load(Path(__file__).with_name("token_rotate.lua"))
_TRIES: Final = 3
"""Attempts of a rotation whose reply is lost."""

OPTIONAL: Final = ("budgets", "limits")
LINKS: Final = ("replaces", "replaced_by", "counts_as")
"""Fields that are left out of a record where the token has no value: every request sends the record, and most tokens have none."""

MOST: Final = 4096
"""Tokens that are remembered."""


class TokenRefused(Refused):
    """A 401. `token` is the refused token if its secret was right, else None."""

    def __init__(self, code: str, message: str, token: Token | None = None) -> None:
        super().__init__(401, code, message)
        self.token = token


class Tokens:
    """The tokens of one store. Every method may also raise `StoreAway`."""

    def __init__(self, client: Client, pepper: PepperSource) -> None:
        """Read the pepper when it is first needed: operations that concern no secret work without it."""
        self._client = client
        self._codec = Peppers(client, pepper)
        self._known: dict[str, Authenticated] = {}
        """The tokens that were read last, by their texts, the one that was read longest ago first."""

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
        """Return the store's last answer to this process about this text, or None.

        It may have changed since: `guard` finds out. A token that has expired meanwhile is not known any more.
        """
        known = self._known.get(text)
        return None if known is None or has_expired(known.token.expires_at) else known

    @staticmethod
    def guard(known: Authenticated) -> Declared:
        """Return a step that ends the script where the store's token or account differs from the remembered one.

        Its reply is 1, or one for `now` where they differ.
        """
        account_id, _, short_id = known.token.id.rpartition("-")
        keys = tokens_key(account_id), account_key(account_id)
        return Declared(_GUARD, keys, (short_id, known.record, *known.profile))

    def now(self, known: Authenticated, reply: Any) -> Authenticated | TokenRefused:
        """Return what `authenticate` would return or raise now, by the reply of a guard that found a difference."""
        raw, flat = reply
        account_id, text = known.token.id.rpartition("-")[0], known.text
        self._known.pop(text, None)
        try:
            return self._judge(text, account_id, raw, dict(zip(flat[::2], flat[1::2], strict=True)))
        except TokenRefused as refused:
            return refused

    def touch_step(self, authenticated: Authenticated) -> Step | None:
        """Return a step which records that the token was used, at most once an hour; None where that is recorded."""
        hour = int(time.time()) // HOUR_S * HOUR_S
        return None if authenticated.token.last_used == hour else self._touched(authenticated, hour)

    def _touched(self, authenticated: Authenticated, hour: int) -> Step:
        used = decode(authenticated.record).replaced(last_used=hour)
        account_id, _, short_id = authenticated.token.id.rpartition("-")
        record = encode(used)

        async def read(swapped: int) -> None:
            if swapped and self._known.get(authenticated.text) is authenticated:  # nothing else was read since
                self._known[authenticated.text] = msgspec.structs.replace(
                    authenticated, token=used.token, record=record
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
        self._known[text] = authenticated
        if len(self._known) > MOST:
            del self._known[next(iter(self._known))]
        return authenticated

    async def rotate(
        self, token_id: str, overlap_s: int, expires_at: int | None = None, *, short_id: str = ""
    ) -> Created:
        """Replace a token by another one with the same settings, and let the old one expire after `overlap_s`.

        The two count in the same budgets and limits, so that a token is not worth more for being replaced. The new one expires when
        the old one would have, or at `expires_at`. Raises `TokenError` for a token that does not exist, is disabled, has expired or
        was replaced already, and `MadeBefore` where it was replaced by the one of this `short_id`.
        """
        await self.check_pepper()
        account = token_id.rpartition("-")[0]
        made: dict[str, Created] = {}
        given = self._codec.make(account, short_id) if short_id else None
        for last in (False,) * (_TRIES - 1) + (True,):
            raw = await self._read(token_id)
            record = decode(raw)
            if short_id and record.token.replaced_by == f"{account}-{short_id}":
                successor = decode(await self._read(record.token.replaced_by))
                if given is None or successor.digest != self._codec.digest(given[1]):
                    raise MadeBefore(successor.token)
            if (done := made.get(record.token.replaced_by)) is not None:  # the reply was lost
                return done
            await self._check_account(account)
            old = record.token
            if old.replaced_by and not await self._client.call(
                "HEXISTS", tokens_key(account), old.replaced_by.rpartition("-")[2]
            ):
                old = _without_successor(old, expires_at)
            _check_replaceable(old, expires_at)
            now = int(time.time())
            chosen, text = given or self._codec.make(account)
            new = msgspec.structs.replace(
                old,
                id=f"{account}-{chosen}",
                created_at=now,
                expires_at=old.expires_at if expires_at is None else expires_at,
                last_used=None,
                replaces=old.id,
                counts_as=old.counts_as or old.id,
            )
            made[new.id] = Created(**msgspec.structs.asdict(new), token=text)
            ends_at = now + overlap_s if old.expires_at is None else min(old.expires_at, now + overlap_s)
            ended = encode(record.replaced(expires_at=ends_at, replaced_by=new.id))
            own = encode(TokenRecord(self._codec.digest(text), new))
            arguments = (old.id.rpartition("-")[2], raw, ended, chosen, own)
            try:
                if await self._client.run(_ROTATE, [tokens_key(account)], arguments):
                    await announce(self._client, REVOKED, account)
                    return made[new.id]
            except StoreAway:
                if last:
                    raise
        raise TokenError(f"`{token_id}` is being changed by others: try again")

    async def check_pepper(self) -> None:
        """Check that the tokens were made with this pepper. Raises `Misconfigured` where they were not, and `StoreAway`."""
        await self._codec.check()

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
        short_id: str = "",
    ) -> Created:
        """Create a token. Arguments that are left out do not restrict it.

        Raises `TokenError` for an account that is unknown or closed, and for an address that is not a network; `MadeBefore` where
        the account has a token of this `short_id`; and `Misconfigured` where the tokens were made with another pepper.
        """
        await self.check_pepper()
        await self._check_account(account)
        networks = tuple(_network(address) for address in addresses)
        while True:
            made, text = self._codec.make(account, short_id)
            token = Token(
                id=f"{account}-{made}",
                name=name,
                created_at=int(time.time()),
                expires_at=expires_at,
                models=tuple(models),
                addresses=networks,
                budgets=budgets,
                limits=limits,
            )
            if await self._swap(token.id, b"", TokenRecord(self._codec.digest(text), token)):
                return Created(**msgspec.structs.asdict(token), token=text)
            if short_id:
                raise MadeBefore(await self.get(token.id))

    async def _check_account(self, account: str) -> None:
        status = await self._client.call("HGET", account_key(account), "status")
        if status is None or status.decode() == AccountStatus.CLOSED:
            raise NoSuch(f"there is no open account `{account}`; look it up in the list of accounts")

    async def all_of(self, account: str) -> list[Token]:
        """Return the account's tokens, the oldest first."""
        return (await self.of_several([account]))[0]

    async def of_several(self, accounts: Sequence[str]) -> list[list[Token]]:
        """Return the tokens of each of these accounts, the oldest first."""
        replies = await asyncio.gather(*(self._client.submit("HVALS", tokens_key(account)) for account in accounts))
        return [sorted(map(token_of, records), key=attrgetter("created_at", "id")) for records in replies]

    async def all(self) -> AsyncIterator[Token]:
        """Yield the tokens of all accounts, by the ids of the accounts and the oldest first. Those of one page are in memory."""
        accounts = sorted({key[4:-8] async for key in self._client.keys(tokens_key("*"))})
        for first in range(0, len(accounts), PAGE):
            for tokens in await self.of_several(accounts[first : first + PAGE]):
                for token in tokens:
                    yield token

    async def set_status(self, token_id: str, status: TokenStatus) -> Token:
        """Enable or disable a token from the next request on. Raises `TokenError` if there is none."""
        return await self._change(token_id, lambda _: {"status": status})

    async def change(
        self,
        token_id: str,
        *,
        name: str | None = None,
        expires_at: int | msgspec.UnsetType | None = msgspec.UNSET,
        models: Sequence[str] | None = None,
        addresses: Sequence[str] | None = None,
        budgets: Mapping[str, int | None] = MappingProxyType({}),
        limits: Mapping[str, int | None] = MappingProxyType({}),
    ) -> Token:
        """Set the given fields from the next request on, and leave the others. None takes an expiry, a budget or a limit away.

        Raises `TokenError` if there is no such token, and `ValueError` for a number that is out of range.
        """
        others: dict[str, object] = {
            "name": name,
            "models": None if models is None else tuple(models),
            "addresses": None if addresses is None else tuple(map(_network, addresses)),
        }
        given = {field: value for field, value in others.items() if value is not None}
        given |= {} if expires_at is msgspec.UNSET else {"expires_at": expires_at}

        def changes(token: Token) -> dict[str, object]:
            replace = msgspec.structs.replace
            return {"budgets": replace(token.budgets, **budgets), "limits": replace(token.limits, **limits), **given}

        return await self._change(token_id, changes)

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
            raise TokenError("a token's id is like ACCOUNT-1a2b3c4d; look it up in the list of tokens")
        raw: bytes | None = await self._client.call("HGET", tokens_key(ids[1]), ids[2])
        if raw is None:
            raise NoSuch(f"there is no token `{token_id}`; look it up in the list of tokens of `{ids[1]}`")
        return raw

    async def _swap(self, token_id: str, expected: bytes, record: TokenRecord | None) -> bool:
        """Replace the record, or delete it, if it still is `expected`; return whether it was."""
        account, _, short_id = token_id.rpartition("-")
        raw = b"" if record is None else encode(record)
        expires_at = token_of(expected).expires_at if expected else None
        revoked = (
            record is None
            or record.token.status is TokenStatus.DISABLED
            or (bool(expected) and record.token.expires_at != expires_at)
        )
        arguments: tuple[str | bytes, ...] = (short_id, expected, raw)
        keys = [tokens_key(account)]
        if record is None:
            keys.append(wallet_key(account))
            arguments += (account, (token_of(expected).counts_as or token_id).rpartition("-")[2])
        done = bool(await self._client.run(SWAP, keys, arguments))
        if done and revoked:
            await announce(self._client, REVOKED, account)
        return done


def _check_usable(token: Token) -> None:
    """Raise `TokenRefused` for a token that is disabled or has expired."""
    if token.status is TokenStatus.DISABLED:
        raise TokenRefused("token_disabled", "The token is disabled. Have it enabled, or use another.", token)
    if has_expired(token.expires_at):
        cure = "It was replaced: use the new one." if token.replaced_by else "Ask for a new one."
        raise TokenRefused("token_expired", f"The token has expired. {cure}", token)


def has_expired(expires_at: int | None) -> bool:
    """Return whether a token with this time of expiry has expired."""
    return expires_at is not None and expires_at <= time.time()


def invalid_token() -> TokenRefused:
    """Return the error for every token that is unknown, wrong or malformed, the same for all."""
    return TokenRefused(
        "token_invalid", "The token is not valid. Check that all of it was copied, or ask for a new one."
    )


async def _not_touched(_: GatewayError) -> None:
    """Leave the time of the last use as it was."""


class TokenError(GatewayError):
    """An operation on a token cannot be done; the message says why and what to do."""


class NoSuch(TokenError):
    kind = "not_found"


class MadeBefore(TokenError):
    """The token of a short id that was given is there already: it was made by a call before, and its text is not known any more."""

    kind = "exists"

    def __init__(self, token: Token) -> None:
        super().__init__(f"`{token.id}` was made before, and its text was shown then")
        self.token = token


class TokenStatus(StrEnum):
    """The status of a token. A disabled one is refused until it is enabled again."""

    ACTIVE = "active"
    DISABLED = "disabled"


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A token without its secret.

    `id` is `<account>-<short id>`. Times are seconds since 1970; `last_used` is rounded down to the hour. `models`
    are names and `*` patterns, `addresses` networks such as `10.0.0.0/8`; empty means no restriction. `budgets` and `limits`
    apply in addition to those of the account. `replaces` and `replaced_by` are the ids of its predecessor and its successor,
    `counts_as` that of the first token of such a row, under which the budgets and limits of all of them count; empty for none.
    """

    id: str
    name: str = ""
    status: TokenStatus = TokenStatus.ACTIVE
    created_at: int
    expires_at: int | None = None
    last_used: int | None = None
    models: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    budgets: Budgets = NO_BUDGETS
    limits: AccountLimits = NO_LIMITS
    replaces: str = ""
    replaced_by: str = ""
    counts_as: str = ""

    @property
    def state(self) -> str:
        """Whether it is accepted now, in a word: its status, or that it has expired."""
        if self.status is TokenStatus.ACTIVE and has_expired(self.expires_at):
            return "replaced" if self.replaced_by else "expired"
        return self.status


class Created(Token, frozen=True, kw_only=True):
    """A new token. `token` is its text, which is returned only here."""

    token: str

    def __repr__(self) -> str:
        return f"<Created {self.id}>"


def _network(address: str) -> str:
    try:
        return str(ipaddress.ip_network(address.strip(), strict=False))
    except ValueError:
        raise TokenError(f"`{address}` is no address or network; write 192.0.2.7 or 10.0.0.0/8") from None


def _check_replaceable(token: Token, expires_at: int | None) -> None:
    """Raise `TokenError` for a token of which there can be no successor that works."""
    if token.replaced_by:
        raise TokenError(f"`{token.id}` was replaced by `{token.replaced_by}` already: rotate that one")
    if token.status is TokenStatus.DISABLED:
        raise TokenError(f"`{token.id}` is disabled: enable it first, or create another")
    if expires_at is None and has_expired(token.expires_at):
        raise TokenError(f"`{token.id}` has expired: say when the new one expires, as in `--expires 30d`")


def _without_successor(token: Token, expires_at: int | None) -> Token:
    """Return a token whose successor was deleted. It ends with the overlap, so the end of the next one must be given."""
    if expires_at is None:
        raise TokenError(
            f"`{token.id}` was replaced by `{token.replaced_by}`, which was deleted: say when the new one expires, as --expires 30d"
        )
    return msgspec.structs.replace(token, replaced_by="")


class TokenRecord(msgspec.Struct, frozen=True):
    """A token with the digest of its secret."""

    digest: bytes
    token: Token

    def replaced(self, **changes: object) -> TokenRecord:
        """Return the record with other fields of the token."""
        return TokenRecord(self.digest, msgspec.structs.replace(self.token, **changes))


decode: Final = msgspec.json.Decoder(TokenRecord).decode


def encode(record: TokenRecord) -> bytes:
    """Return the bytes from which `decode` makes the same record."""
    fields: dict[str, Any] = msgspec.to_builtins(record)
    token = fields["token"]
    for name in OPTIONAL:
        token[name] = {field: value for field, value in token[name].items() if value is not None}
        if not token[name]:
            del token[name]
    for name in LINKS:
        if not token[name]:
            del token[name]
    return msgspec.json.encode(fields)


def token_of(record: bytes) -> Token:
    """Return the token of a record."""
    return decode(record).token


def tokens_key(account: str) -> str:
    """Return the Redis key of an account's tokens."""
    return f"gw:{{{account}}}:tokens"


class Authenticated(msgspec.Struct, frozen=True):
    """A valid token, its record in the store, and its account without the balance, which may have any status.

    `text` is the token itself; `profile` is the account's status, group, models, limits and budgets as the store has them.
    """

    token: Token
    account: Profile
    record: bytes
    text: str
    profile: tuple[bytes, ...]

    def __repr__(self) -> str:
        return f"<Authenticated {self.token.id}>"


async def made_before(tokens: Tokens, since: int) -> int:
    """Return how many tokens were made until `since`, in seconds since 1970."""
    return sum([token.created_at <= since async for token in tokens.all()])

"""What an operator does with tokens: create, list, change, replace and delete them."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from gateway.errors import GatewayError
from gateway.facts import NO_BUDGETS, NO_LIMITS, AccountLimits, Budgets
from gateway.store.accounts import AccountStatus, account_key, wallet_key
from gateway.store.client.client import Client, Script
from gateway.store.known_tokens import Token, TokenStatus
from gateway.store.peppers import Peppers
from gateway.store.token_record import Record, decode, encode, token_of, tokens_key

SWAP: Final = Script.load(Path(__file__).with_name("token_swap.lua"))
_ID: Final = re.compile(r"([a-z0-9]{3,32})-([a-z0-9]{8})")
PAGE: Final = 200
"""Accounts whose tokens are read at once."""


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


class Created(Token, frozen=True, kw_only=True):
    """A new token. `token` is its text, which is returned only here."""

    token: str

    def __repr__(self) -> str:
        return f"<Created {self.id}>"


class TokenChanges:
    """The tokens of one store, for those who manage them. Every method may also raise `StoreAway`."""

    def __init__(self, client: Client, pepper: Callable[[], bytes]) -> None:
        """Call `pepper` when it is first needed: what concerns no secret works without it."""
        self._client = client
        self._codec = Peppers(client, pepper)

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
        """Create a token. What is left out does not restrict it.

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
            if await self._swap(token.id, b"", Record(self._codec.digest(text), token)):
                return Created(**msgspec.structs.asdict(token), token=text)
            if short_id:
                raise MadeBefore(await self.get(token.id))

    async def _check_account(self, account: str) -> None:
        status = await self._client.call("HGET", account_key(account), "status")
        if status is None or status.decode() == AccountStatus.CLOSED:
            raise NoSuch(f"there is no open account `{account}`: `gateway account list` shows all")

    async def all_of(self, account: str) -> list[Token]:
        """Return the account's tokens, the oldest first."""
        tokens = [token_of(record) for record in await self._client.call("HVALS", tokens_key(account))]
        return sorted(tokens, key=_age)

    async def of_several(self, accounts: Sequence[str]) -> list[list[Token]]:
        """Return the tokens of each of these accounts, the oldest first."""
        replies = await asyncio.gather(*(self._client.submit("HVALS", tokens_key(account)) for account in accounts))
        return [sorted(map(token_of, records), key=_age) for records in replies]

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
        given: dict[str, object] = {}
        if name is not None:
            given["name"] = name
        if expires_at is not msgspec.UNSET:
            given["expires_at"] = expires_at
        if models is not None:
            given["models"] = tuple(models)
        if addresses is not None:
            given["addresses"] = tuple(map(_network, addresses))
        return await self._change(
            token_id,
            lambda token: {
                "budgets": msgspec.structs.replace(token.budgets, **budgets),
                "limits": msgspec.structs.replace(token.limits, **limits),
                **given,
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
        expires_at = token_of(expected).expires_at if expected else None
        revoked = (
            record is None
            or record.token.status is TokenStatus.DISABLED
            or (bool(expected) and record.token.expires_at != expires_at)
        )
        arguments: tuple[str | bytes, ...] = (short_id, expected, raw)
        keys = [tokens_key(account)]
        if revoked:
            arguments += (account,)
        if record is None:
            keys.append(wallet_key(account))
            arguments += ((token_of(expected).counts_as or token_id).rpartition("-")[2],)
        return bool(await self._client.run(SWAP, keys, arguments))


def _age(token: Token) -> tuple[int, str]:
    return token.created_at, token.id


def _network(address: str) -> str:
    try:
        return str(ipaddress.ip_network(address.strip(), strict=False))
    except ValueError:
        raise TokenError(f"`{address}` is no address or network; write 192.0.2.7 or 10.0.0.0/8") from None

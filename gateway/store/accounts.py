"""Accounts: their status, group, models, limits and budgets.

1. **Only the wallet changes balances.** Nothing here writes the balance or a hold of an existing account.
2. **A closed account stays closed.** Its data is kept as history, and nothing here changes it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from gateway.config.schema import ACCOUNT_ID
from gateway.errors import GatewayError, StoreError
from gateway.facts import NO_BUDGETS, NO_LIMITS, AccountLimits, Budgets
from gateway.store import layout
from gateway.store.client.client import Client, Script

MAX_AMOUNT: Final = 2**53 - 1
"""Micros. Larger integers are not exact in a script, whose numbers are doubles."""

_WRITE: Final = Script.load(Path(__file__).with_name("account_write.lua"))
PAGE_SIZE: Final = 500
CHANGED: Final = "gw:accounts:changed"
"""A stream of the ids of accounts that were written, for `gateway.store.directory`."""
MOST_CHANGED: Final = 10_000
MARKED: Final = ("limits", "budgets")
KEY_KEPT_S: Final = 24 * 3600
"""How long a creation that is repeated with its key is known."""


class AccountError(GatewayError):
    """An operation on an account cannot be done; the message says why and what to do."""


class AccountChanged(AccountError):
    """The limits or the budgets of an account are not those of a mark any more."""


class AccountStatus(StrEnum):
    """The status of an account. Only an active one is served; a suspended one can be resumed, a closed one cannot."""

    ACTIVE = "active"
    SUSPENDED = "suspended"
    CLOSED = "closed"


class Profile(msgspec.Struct, frozen=True):
    """An account without its balance. `models` restricts the models of its group; empty means no restriction."""

    id: str
    status: AccountStatus
    group: str
    credit_line_micros: int
    models: tuple[str, ...]
    limits: AccountLimits
    budgets: Budgets


class Account(Profile, frozen=True):
    """An account as it was read. `external_id`: what it is called elsewhere, see `gateway.store.external_ids`."""

    balance_micros: int
    held_micros: int
    holds: int
    external_id: str = ""


class Accounts:
    """The accounts of one store. Every method may also raise `StoreAway`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def create(
        self,
        account_id: str,
        group: str = "default",
        credit_line: int = 0,
        *,
        models: Sequence[str] = (),
        limits: AccountLimits = NO_LIMITS,
        budgets: Budgets = NO_BUDGETS,
        external_id: str = "",
        key: str = "",
    ) -> Account:
        """Create an active account with a balance of zero. Raises `AccountError` for an id that is invalid or taken.

        `external_id` must be claimed before. With a `key`, a call that is repeated with it within `KEY_KEPT_S` returns the account.
        """
        if not ACCOUNT_ID.fullmatch(account_id):
            raise AccountError(f"{account_id!r} is not an account id: use 3 to 32 of a-z and 0-9")
        profile = Profile(account_id, AccountStatus.ACTIVE, group, _amount(credit_line), tuple(models), limits, budgets)
        own = {"external_id": external_id} if external_id else {}
        if await self._write("new", account_id, _fields(profile) | own, key):
            return _with_numbers(profile, b"0 0 0 0", external_id)
        return await self._update(account_id, {})

    async def get(self, account_id: str) -> Account | None:
        """Return the account, or None if there is none."""
        accounts = await self._read([account_id])
        return accounts[0] if accounts else None

    async def several(self, ids: Sequence[str]) -> list[Account]:
        """Return those of these accounts that there are, in this order."""
        return await self._read(ids)

    async def all(self) -> AsyncIterator[Account]:
        """Yield every account, in no order. One that is created meanwhile may be missing."""
        seen: set[str] = set()
        page: list[str] = []
        async for key in self._client.keys(account_key("*")):
            account_id = key[4:-9]
            if account_id not in seen:
                seen.add(account_id)
                page.append(account_id)
            if len(page) == PAGE_SIZE:
                for account in await self._read(page):
                    yield account
                page = []
        for account in await self._read(page):
            yield account

    async def change(
        self,
        account_id: str,
        *,
        status: AccountStatus | None = None,
        group: str | None = None,
        credit_line: int | None = None,
        models: Sequence[str] | None = None,
        limits: AccountLimits | None = None,
        budgets: Budgets | None = None,
        external_id: str | None = None,
        mark: bytes = b"",
    ) -> Account:
        """Set the given fields and leave the others. `external_id` must be claimed before.

        Raises `AccountError` if the account is unknown or closed, or a value is out of range, and `AccountChanged` where its limits
        or budgets are not as they were when its mark was `mark`.
        """
        fields: dict[str, str | int | bytes] = {}
        if status is not None:
            fields["status"] = status.value
        if group is not None:
            fields["group"] = group
        if credit_line is not None:
            fields["credit_line"] = _amount(credit_line)
        if models is not None:
            fields["models"] = ",".join(models)
        if limits is not None:
            fields["limits"] = msgspec.json.encode(limits)
        if budgets is not None:
            fields["budgets"] = _encoded(budgets)
        if external_id is not None:
            fields["external_id"] = external_id
        return await self._update(account_id, fields, mark)

    async def mark(self, account_id: str) -> bytes:
        """Return the mark of an account's limits and budgets: another one after each change of them."""
        return b"".join(each or b"" for each in await self._client.call("HMGET", account_key(account_id), *MARKED))

    async def set_status(self, account_id: str, status: AccountStatus) -> Account:
        """Suspend, resume or close an account. Raises `AccountError` if it is unknown or closed."""
        return await self._update(account_id, {"status": status.value})

    async def _update(self, account_id: str, fields: Mapping[str, str | int | bytes], mark: bytes = b"") -> Account:
        if fields:
            await self._write("old", account_id, fields, mark)
        account = await self.get(account_id)
        if account is None:
            raise unknown(account_id)
        return account

    async def _write(
        self, which: str, account_id: str, fields: Mapping[str, str | int | bytes], key: str | bytes = ""
    ) -> bool:
        """Write fields. Return False for a creation that was done before with the same key."""
        flat = [item for pair in fields.items() for item in pair]
        keys = [account_key(account_id), wallet_key(account_id), f"gw:{{{account_id}}}:made"]
        reply = await self._client.run(_WRITE, keys, [which, layout.ABOUT, key, KEY_KEPT_S, *flat])
        if reply == b"EXISTS":
            raise AccountError(
                f"the account `{account_id}` exists already: see `gateway account show {account_id}`"
            ).of_kind("exists")
        if reply == b"CHANGED":
            raise AccountChanged(f"the account `{account_id}` is being changed by others: try again")
        if reply == b"UNKNOWN":
            raise unknown(account_id)
        if reply == b"CLOSED":
            raise AccountError(f"the account `{account_id}` is closed for good: create another")
        with suppress(GatewayError):  # the account is written
            await self._client.call("XADD", CHANGED, "MAXLEN", "~", MOST_CHANGED, "*", "account", account_id)
        return bool(reply == b"OK")

    async def _read(self, ids: Sequence[str]) -> list[Account]:
        hashes = [self._client.submit("HGETALL", account_key(account_id)) for account_id in ids]
        numbers = [self._client.submit("HGET", wallet_key(account_id), "numbers") for account_id in ids]
        replies = await asyncio.gather(*hashes, *numbers)
        return [
            _with_numbers(profile, stored, fields.get(b"external_id", b"").decode())
            for account_id, fields, stored in zip(ids, replies[: len(ids)], replies[len(ids) :], strict=True)
            if (profile := profile_of(account_id, fields)) is not None
        ]


def account_key(account_id: str) -> str:
    """Return the Redis key of an account's profile. The braces put all keys of an account in one hash slot of a cluster."""
    return f"gw:{{{account_id}}}:account"


def wallet_key(account_id: str) -> str:
    """Return the Redis key of an account's balance and requests, which only the wallet changes. It may be large."""
    return f"gw:{{{account_id}}}:wallet"


def profile_of(account_id: str, fields: Mapping[bytes, bytes]) -> Profile | None:
    """Return the profile in a reply to HGETALL, or None if the reply is empty."""
    if not fields:
        return None
    models = fields[b"models"].decode()
    return Profile(
        account_id,
        AccountStatus(fields[b"status"].decode()),
        fields[b"group"].decode(),
        int(fields[b"credit_line"]),
        tuple(models.split(",")) if models else (),
        _limits(fields[b"limits"]),
        _budgets(stored) if (stored := fields.get(b"budgets")) else NO_BUDGETS,
    )


def _with_numbers(profile: Profile, numbers: bytes | None, external_id: str) -> Account:
    if numbers is None:
        raise StoreError(
            f"the account `{profile.id}` was written by a gateway of another version after the store's data was converted: "
            f"delete the key {layout.KEY} and start this version again, which converts it"
        )
    balance, held, holds, _ = map(int, numbers.split())
    return Account(
        profile.id,
        profile.status,
        profile.group,
        profile.credit_line_micros,
        profile.models,
        profile.limits,
        profile.budgets,
        balance,
        held,
        holds,
        external_id,
    )


_limits = msgspec.json.Decoder(AccountLimits).decode
_budgets = msgspec.json.Decoder(Budgets).decode


def _encoded(budgets: Budgets) -> bytes:
    """Return the field `budgets`. Empty means none, as does a field that is not there."""
    return b"" if budgets == NO_BUDGETS else msgspec.json.encode(budgets)


def _fields(profile: Profile) -> dict[str, str | int | bytes]:
    return {
        "status": profile.status.value,
        "group": profile.group,
        "credit_line": profile.credit_line_micros,
        "models": ",".join(profile.models),
        "limits": msgspec.json.encode(profile.limits),
        "balance": layout.UNREADABLE,
        **({} if profile.budgets == NO_BUDGETS else {"budgets": _encoded(profile.budgets)}),
    }


def _amount(credit_line: int) -> int:
    if not 0 <= credit_line <= MAX_AMOUNT:
        raise AccountError("a credit line is an amount of zero or more")
    return credit_line


def unknown(account_id: str) -> AccountError:
    """Return the error for an account that does not exist."""
    return AccountError(f"there is no account `{account_id}`: `gateway account list` shows all").of_kind("not_found")

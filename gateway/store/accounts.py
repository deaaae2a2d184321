"""Accounts: their status, group, models, limits and budgets, and the directory that lists them.

1. **Only the wallet changes balances.** Nothing here writes the balance or a hold of an existing account.
2. **A closed account stays closed.** Its data is kept as history, and nothing here changes it again.

`Directory` has the ids of accounts in order, and the fields that lists select them by. Each process keeps one of its own. To find
the ids, all keys of the store are looked at: a tenth of a second where there are 40,000 accounts. So a process does that when it
is first asked, and beside its work again after `RELOAD_S`. In between it learns from a stream of the store which accounts were
written.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right, insort
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from gateway.base.errors import GatewayError, StoreError
from gateway.base.ids import now_ms, utc
from gateway.base.log import log
from gateway.config.schema import ACCOUNT_ID
from gateway.domain.facts import NO_BUDGETS, NO_LIMITS, AccountLimits, Budgets
from gateway.store.client.client import Client, Script

MAX_AMOUNT: Final = 2**53 - 1
"""Micros. Larger integers are not exact in a script, whose numbers are doubles."""

_ABOUT: Final = "numbers: balance, held, holds, no lease ends before; then requests by id"
"""The field `about` of every wallet. A value of more than 64 bytes makes the server use a hash table from the start: in its list
for small hashes, each call would search all requests."""
_WRITE: Final = Script.load(Path(__file__).with_name("account_write.lua"))
PAGE_SIZE: Final = 500
CHANGED: Final = "gw:accounts:changed"
"""A stream of the ids of accounts that were written, for `Directory`."""
REVOKED: Final = "gw:revoked"
"""A stream of the ids of accounts that are no longer active, or have a token that may no longer be used."""
MOST_CHANGED: Final = 10_000
KEY_KEPT_S: Final = 24 * 3600
"""How long a creation that is repeated with its key is known."""

_limits = msgspec.json.Decoder(AccountLimits).decode
_budgets = msgspec.json.Decoder(Budgets).decode
_metadata = msgspec.json.Decoder(dict[str, str]).decode
_OWN: Final = ("external_id", "name", "created_at")
NO_METADATA: Final[Mapping[str, str]] = {}

RELOAD_S: Final = 300.0
"""After this time the directory is read again, for accounts whose entry in the stream was lost."""
MOST_CHANGES: Final = 2000
"""Changes that are taken up one by one. After more, the directory is read again."""
AT_ONCE: Final = 1000
"""Accounts that are read in one go, so that the process does something else in between."""


class AccountError(GatewayError):
    """An operation on an account cannot be done; the message says why and what to do."""


class AccountChanged(AccountError):
    """Raised where the limits or budgets of an account have changed since the mark that a change was to be based on."""


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
    """An account as it was read. `external_id`: what it is called elsewhere, see `gateway.store.external_ids`.

    `name` and `metadata`: the operator's own words about it. `created_at`: in UTC, in ISO 8601.
    """

    balance_micros: int
    held_micros: int
    holds: int
    external_id: str = ""
    name: str = ""
    metadata: dict[str, str] = {}
    created_at: str = ""


Unreadable = Callable[[str, StoreError], None]
"""Called with the id of an account that cannot be read, and with why and what to do."""


def _refuse(_: str, error: StoreError) -> None:
    raise error


def _log_unreadable(account_id: str, error: StoreError) -> None:
    log.error("account_unreadable", account=account_id, reason=str(error))


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
        name: str = "",
        metadata: Mapping[str, str] = NO_METADATA,
        key: str = "",
    ) -> Account:
        """Create an active account with a balance of zero. Raises `AccountError` for an id that is invalid or taken.

        `external_id` must be claimed before. With a `key`, a call that is repeated with it within `KEY_KEPT_S` returns the account.
        """
        if not ACCOUNT_ID.fullmatch(account_id):
            raise AccountError(f"{account_id!r} is not an account id: use 3 to 32 of a-z and 0-9")
        profile = Profile(account_id, AccountStatus.ACTIVE, group, _amount(credit_line), tuple(models), limits, budgets)
        own: dict[str, Any] = {"created_at": utc(now_ms())}
        own |= {key: each for key, each in (("external_id", external_id), ("name", name)) if each}
        if metadata:
            own["metadata"] = msgspec.json.encode(metadata)
        if await self._write("new", account_id, _fields(profile) | own, key):
            own |= {"external_id": external_id, "name": name}
            return _with_numbers(profile, b"0 0 0 0", **own | {"metadata": dict(metadata)})
        return await self.change(account_id)

    async def get(self, account_id: str) -> Account | None:
        """Return the account, or None if there is none."""
        accounts = await self.several([account_id], _refuse)
        return accounts[0] if accounts else None

    async def all(self, unreadable: Unreadable = _log_unreadable) -> AsyncIterator[Account]:
        """Yield every account, in no order. One that is created meanwhile may be missing.

        Those that cannot be read are left out, and `unreadable` is called for each.
        """
        seen: set[str] = set()
        page: list[str] = []
        async for key in self._client.keys(account_key("*")):
            account_id = key[4:-9]
            if account_id not in seen:
                seen.add(account_id)
                page.append(account_id)
            if len(page) == PAGE_SIZE:
                for account in await self.several(page, unreadable):
                    yield account
                page = []
        for account in await self.several(page, unreadable):
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
        name: str | None = None,
        metadata: Mapping[str, str] | None = None,
        mark: bytes = b"",
    ) -> Account:
        """Set the given fields and leave the others. `external_id` must be claimed before.

        Raises `AccountError` if the account is unknown or closed, or a value is out of range, and `AccountChanged` where its limits
        or budgets are not as they were when its mark was `mark`.
        """
        fields: dict[str, str | int | bytes | None] = {
            "status": status and status.value,
            "group": group,
            "credit_line": None if credit_line is None else _amount(credit_line),
            "models": None if models is None else ",".join(models),
            "limits": None if limits is None else msgspec.json.encode(limits),
            "budgets": None if budgets is None else _encoded(budgets),
            "external_id": external_id,
            "name": name,
            "metadata": None if metadata is None else msgspec.json.encode(metadata),
        }
        given = {name: each for name, each in fields.items() if each is not None}
        if given:
            await self._write("old", account_id, given, mark)
        account = await self.get(account_id)
        if account is None:
            raise unknown(account_id)
        return account

    async def mark(self, account_id: str) -> bytes:
        """Return the mark of an account's limits and budgets: another one after each change of them."""
        marked = await self._client.call("HMGET", account_key(account_id), "limits", "budgets")
        return b"".join(each or b"" for each in marked)

    async def _write(
        self, which: str, account_id: str, fields: Mapping[str, str | int | bytes], key: str | bytes = ""
    ) -> bool:
        """Write fields. Return False for a creation that was done before with the same key."""
        flat = [item for pair in fields.items() for item in pair]
        keys = [account_key(account_id), wallet_key(account_id), f"gw:{{{account_id}}}:made"]
        reply = await self._client.run(_WRITE, keys, [which, _ABOUT, key, KEY_KEPT_S, *flat])
        if reply == b"EXISTS":
            raise AccountError(f"the account `{account_id}` exists already").of_kind("exists")
        if reply == b"CHANGED":
            raise AccountChanged(f"the account `{account_id}` is being changed by others: try again")
        if reply == b"UNKNOWN":
            raise unknown(account_id)
        if reply == b"CLOSED":
            raise AccountError(f"the account `{account_id}` is closed for good: create another")
        await announce(self._client, CHANGED, account_id)
        if fields.get("status", AccountStatus.ACTIVE) != AccountStatus.ACTIVE:
            await announce(self._client, REVOKED, account_id)
        return bool(reply == b"OK")

    async def several(self, ids: Sequence[str], unreadable: Unreadable = _log_unreadable) -> list[Account]:
        """Return the accounts with these ids, in this order. Those that do not exist, or cannot be read, are left out."""
        hashes = [self._client.submit("HGETALL", account_key(account_id)) for account_id in ids]
        numbers = [self._client.submit("HGET", wallet_key(account_id), "numbers") for account_id in ids]
        replies = await asyncio.gather(*hashes, *numbers, return_exceptions=True)
        found = []
        for account_id, fields, stored in zip(ids, replies[: len(ids)], replies[len(ids) :], strict=True):
            try:
                account = _account_of(account_id, fields, stored)
            except StoreError as error:
                unreadable(account_id, error)
            else:
                found += [account] if account else []
        return found


async def announce(client: Client, stream: str, account_id: str) -> None:
    """Tell all processes of a write to an account, which is done. Where they are not told, they find it later."""
    with suppress(GatewayError):
        await client.call("XADD", stream, "MAXLEN", "~", MOST_CHANGED, "*", "account", account_id)


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


def _account_of(account_id: str, *replies: Any) -> Account | None:
    """Return the account in the replies to HGETALL of its profile and HGET of its numbers. Raises `StoreError`."""
    for reply in replies:
        if isinstance(reply, BaseException):
            raise reply
    fields, numbers = replies
    try:
        profile = profile_of(account_id, fields)
        own: dict[str, Any] = {name: fields.get(name.encode(), b"").decode() for name in _OWN}
        own["metadata"] = _metadata(fields.get(b"metadata") or b"{}")
        return _with_numbers(profile, numbers, **own) if profile else None
    except (LookupError, ValueError, msgspec.MsgspecError) as error:
        raise StoreError(
            f"{account_key(account_id)} or {wallet_key(account_id)} is not as it was written ({error}): restore the store"
        ) from None


def _with_numbers(profile: Profile, numbers: bytes | None, **own: Any) -> Account:
    if numbers is None:
        raise StoreError(
            f"the account `{profile.id}` has no balance in the store: restore a backup, and see `gateway verify`"
        )
    balance, held, holds, _ = map(int, numbers.split())
    return Account(**msgspec.structs.asdict(profile), balance_micros=balance, held_micros=held, holds=holds, **own)


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
        **({} if profile.budgets == NO_BUDGETS else {"budgets": _encoded(profile.budgets)}),
    }


def _amount(credit_line: int) -> int:
    if not 0 <= credit_line <= MAX_AMOUNT:
        raise AccountError("a credit line is an amount of zero or more")
    return credit_line


def unknown(account_id: str) -> AccountError:
    """Return the error for an account that does not exist."""
    return AccountError(f"there is no account `{account_id}`; look it up in the list of accounts").of_kind("not_found")


class AccountEntry(NamedTuple):
    """The properties by which lists select an account. `text` is searched: its id, external id and name in small letters."""

    id: str
    status: str
    group: str
    text: str

    @classmethod
    def of(cls, account: Account) -> AccountEntry:
        """Return the entry of an account."""
        return cls(account.id, account.status, account.group, _text(account.id, account.external_id, account.name))


class Directory:
    """The accounts of one store. Every method may raise `StoreAway`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = asyncio.Lock()
        self._ids: list[str] = []
        self._entries: dict[str, AccountEntry] | None = None
        self._seen = ""
        self._until = 0.0
        self._reloading: asyncio.Task[None] | None = None

    async def ids(self, after: str = "") -> Sequence[str]:
        """Return the ids of all accounts behind `after`, in order."""
        async with self._lock:
            await self._refresh()
            return self._ids[bisect_right(self._ids, after) :]

    async def entries(self, after: str = "") -> Iterator[AccountEntry]:
        """Return the entries of all accounts whose ids are behind `after`, in the order of their ids."""
        async with self._lock:
            await self._refresh()
            if self._entries is None:
                self._entries = {entry.id: entry async for entry in self._read(self._ids)}
            found = self._entries
            return (found[each] for each in self._ids[bisect_right(self._ids, after) :] if each in found)

    async def _refresh(self) -> None:
        if not self._seen or not await self._follow():
            await self._load()
        elif time.monotonic() >= self._until and (self._reloading is None or self._reloading.done()):
            self._reloading = asyncio.get_running_loop().create_task(self._reload())

    async def _reload(self) -> None:
        """Read the directory again. The present directory answers until the new one is complete."""
        fresh = Directory(self._client)
        with suppress(GatewayError):
            await fresh._load()
            if self._entries is not None:
                fresh._entries = {entry.id: entry async for entry in self._read(fresh._ids)}
            async with self._lock:
                self._ids, self._entries = fresh._ids, fresh._entries
                self._seen, self._until = fresh._seen, fresh._until

    async def _load(self) -> None:
        newest = await self._client.call("XREVRANGE", CHANGED, "+", "-", "COUNT", 1)
        self._entries = None
        self._ids = sorted({key[4:-9] async for key in self._client.keys(account_key("*"))})
        self._seen = newest[0][0].decode() if newest else "0-0"
        self._until = time.monotonic() + RELOAD_S

    async def _follow(self) -> bool:
        """Take up the changes since the last call. Return whether that was possible."""
        lines: list[Any] = await self._client.call("XRANGE", CHANGED, f"({self._seen}", "+", "COUNT", MOST_CHANGES + 1)
        if len(lines) > MOST_CHANGES:
            return False
        changed = {fields[b"account"].decode() for _, fields in lines}
        if self._entries is None:
            found = changed
        else:
            entries = [entry async for entry in self._read(changed)]
            self._entries.update((entry.id, entry) for entry in entries)
            found = {entry.id for entry in entries}
        for account_id in found:
            place = bisect_right(self._ids, account_id)
            if not (place and self._ids[place - 1] == account_id):
                insort(self._ids, account_id)
        if lines:
            self._seen = lines[-1][0].decode()
        return True

    async def _read(self, ids: Iterable[str]) -> AsyncIterator[AccountEntry]:
        waiting = list(ids)
        for first in range(0, len(waiting), AT_ONCE):
            some = waiting[first : first + AT_ONCE]
            names = ("status", "group", "external_id", "name")
            calls = [self._client.submit("HMGET", account_key(each), *names) for each in some]
            for account_id, (status, group, *words) in zip(some, await asyncio.gather(*calls), strict=True):
                if status is not None:
                    text = _text(account_id, *((each or b"").decode() for each in words))
                    yield AccountEntry(account_id, status.decode(), group.decode(), text)


def _text(*words: str) -> str:
    return "\n".join(words).casefold()

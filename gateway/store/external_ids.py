"""External ids: what an account is called elsewhere, such as an e-mail address or a customer number. No two accounts share one.

1. **A claim decides.** Each external id has a key of its own, wherever that is in a cluster, with the account that claims it. One
   script replaces a claim if it is what was read, so only one of several accounts gets it.
2. **An external id belongs to an account if both say so**: the claim names the account, and the account has the external id. It is
   claimed first. Between the two writes it belongs to no account.
3. **What was interrupted there can be repeated**, and does not last: a claim that its account does not confirm can be taken after
   `UNCONFIRMED_S`, and `gateway verify` deletes it.

No request reads any of this.
"""

from __future__ import annotations

import unicodedata
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

from gateway.base import crash_points
from gateway.base.ids import EXTERNAL, ms_of
from gateway.store.accounts import Account, AccountError, AccountStatus, account_key
from gateway.store.client.client import Client, Script

PREFIX: Final = "gw:external:"
MAX_BYTES: Final = 200
UNCONFIRMED_S: Final = 60
"""After how many seconds a claim that its account does not confirm is taken for interrupted."""
_SWAP: Final = Script.load(Path(__file__).with_name("external_id.lua"))
_CLEAR: Final = Script(
    "external_id_clear",
    "if redis.call('HGET', KEYS[1], 'external_id') == ARGV[1] then redis.call('HDEL', KEYS[1], 'external_id') end",
)


class ExternalIdClaim(NamedTuple):
    """A claim as it was read. Without an account, there is none."""

    raw: bytes
    account: str
    at_ms: int


class ExternalIds:
    """The external ids of one store. Every method may also raise `StoreAway`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def find(self, external_id: str) -> str | None:
        """Return the id of the account with this external id, or None."""
        claim = await self._claim(external_id)
        return claim.account if claim.account and await self._confirms(claim.account, external_id) else None

    async def resolve(self, name: str) -> str:
        """Return the id of an account that is named by its id, or by `ext:` and its external id. Raises `AccountError`."""
        if not name.startswith(EXTERNAL):
            return name
        external_id = name.removeprefix(EXTERNAL)
        if not (found := await self.find(external_id)):
            raise no_owner(external_id)
        return found

    @asynccontextmanager
    async def claimed(self, account_id: str, external_id: str) -> AsyncIterator[None]:
        """Claim an external id for an account, which is to be written inside; empty for none. The one before is free at the end.

        Raises `AccountError` for one that is invalid, or belongs to another account.
        """
        if external_id:
            check(external_id)
        before = (await self._client.call("HGET", account_key(account_id), "external_id") or b"").decode()
        if external_id:
            await self._take(account_id, external_id)
        crash_points.point("external.claimed")
        try:
            yield
        except AccountError:
            if external_id not in ("", before) and not await self._confirms(account_id, external_id):
                await self._release(account_id, external_id)
            raise
        if external_id and (await self._claim(external_id)).account != account_id:
            await self._client.run(_CLEAR, [account_key(account_id)], [external_id])
            raise AccountError(f"the external id of `{account_id}` was changed by others meanwhile: try again")
        crash_points.point("external.written")
        if before not in ("", external_id):
            await self._release(account_id, before)

    async def check(self, account: Account) -> str:
        """Restore the claim of an account's external id where the store has lost it. Return what is wrong, or an empty text."""
        if not account.external_id or account.status is AccountStatus.CLOSED:
            return ""
        claim = await self._claim(account.external_id)
        if not claim.account:
            await self._swap(account.external_id, b"", account.id, await self._now_ms())
            claim = await self._claim(account.external_id)
        if claim.account == account.id:
            return ""
        return (
            f"its external id {account.external_id!r} belongs to the account `{claim.account}`; give it another one: "
            f"gateway account set {account.id} --external-id TEXT"
        )

    async def sweep(self) -> int:
        """Delete the claims that were interrupted, and return how many they were."""
        swept, now_ms = 0, await self._now_ms()
        async for key in self._client.keys(f"{PREFIX}*"):
            external_id = key.removeprefix(PREFIX)
            claim = await self._claim(external_id)
            if claim.account and _is_old(claim, now_ms) and not await self._confirms(claim.account, external_id):
                swept += await self._swap(external_id, claim.raw)
        return swept

    async def _take(self, account_id: str, external_id: str) -> None:
        while True:
            now_ms, claim = await self._now_ms(), await self._claim(external_id)
            if claim.account not in ("", account_id):
                await self._refuse_owned(claim, external_id, now_ms)
            if await self._swap(external_id, claim.raw, account_id, now_ms):
                return

    async def _refuse_owned(self, claim: ExternalIdClaim, external_id: str, now_ms: int) -> None:
        """Raise `AccountError` unless the claim of another account can be taken: it was interrupted, or the account is closed."""
        status = await self._client.call("HGET", account_key(claim.account), "status")
        if status is not None and status.decode() == AccountStatus.CLOSED:
            return
        if await self._confirms(claim.account, external_id):
            text = f"the external id {external_id!r} belongs to the account `{claim.account}`"
            raise AccountError(text).of_kind("exists")
        if not _is_old(claim, now_ms):
            raise AccountError(
                f"the external id {external_id!r} is being given to the account `{claim.account}`: try again in a minute"
            ).of_kind("exists")

    async def _release(self, account_id: str, external_id: str) -> None:
        claim = await self._claim(external_id)
        if claim.account == account_id:
            await self._swap(external_id, claim.raw)

    async def _claim(self, external_id: str) -> ExternalIdClaim:
        raw: bytes = await self._client.call("GET", PREFIX + external_id) or b""
        account, _, at_ms = raw.decode().partition(" ")
        return ExternalIdClaim(raw, account, int(at_ms or 0))

    async def _confirms(self, account_id: str, external_id: str) -> bool:
        stored: bytes | None = await self._client.call("HGET", account_key(account_id), "external_id")
        return stored == external_id.encode()

    async def _swap(self, external_id: str, expected: bytes, account_id: str = "", now_ms: int = 0) -> bool:
        """Replace a claim, or delete it where no account is given, if it still is `expected`; return whether it was."""
        claim = f"{account_id} {now_ms}" if account_id else ""
        return bool(await self._client.run(_SWAP, [PREFIX + external_id], [expected, claim]))

    async def _now_ms(self) -> int:
        return ms_of(await self._client.call("TIME"))


def check(external_id: str) -> None:
    """Raise `AccountError` for a text that cannot be an external id."""
    try:
        size = len(external_id.encode())
    except UnicodeEncodeError:
        raise AccountError("an external id is text in UTF-8") from None
    if not 1 <= size <= MAX_BYTES:
        raise AccountError(f"an external id has 1 to {MAX_BYTES} bytes; this one has {size}")
    if any(unicodedata.category(letter) in ("Cc", "Zl", "Zp") for letter in external_id):
        raise AccountError("an external id has no control characters and no line breaks")
    if external_id != external_id.strip():
        raise AccountError("an external id does not begin or end with a space")


def no_owner(external_id: str) -> AccountError:
    """Return the error for an external id that no account has."""
    text = f"no account has the external id {external_id!r}; look it up in the list of accounts"
    return AccountError(text).of_kind("not_found")


def _is_old(claim: ExternalIdClaim, now_ms: int) -> bool:
    return now_ms - claim.at_ms > UNCONFIRMED_S * 1000

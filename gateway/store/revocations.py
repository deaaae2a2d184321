"""Revocations: which tokens that are in use may no longer be used, and the announcement that one is.

What deletes or disables a token, or suspends or closes an account, adds the account's id to the stream `REVOKED`. An announcement
only causes the gateways to read the account's tokens again, so one that is forged, late or repeated ends nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from gateway.base.errors import Refused
from gateway.store.accounts import REVOKED, AccountStatus, account_key
from gateway.store.client.client import Client
from gateway.store.tokens import TokenStatus, has_expired, token_of, tokens_key


class Revocation(msgspec.Struct, frozen=True):
    """Why a token that was accepted may no longer be used."""

    status: int
    code: str
    message: str

    def error(self) -> Refused:
        """Return the error for a request that is in progress: with the code that the next request would get."""
        return Refused(self.status, self.code, self.message)


DELETED: Final = Revocation(401, "token_invalid", "The token was deleted while it was in use. Use another.")
DISABLED: Final = Revocation(
    401, "token_disabled", "The token was disabled while it was in use. Have it enabled, or use another."
)
EXPIRED: Final = Revocation(401, "token_expired", "The token expired while it was in use. Ask for a new one.")
INACTIVE: Final = Revocation(
    403, "account_inactive", "The account was suspended or closed. Ask the operator of this service."
)


class Revocations:
    """Finds revoked tokens in one store."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def announced(self, after: str) -> tuple[str, list[str]]:
        """Return the accounts that were announced after the announcement of this id, and the id of the last one.

        An empty id stands for the last one of now. Raises `StoreAway` and `StoreError`.
        """
        if not after:
            newest = await self._client.call("XREVRANGE", REVOKED, "+", "-", "COUNT", 1)
            return newest[0][0].decode() if newest else "0-0", []
        lines = await self._client.call("XRANGE", REVOKED, f"({after}", "+")
        accounts = [fields[b"account"].decode() for _, fields in lines]
        return lines[-1][0].decode() if lines else after, accounts

    async def find(
        self, tokens: Mapping[str, Collection[str]], expiries: dict[str, int] | None = None
    ) -> dict[str, Revocation]:
        """Return the revoked ones among `tokens`, by their ids. `tokens`: ids of tokens by account.

        `expiries` gets when those expire that are not revoked: a token that is replaced expires earlier than it did before.
        Of an account that the store does not know nothing is returned: the store has lost it, which revokes nothing. Raises
        `StoreAway` and `StoreError`.
        """
        submit = self._client.submit
        pending = [
            (
                ids,
                submit("HMGET", tokens_key(account), *map(_short, ids)),
                submit("HGET", account_key(account), "status"),
            )
            for account, ids in tokens.items()
        ]
        found: dict[str, Revocation] = {}
        for ids, records, status in pending:
            raws, state = await records, await status
            if state is None:
                continue
            for token_id, raw in zip(ids, raws, strict=True):
                revocation = INACTIVE if state.decode() != AccountStatus.ACTIVE else _revocation(raw)
                if revocation is not None:
                    found[token_id] = revocation
                elif expiries is not None and (at := token_of(raw).expires_at) is not None:
                    expiries[token_id] = at
        return found


def _revocation(raw: bytes | None) -> Revocation | None:
    """Return why a token with this record may not be used, None where it may."""
    if raw is None:
        return DELETED
    token = token_of(raw)
    if token.status is TokenStatus.DISABLED:
        return DISABLED
    return EXPIRED if has_expired(token.expires_at) else None


def _short(token_id: str) -> str:
    return token_id.rpartition("-")[2]

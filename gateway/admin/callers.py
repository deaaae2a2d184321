"""Who calls the operator's port: by the admin token, or by a management token with its scopes.

Wrong tokens are counted, and their answers are slow after the first few from one address, so that trying them takes long; nobody
else waits.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable
from typing import Final

from gateway.errors import Refused
from gateway.log import Logger
from gateway.management.desk import Actor
from gateway.management.operation import Scope
from gateway.store.management_tokens import ManagementTokens

ADMIN: Final = Actor("admin.token")
WRONG_AT_ONCE: Final = 10
"""Wrong tokens of an address within a minute that are answered at once."""
SLOW_S: Final = 1.0
MAX_WAITING: Final = 100
"""Slow answers at a time; those above it are refused at once."""
MINUTE_S: Final = 60.0
MAX_ADDRESSES: Final = 10_000

log = Logger("gateway.admin.callers")


class Callers:
    """Finds out who calls."""

    def __init__(
        self, token: Callable[[], str], tokens: ManagementTokens, count: Callable[[], None] = lambda: None
    ) -> None:
        """`token` returns the admin token, and is asked at each request. `count` is called for each wrong token."""
        self._token = token
        self._tokens = tokens
        self._count = count
        self._wrong: dict[str, int] = {}
        self._since = time.monotonic()
        self._waiting = 0

    async def of(self, authorization: str, address: str) -> Actor:
        """Return who sent a request with this header from this address.

        Raises `Refused` (401, and 429 where too many wrong tokens wait for their answer), and `StoreAway` for management tokens.
        """
        scheme, _, text = authorization.partition(" ")
        if scheme.lower() == "bearer":
            given = text.strip().encode("utf-8", "surrogateescape")
            if hmac.compare_digest(given, self._token().encode()):
                return ADMIN
            token = await self._tokens.authenticate(text.strip())
            if token is not None:
                scopes = frozenset(map(Scope, set(token.scopes) & set(Scope)))
                return Actor(f"token {token.id} {token.name}".rstrip(), scopes, token.id)
        if authorization:
            await self._slow(address)
        raise Refused(
            401, "token_invalid", "Send the admin token or a management token: `Authorization: Bearer TOKEN`."
        )

    async def _slow(self, address: str) -> None:
        self._count()
        now = time.monotonic()
        if now - self._since > MINUTE_S or len(self._wrong) > MAX_ADDRESSES:
            self._wrong.clear()
            self._since = now
        wrong = self._wrong[address] = self._wrong.get(address, 0) + 1
        if wrong == WRONG_AT_ONCE:
            log.warning("admin_tokens_wrong", address=address)
        if wrong > WRONG_AT_ONCE:
            if self._waiting >= MAX_WAITING:
                raise Refused(429, "rate_limited", "Too many wrong tokens.", retry_after_s=SLOW_S)
            self._waiting += 1
            try:
                await asyncio.sleep(SLOW_S)
            finally:
                self._waiting -= 1

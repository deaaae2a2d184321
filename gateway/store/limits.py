"""Limits: requests and tokens a minute, and requests at once, of an account.

1. All limits of one request are decided in one script, by the store's clock: all or nothing.
2. The same request id takes once, however often it asks, and gives back once.
3. What a dead process holds comes back by itself: slots are leased.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final, Literal

import msgspec

from gateway.facts import LARGEST_RATE, AccountLimits
from gateway.store.client.client import Client, Script

_MINUTE_US: Final = 60_000_000
_LIMITS: Final = Script.load(Path(__file__).with_name("limits.lua"))

Kind = Literal["requests", "tokens", "concurrent"]


class Rate(msgspec.Struct, frozen=True):
    """A limit a minute: what is left of it now, and in how many milliseconds all of it is there again."""

    limit: int
    remaining: int
    reset_ms: int


class Taken(msgspec.Struct, frozen=True):
    """The request may go on. A rate is None where there is no such limit."""

    requests: Rate | None = None
    tokens: Rate | None = None


class Limited(msgspec.Struct, frozen=True):
    """The request may not go on, and nothing was taken.

    `retry_after_ms` is exact for the rates, as long as nobody else takes first, and a guess for `concurrent`.
    It is None where waiting cannot help: the tokens of this request are more than a whole minute's.
    """

    kind: Kind
    retry_after_ms: int | None
    requests: Rate | None = None
    tokens: Rate | None = None


class RateLimiter:
    """The limits of one store. `scope` keeps apart what differs in its rules: the name of a plugin."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def take(
        self, account: str, request_id: str, *, scope: str, rules: AccountLimits, tokens: int, lease_ms: int
    ) -> Taken | Limited:
        """Take one request, `tokens`, and a slot that is free again after `lease_ms` at the latest.

        Raises `StoreAway`. Whether something was taken is then unknown; `give_back` is right in either case.
        """
        return await self._ask("take", account, request_id, scope, rules, tokens, lease_ms)

    async def look(
        self, account: str, request_id: str, *, scope: str, rules: AccountLimits, tokens: int
    ) -> Taken | Limited:
        """What `take` would answer now, with what is left before it. Takes nothing. Raises `StoreAway`."""
        return await self._ask("look", account, request_id, scope, rules, tokens, 0)

    def give_back(self, account: str, request_id: str, *, scope: str, tokens: int) -> asyncio.Future[object]:
        """Free the slot, and count `tokens` in place of those that were taken. Safe to repeat.

        A correction upwards may leave less than nothing; the account then waits until that has flowed back.
        It is sent with the other calls of this tick; the future tells of `StoreAway`.
        """
        counted = min(tokens, LARGEST_RATE)
        return self._client.run(_LIMITS, _keys(account, scope, request_id), ["give_back", request_id, counted])

    async def _ask(
        self, what: str, account: str, request_id: str, scope: str, rules: AccountLimits, tokens: int, lease_ms: int
    ) -> Taken | Limited:
        if rules.tokens_per_minute is not None and tokens > rules.tokens_per_minute:
            return Limited("tokens", None)
        limits = (rules.requests_per_minute or 0, rules.tokens_per_minute or 0, rules.concurrent or 0)
        kind, wait_ms, requests_level, tokens_level = await self._client.run(
            _LIMITS, _keys(account, scope, request_id), [what, request_id, tokens, lease_ms, *limits]
        )
        requests = _rate(rules.requests_per_minute, requests_level)
        rate = _rate(rules.tokens_per_minute, tokens_level)
        return Limited(kind.decode(), wait_ms, requests, rate) if kind else Taken(requests, rate)


def _keys(account: str, scope: str, request_id: str) -> list[str]:
    prefix = f"gw:{{{account}}}:limits:{scope}"
    return [f"{prefix}:requests", f"{prefix}:tokens", f"{prefix}:slots", f"{prefix}:taken:{request_id}"]


def _rate(limit: int | None, level: int) -> Rate | None:
    if limit is None:
        return None
    return Rate(limit, max(0, limit - -(-level // _MINUTE_US)), -(-level // (limit * 1000)))

"""Rate limits of an account: requests and tokens per minute, and concurrent requests.

1. One script decides all limits of a request, by the store's clock: all or nothing.
2. A request id is counted once and released once, however often the calls are repeated.
3. What a dead process held expires: slots are leased.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from gateway.config.allowance import LARGEST_RATE
from gateway.facts import AccountLimits
from gateway.store.client.client import Argument, Client, Script
from gateway.store.client.step import Step

_MINUTE_US: Final = 60_000_000
_LIMITS: Final = Script.load(Path(__file__).with_name("limits.lua"))

Kind = Literal["requests", "tokens", "concurrent"]


class Rate(msgspec.Struct, frozen=True):
    """A limit per minute: how much of it remains, and in how many milliseconds all of it is available again."""

    limit: int
    remaining: int
    reset_ms: int


class Taken(msgspec.Struct, frozen=True):
    """The request is allowed. A rate is None if there is no such limit."""

    requests: Rate | None = None
    tokens: Rate | None = None


class Limited(msgspec.Struct, frozen=True):
    """The request is over a limit, and nothing was taken.

    `retry_after_ms` is exact for the rates, unless another request takes first, and an estimate for `concurrent`.
    It is None if waiting cannot help: the request needs more tokens than the limit of a whole minute.
    """

    kind: Kind
    retry_after_ms: int | None
    requests: Rate | None = None
    tokens: Rate | None = None


class RateLimiter:
    """The rate limits of one store. `scope`: the name of a plugin, whose counters are separate from those of others."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def take(
        self, account: str, request_id: str, *, scope: str, rules: AccountLimits, tokens: int, lease_ms: int
    ) -> Taken | Limited:
        """Take one request, `tokens`, and a slot that is released after `lease_ms` at the latest.

        Raises `StoreAway`. The request may then have been counted; `give_back` is right in either case.
        """
        return await self._decide("take", account, request_id, scope, rules, tokens, lease_ms)

    def take_step(
        self,
        account: str,
        request_id: str,
        *,
        scope: str,
        rules: AccountLimits,
        tokens: int,
        lease_ms: int,
        then: Callable[[Taken | Limited], Awaitable[None]],
    ) -> Step:
        """Return the step that does what `take` does. `then` is awaited with the result.

        It does not know that no wait can help a request which needs more tokens than the limit of a whole minute.
        """

        async def read(reply: Any) -> None:
            await then(_result(rules, reply))

        arguments = _arguments("take", request_id, rules, tokens, lease_ms)
        return Step(_LIMITS, _keys(account, scope, request_id), arguments, read)

    async def look(
        self, account: str, request_id: str, *, scope: str, rules: AccountLimits, tokens: int
    ) -> Taken | Limited:
        """Return what `take` would return now, with what remains before it, without taking. Raises `StoreAway`."""
        return await self._decide("look", account, request_id, scope, rules, tokens, 0)

    def give_back(self, account: str, request_id: str, *, scope: str, tokens: int) -> asyncio.Future[object]:
        """Release the slot, and count `tokens` in place of those that were taken. Safe to repeat.

        A correction upwards may exceed the limit; the account then waits until the excess has expired.
        The command is sent with the others of this tick; the future may get `StoreAway`.
        """
        step = self.give_back_step(account, request_id, scope=scope, tokens=tokens)
        return self._client.run(step.script, step.keys, step.arguments)

    def give_back_step(self, account: str, request_id: str, *, scope: str, tokens: int) -> Step:
        """Return the step that does what `give_back` does."""
        counted = min(tokens, LARGEST_RATE)
        return Step(_LIMITS, _keys(account, scope, request_id), ["give_back", request_id, counted])

    async def _decide(
        self,
        operation: str,
        account: str,
        request_id: str,
        scope: str,
        rules: AccountLimits,
        tokens: int,
        lease_ms: int,
    ) -> Taken | Limited:
        if rules.tokens_per_minute is not None and tokens > rules.tokens_per_minute:
            return Limited("tokens", None)
        arguments = _arguments(operation, request_id, rules, tokens, lease_ms)
        return _result(rules, await self._client.run(_LIMITS, _keys(account, scope, request_id), arguments))


def _arguments(operation: str, request_id: str, rules: AccountLimits, tokens: int, lease_ms: int) -> list[Argument]:
    limits = (rules.requests_per_minute or 0, rules.tokens_per_minute or 0, rules.concurrent or 0)
    return [operation, request_id, tokens, lease_ms, *limits]


def _result(rules: AccountLimits, reply: Any) -> Taken | Limited:
    kind, wait_ms, requests_level, tokens_level = reply
    request_rate = _rate(rules.requests_per_minute, requests_level)
    token_rate = _rate(rules.tokens_per_minute, tokens_level)
    return Limited(kind.decode(), wait_ms, request_rate, token_rate) if kind else Taken(request_rate, token_rate)


def _keys(account: str, scope: str, request_id: str) -> list[str]:
    prefix = f"gw:{{{account}}}:limits:{scope}"
    return [f"{prefix}:rates", f"{prefix}:slots", f"{prefix}:taken:{request_id}"]


def _rate(limit: int | None, level: int) -> Rate | None:
    if limit is None:
        return None
    return Rate(limit, max(0, limit - -(-level // _MINUTE_US)), -(-level // (limit * 1000)))

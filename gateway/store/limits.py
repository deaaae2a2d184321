"""Rate limits of an account and of its tokens: requests and tokens per minute, and concurrent requests.

1. One script decides all limits of a request, by the store's clock: all or nothing.
2. A request id is counted once and released once, however often the calls are repeated.
3. What a dead process held expires: slots are leased.
"""

from __future__ import annotations

import asyncio
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from gateway.config.schema import LARGEST_RATE
from gateway.domain.facts import AccountLimits
from gateway.store.client.client import Argument, Client, Script
from gateway.store.client.steps import HOLE, ID, Declared, Hole, Step

_MINUTE_US: Final = 60_000_000
_LIMITS: Final = Script.load(Path(__file__).with_name("limits.lua"))

Kind = Literal["requests", "tokens", "concurrent"]


class Rate(msgspec.Struct, frozen=True):
    """A limit per minute: how much of it remains, and in how many milliseconds all of it is available again."""

    limit: int
    remaining: int
    reset_ms: int


class TokenLimits(msgspec.Struct, frozen=True):
    """The limits of the token that a request uses. They apply in addition to those of its account."""

    token_id: str
    rules: AccountLimits


class Taken(msgspec.Struct, frozen=True):
    """The request is allowed. Each rate is the account's or its token's, whichever has less left; None for no such limit."""

    requests: Rate | None = None
    tokens: Rate | None = None


class Limited(msgspec.Struct, frozen=True):
    """The request is over a limit, and nothing was taken.

    `retry_after_ms` is exact for the rates, unless another request takes first, and an estimate for `concurrent`.
    It is None if waiting cannot help: the request needs more tokens than the limit of a whole minute. `of_token`: the limit is
    the token's, not the account's.
    """

    kind: Kind
    retry_after_ms: int | None
    requests: Rate | None = None
    tokens: Rate | None = None
    of_token: bool = False


def of_token(limits: Script) -> Script:
    """Return the script that decides by `limits` for an account and for a token at once."""
    own = Path(__file__).with_name("limits_of_token.lua")
    return Script(own.stem, f"local function limits(KEYS, ARGV)\n{limits.text}\nend\n{own.read_text(encoding='utf-8')}")


_LIMITS_OF_TOKEN: Final = of_token(_LIMITS)


class RateLimiter:
    """The rate limits of one store. `scope`: the name of a plugin, whose counters are separate from those of others."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def take(
        self,
        account: str,
        request_id: str,
        *,
        scope: str,
        rules: AccountLimits,
        tokens: int,
        lease_ms: int,
        token: TokenLimits | None = None,
        look: bool = False,
    ) -> Taken | Limited:
        """Take one request, `tokens`, and a slot that is released after `lease_ms` at the latest, of the account and of `token`.

        With `look` take nothing, and return what would be taken now, with what remains before it. Raises `StoreAway`. The request
        may then have been counted; to give it back is right in either case.
        """
        if (never := self.never_fits(tokens, rules, token)) is not None:
            return never
        step = self.taking(account, scope, rules, lease_ms, token).step(request_id, (tokens,))
        if look:
            step.arguments = ("look", *step.arguments[1:])
        return self.result(rules, token, await self.run(step))

    @staticmethod
    def taking(
        account: str, scope: str, rules: AccountLimits, lease_ms: int, token: TokenLimits | None = None
    ) -> Declared:
        """Return the declared step that does what `take` does, whose hole is the number of tokens. Its reply is one for `result`.

        Ask `never_fits` before: the step does not know that no wait can help.
        """
        of_token = () if token is None else _numbers(token.rules)
        arguments = ("take", ID, HOLE, lease_ms, *_numbers(rules), *of_token)
        return _declared(account, scope, token.token_id if token else None, arguments)

    @staticmethod
    def result(rules: AccountLimits, token: TokenLimits | None, reply: Any) -> Taken | Limited:
        """Return what the reply of `taking` says of these limits."""
        if token is None:
            return _of_one(rules, reply)
        account, own = _of_one(rules, reply[0]), _of_one(token.rules, reply[1])
        requests, tokens = _tighter(account.requests, own.requests), _tighter(account.tokens, own.tokens)
        refusals = [(each.retry_after_ms or 0, each) for each in (account, own) if isinstance(each, Limited)]
        if not refusals:
            return Taken(requests, tokens)
        wait_ms, longest = max(refusals, key=itemgetter(0))
        return Limited(longest.kind, wait_ms, requests, tokens, longest is own)

    @staticmethod
    def giving_back(account: str, scope: str, token_id: str | None) -> Declared:
        """Return the declared step that releases the slot, and counts tokens in place of those that were taken. Safe to repeat.

        Its hole is the number of tokens, as `counted`. `token_id`: that of the `TokenLimits` with which they were taken, if any. A
        correction upwards may exceed the limit; the account then waits until the excess has expired.
        """
        return _declared(account, scope, token_id, ("give_back", ID, HOLE))

    @staticmethod
    def left(limit: int, level: int) -> tuple[int, int]:
        """Return what remains of a limit, and in how many milliseconds all of it is available, by the level in a reply."""
        remaining = limit - -(-level // _MINUTE_US)
        return remaining if remaining > 0 else 0, -(-level // (limit * 1000))

    @staticmethod
    def counted(tokens: int) -> int:
        """Return what is given back for so many tokens."""
        return min(tokens, LARGEST_RATE)

    def run(self, step: Step) -> asyncio.Future[object]:
        """Send a step of this class alone, with the other commands of this tick. The future may get `StoreAway`."""
        return self._client.run(step.script, step.keys, step.arguments)

    @staticmethod
    def never_fits(tokens: int, rules: AccountLimits, token: TokenLimits | None) -> Limited | None:
        """Return the refusal of a request that needs more tokens than a limit of a whole minute, None where it does not."""
        if rules.tokens_per_minute is not None and tokens > rules.tokens_per_minute:
            return Limited("tokens", None)
        if token is not None and token.rules.tokens_per_minute is not None and tokens > token.rules.tokens_per_minute:
            return Limited("tokens", None, of_token=True)
        return None


def _declared(account: str, scope: str, token_id: str | None, arguments: tuple[Argument | Hole, ...]) -> Declared:
    prefix = f"gw:{{{account}}}:limits:{scope}"
    if token_id is None:
        return Declared(_LIMITS, _keys(prefix), arguments)
    return Declared(_LIMITS_OF_TOKEN, _keys(prefix) + _keys(f"{prefix}:{token_id}"), arguments)


def _keys(prefix: str) -> tuple[str, ...]:
    return f"{prefix}:rates", f"{prefix}:slots", f"{prefix}:taken:{ID}"


def _numbers(rules: AccountLimits) -> tuple[int, int, int]:
    return rules.requests_per_minute or 0, rules.tokens_per_minute or 0, rules.concurrent or 0


def _of_one(rules: AccountLimits, reply: Any) -> Taken | Limited:
    kind, wait_ms, requests_level, tokens_level = reply
    request_rate = _rate(rules.requests_per_minute, requests_level)
    token_rate = _rate(rules.tokens_per_minute, tokens_level)
    return Limited(kind.decode(), wait_ms, request_rate, token_rate) if kind else Taken(request_rate, token_rate)


def _rate(limit: int | None, level: int) -> Rate | None:
    if limit is None:
        return None
    return Rate(limit, *RateLimiter.left(limit, level))


def _tighter(one: Rate | None, other: Rate | None) -> Rate | None:
    """Return the rate of which less is left."""
    if one is None or other is None:
        return one or other
    return one if one.remaining <= other.remaining else other

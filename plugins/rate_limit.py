"""Limits each account's requests a minute, tokens a minute, and concurrent requests; and a token's, if it has limits of its own.

1. A refused request takes nothing. What an accepted request took is given back once, when it ends, whatever happened;
   if the store is unreachable then, as soon as it is back.
2. Tokens are counted before they are known, by an estimate: one for every four bytes of the body (an inline picture counts
   1,105 at most), and the request's `max_tokens`, if given, for each answer. At the end, the true count replaces the estimate.
3. Only chat completions count tokens and take a concurrency slot. Every other request counts as a request only.
4. An account that goes on sending beyond its limits gets its refusals later and later, so that it does not take the time of
   others: `plugins.pacing`.

A caller learns of its limits by the `x-ratelimit-*` headers, and by the refusal of a request beyond a limit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Coroutine
from typing import Any, Final

import msgspec

from gateway import (
    AccountLimits,
    Body,
    Caller,
    Declared,
    Exchange,
    Limited,
    Operation,
    Plan,
    PlanPart,
    Plugin,
    RateLimiter,
    Refused,
    Services,
    StoreAway,
    StoreError,
    Taken,
    TokenLimits,
    took_nothing,
)
from plugins.pacing import PacedRefusals

NO_LIMITS: Final = AccountLimits()
LEASE_MARGIN_S: Final = 60
RETRY_AFTER_S = 1.0
MAX_PENDING: Final = 10_000
"""How many releases are kept to be retried. Slots beyond that are freed when their lease ends."""
Rules = tuple[AccountLimits, TokenLimits | None]
"""The limits of the account, and those of the token if it has any."""

_REQUESTS: Final = ("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests")
_TOKENS: Final = ("x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens")
"""The headers of a limit, of what remains of it, and of when all of it is available again."""

LONG_MS: Final = 59_000
"""The gateway adds a longer wait to the message by itself."""


class Release(msgspec.Struct, frozen=True):
    """The release of one request's slot, with the true count of its tokens."""

    request_id: str
    end: Declared
    tokens: int


class RateLimit(Plugin):
    """Refuses requests beyond the limits.

    The limits of an account or its group, if they have any, replace these. Those of a token apply in addition.
    """

    API = 1
    requires = (Caller,)
    counts = True

    requests_per_minute: int | None = 60
    """Requests a minute, which may all come at once; `null` for no limit."""
    tokens_per_minute: int | None = None
    """Tokens a minute, prompts and answers together; `null` for no limit."""
    concurrent: int | None = 8
    """Concurrent chat completions; `null` for no limit."""

    def __post_init__(self) -> None:
        AccountLimits(self.requests_per_minute, self.tokens_per_minute, self.concurrent)

    async def start(self, services: Services) -> None:
        """Compute the lease of a slot, and begin to retry releases."""
        self.limits = services.store.limits
        self.scope = services.name
        self._log = services.log
        longest_s = max((channel.timers.total for channel in services.catalogue.channels.values()), default=0)
        self.lease_ms = int((longest_s + LEASE_MARGIN_S) * 1000)
        self._pending: deque[Release] = deque()
        self._refusals = PacedRefusals()
        services.every(RETRY_AFTER_S, self._retry)

    async def stop(self) -> None:
        """Retry pending releases once. Slots that are still not released are freed when their lease ends."""
        await self._retry()

    def prepare(self, plan: Plan) -> PlanPart:
        """Return the part that takes from the limits of a caller, and sets the `x-ratelimit-*` headers."""
        return LimitsPart(self, self.limits, plan[Caller], plan.operation)

    async def refuse(self, exchange: Exchange, refused: Refused) -> None:
        """Refuse a request of which the store took nothing."""
        await self._refusals.wait(exchange[Caller].account)
        raise refused

    async def look(self, exchange: Exchange, caller: Caller) -> None:
        """Set the headers for tokens, and take none."""
        rules, token = self.rules(caller, Operation.CHAT)
        if _limits_tokens(rules, token):
            left = await self._look(exchange, 0, (rules, token))
            set_headers(exchange.response_headers, Taken(tokens=left.tokens))

    async def _look(self, exchange: Exchange, tokens: int, limits: Rules) -> Taken | Limited:
        (rules, token), account, scope = limits, exchange[Caller].account, self.scope
        return await self.limits.take(
            account, exchange.id, scope=scope, rules=rules, tokens=tokens, lease_ms=0, token=token, look=True
        )

    async def explain(self, exchange: Exchange) -> str:
        """Return what is left of each limit, and take nothing."""
        caller = exchange[Caller]
        rules, token = self.rules(caller, exchange.request.operation)
        tokens = await _tokens(exchange, rules, token)
        result = await self._look(exchange, tokens, (rules, token))
        if isinstance(result, Limited):
            raise refusal(result, rules, token, tokens)
        parts = []
        if result.requests is not None:
            parts.append(f"1 of {result.requests.remaining} requests left of {result.requests.limit} a minute")
        if result.tokens is not None:
            parts.append(f"{tokens} of {result.tokens.remaining} tokens left of {result.tokens.limit} a minute")
        slots = [each.concurrent for each in (rules, token and token.rules) if each and each.concurrent]
        if slots:
            parts.append(f"a slot, of {min(slots)} at once")
        return f"takes {', '.join(parts)}" if parts else "no limits"

    def rules(self, caller: Caller, operation: Operation) -> Rules:
        """Return the limits of the account, and those of the token, None where it has none for such a request."""
        if operation.wire is None:
            requests = caller.limits.requests_per_minute or self.requests_per_minute
            of_token = AccountLimits(caller.token_limits.requests_per_minute)
            return AccountLimits(requests), _of_token(caller, of_token)
        own = caller.limits
        limits = AccountLimits(
            own.requests_per_minute or self.requests_per_minute,
            own.tokens_per_minute or self.tokens_per_minute,
            own.concurrent or self.concurrent,
        )
        return limits, _of_token(caller, caller.token_limits)

    def not_given_back(self, release: Release, error: Exception) -> None:
        """Keep a release to be retried, if the store is away."""
        if not isinstance(error, StoreAway):
            self._log_failure(release, error)
        elif len(self._pending) < MAX_PENDING:
            self._pending.append(release)

    async def _retry(self) -> None:
        while self._pending:
            try:
                release = self._pending[0]
                await self.limits.run(release.end.step(release.request_id, (release.tokens,)))
            except StoreAway:
                return
            except StoreError as error:
                self._log_failure(self._pending[0], error)
            self._pending.popleft()

    def _log_failure(self, release: Release, error: BaseException) -> None:
        self._log.error("limit_not_given_back", request_id=release.request_id, reason=str(error))


def _of_token(caller: Caller, limits: AccountLimits) -> TokenLimits | None:
    return None if limits == NO_LIMITS else TokenLimits(caller.counts_as or caller.token_id, limits)


async def _tokens(exchange: Exchange, rules: AccountLimits, token: TokenLimits | None) -> int:
    """Return the estimate of the tokens that a request will use."""
    if not _limits_tokens(rules, token):
        return 0
    return estimate(await exchange.body())


def estimate(body: Body) -> int:
    """Return how many tokens a request is counted as until they are known."""
    return body.prompt_tokens_estimate + body.n * (body.max_tokens or 0)


def _limits_tokens(rules: AccountLimits, token: TokenLimits | None) -> bool:
    return rules.tokens_per_minute is not None or (token is not None and token.rules.tokens_per_minute is not None)


def _is_given_back(*limits: AccountLimits | TokenLimits | None) -> bool:
    """Return whether a request that has ended gives something back: its slot, or tokens that it did not use."""
    rules = [each.rules if isinstance(each, TokenLimits) else each for each in limits if each is not None]
    return any(each.tokens_per_minute is not None or each.concurrent is not None for each in rules)


class LimitsPart(PlanPart):
    """Takes from the limits of one caller, and gives back what a request did not use."""

    def __init__(self, plugin: RateLimit, limits: RateLimiter, caller: Caller, operation: Operation) -> None:
        self._plugin = plugin
        self._limits = limits
        self._rules = rules, token = plugin.rules(caller, operation)
        self._looks = caller if operation is Operation.ACCOUNT else None
        token_id = token.token_id if token else None
        rates = ((_REQUESTS, 2, rules.requests_per_minute), (_TOKENS, 3, rules.tokens_per_minute))
        of_account = [(names, place, limit) for names, place, limit in rates if limit is not None]
        self._plain = () if token or self._looks else tuple(of_account)
        """The headers of each limit, the place of its level in a reply, and the limit, where only the account has any."""
        self.reads_body = _limits_tokens(rules, token)
        self.request = limits.taking(caller.account, plugin.scope, rules, plugin.lease_ms, token)
        if _is_given_back(rules, token):
            self.end = limits.giving_back(caller.account, plugin.scope, token_id)

    def fill(self, exchange: Exchange, body: Body) -> tuple[int] | Coroutine[Any, Any, None]:
        if not self.reads_body:
            return (0,)
        rules, token = self._rules
        tokens = estimate(body)
        never = self._limits.never_fits(tokens, rules, token)
        return (tokens,) if never is None else self._plugin.refuse(exchange, refusal(never, rules, token, tokens))

    def read(self, exchange: Exchange, reply: Any) -> Awaitable[None] | None:
        if self._plain and not reply[0]:  # taken, as nearly always
            headers = exchange.response_headers
            for names, place, limit in self._plain:
                remaining, reset_ms = self._limits.left(limit, reply[place])
                _set_rate(headers, names, limit, remaining, reset_ms)
            return None
        result = self._limits.result(*self._rules, reply)
        set_headers(exchange.response_headers, result)
        if isinstance(result, Limited):
            took_nothing(self._plugin, exchange)
            return self._plugin.refuse(exchange, refusal(result, *self._rules, 0))
        return self._plugin.look(exchange, self._looks) if self._looks else None

    def fill_end(self, exchange: Exchange) -> tuple[int, ...]:
        if self.end is None:
            return ()
        usage = exchange.usage
        return (self._limits.counted(usage.prompt_tokens + usage.completion_tokens),)

    async def lost_end(self, exchange: Exchange, error: Exception) -> None:
        if self.end is not None:
            self._plugin.not_given_back(Release(exchange.id, self.end, *self.fill_end(exchange)), error)


def set_headers(headers: dict[str, str], result: Taken | Limited) -> None:
    """Set the `x-ratelimit-*` headers; of the tightest limit, if several plugins of this kind are in the chain."""
    if result.requests is not None:
        _set_rate(headers, _REQUESTS, *msgspec.structs.astuple(result.requests))
    if result.tokens is not None:
        _set_rate(headers, _TOKENS, *msgspec.structs.astuple(result.tokens))


def _set_rate(headers: dict[str, str], names: tuple[str, str, str], limit: int, remaining: int, reset_ms: int) -> None:
    of_limit, of_remaining, of_reset = names
    if of_remaining not in headers or remaining <= int(headers[of_remaining]):
        headers[of_limit] = str(limit)
        headers[of_remaining] = str(remaining)
        headers[of_reset] = str(reset_ms) + "ms"


def refusal(limited: Limited, rules: AccountLimits, token: TokenLimits | None, tokens: int) -> Refused:
    """Return the 429 for a limit that is reached: whose it is, and when to try again."""
    wait_ms = limited.retry_after_ms
    of = "account"
    if limited.of_token and token is not None:
        rules, of = token.rules, "token"
    if wait_ms is None:
        return Refused(
            429,
            "rate_limited",
            f"This request counts {tokens} tokens, over the {of}'s limit of {rules.tokens_per_minute} a minute. "
            "Send less, or ask for fewer output tokens.",
            should_retry=False,
        )
    if limited.kind == "concurrent":
        text = f"Over the {of}'s limit of {rules.concurrent} requests at once. Wait for one to end, then try again."
        return Refused(429, "too_many_concurrent", text, retry_after_s=wait_ms / 1000)
    limit = rules.requests_per_minute if limited.kind == "requests" else rules.tokens_per_minute
    text = f"Over the {of}'s limit of {limit} {limited.kind} a minute."
    if wait_ms <= LONG_MS:
        text += f" Try again in {wait_ms / 1000:g} s."
    return Refused(429, "rate_limited", text, retry_after_s=wait_ms / 1000)

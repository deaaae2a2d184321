"""Bounds what one account may ask for: requests a minute, tokens a minute, requests at once.

1. A refused request takes nothing. What a request took is given back once, at its end, whatever happened;
   where the store is away just then, as soon as it is there again.
2. Tokens are counted before they are known: one for every four bytes of the messages, and the caller's own
   ceiling for each answer, where there is one. At the end the true count takes the place of this estimate.
3. Only chat completions count tokens and hold a slot; everything else counts as a request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from functools import partial

import msgspec

from gateway import (
    AccountLimits,
    Caller,
    Exchange,
    Limited,
    Operation,
    Plugin,
    Refused,
    Services,
    StoreAway,
    StoreError,
    Taken,
)

LEASE_MARGIN_S = 60
REPEAT_AFTER_S = 1.0
MOST_OWED = 10_000
"""How much is kept to be given back later. What is beyond that comes back when its lease ends."""


class Owed(msgspec.Struct, frozen=True):
    """What is to be given back for one exchange, and the tokens that count in the end."""

    account: str
    request_id: str
    tokens: int


class RateLimit(Plugin):
    """Refuses what goes beyond the limits. Where an account has limits of its own, they replace these."""

    requires = (Caller,)

    requests_per_minute: int | None = 60
    """Requests a minute, all of them at once if need be; `null` for no limit."""
    tokens_per_minute: int | None = None
    """Tokens a minute, of prompts and answers together; `null` for no limit."""
    concurrent: int | None = 8
    """Chat completions at once; `null` for no limit."""

    def __post_init__(self) -> None:
        AccountLimits(self.requests_per_minute, self.tokens_per_minute, self.concurrent)

    async def start(self, services: Services) -> None:
        """Learn how long a request may last, and begin to pay what could not be given back at once."""
        self._limits = services.store.limits
        self._scope = services.name
        self._log = services.log
        longest_s = max((channel.timers.total for channel in services.catalogue.channels.values()), default=0)
        self._lease_ms = int((longest_s + LEASE_MARGIN_S) * 1000)
        self._holding: dict[str, str] = {}
        self._owed: deque[Owed] = deque()
        self._repaying = asyncio.get_running_loop().create_task(self._repay_again_and_again())

    async def stop(self) -> None:
        """Pay what is owed, if the store is there; what is not comes back when its lease ends."""
        self._repaying.cancel()
        with suppress(asyncio.CancelledError):
            await self._repaying
        await self._repay()

    async def on_request(self, exchange: Exchange) -> None:
        """Take from all limits or refuse."""
        caller = exchange[Caller]
        rules = self._rules(caller, exchange.request.operation)
        tokens = await _tokens(exchange, rules)
        if rules.tokens_per_minute is not None or rules.concurrent is not None:
            self._holding[exchange.id] = caller.account
        answer = await self._limits.take(
            caller.account,
            exchange.id,
            scope=self._scope,
            rules=rules,
            tokens=tokens,
            lease_ms=self._lease_ms,
        )
        _tell(exchange.response_headers, answer)
        if isinstance(answer, Limited):
            self._holding.pop(exchange.id, None)
            raise _refusal(answer, rules, tokens)

    async def explain(self, exchange: Exchange) -> str:
        """What is left of each limit."""
        caller = exchange[Caller]
        rules = self._rules(caller, exchange.request.operation)
        tokens = await _tokens(exchange, rules)
        answer = await self._limits.look(caller.account, exchange.id, scope=self._scope, rules=rules, tokens=tokens)
        if isinstance(answer, Limited):
            raise _refusal(answer, rules, tokens)
        found = []
        if answer.requests is not None:
            found.append(f"1 of {answer.requests.remaining} requests left of {answer.requests.limit} a minute")
        if answer.tokens is not None:
            found.append(f"{tokens} of {answer.tokens.remaining} tokens left of {answer.tokens.limit} a minute")
        if rules.concurrent is not None:
            found.append(f"a place, of {rules.concurrent} at once")
        return f"takes {', '.join(found)}" if found else "no limits"

    async def on_end(self, exchange: Exchange) -> None:
        """Free the slot and count the tokens that were used."""
        account = self._holding.pop(exchange.id, None)
        if account is None:
            return
        usage = exchange.usage
        owed = Owed(account, exchange.id, usage.prompt_tokens + usage.completion_tokens)
        # Nobody waits for it: it leaves with the next plugin's call, in one round trip for both.
        self._give_back(owed).add_done_callback(partial(self._given_back, owed))

    def _rules(self, caller: Caller, operation: Operation) -> AccountLimits:
        own = caller.limits
        requests = own.requests_per_minute or self.requests_per_minute
        if operation is not Operation.CHAT:
            return AccountLimits(requests)
        return AccountLimits(
            requests, own.tokens_per_minute or self.tokens_per_minute, own.concurrent or self.concurrent
        )

    def _give_back(self, owed: Owed) -> asyncio.Future[object]:
        return self._limits.give_back(owed.account, owed.request_id, scope=self._scope, tokens=owed.tokens)

    def _given_back(self, owed: Owed, answer: asyncio.Future[object]) -> None:
        error = answer.exception()
        if isinstance(error, StoreAway):
            if len(self._owed) < MOST_OWED:
                self._owed.append(owed)
        elif error is not None:
            self._not_given_back(owed, error)

    async def _repay_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(REPEAT_AFTER_S)
            await self._repay()

    async def _repay(self) -> None:
        while self._owed:
            try:
                await self._give_back(self._owed[0])
            except StoreAway:
                return
            except StoreError as error:
                self._not_given_back(self._owed[0], error)
            self._owed.popleft()

    def _not_given_back(self, owed: Owed, error: BaseException) -> None:
        self._log.error("limit_not_given_back", request_id=owed.request_id, reason=str(error))


async def _tokens(exchange: Exchange, rules: AccountLimits) -> int:
    """What the request counts before its true count is known."""
    if rules.tokens_per_minute is None:
        return 0
    body = await exchange.body()
    return body.prompt_tokens_estimate + body.n * (body.max_tokens or 0)


def _tell(headers: dict[str, str], answer: Taken | Limited) -> None:
    """Say what is left, of the tightest limit where several plugins of this kind are in the chain."""
    for name, rate in (("requests", answer.requests), ("tokens", answer.tokens)):
        remaining = f"x-ratelimit-remaining-{name}"
        if rate is not None and rate.remaining <= int(headers.get(remaining, rate.remaining)):
            headers[f"x-ratelimit-limit-{name}"] = str(rate.limit)
            headers[remaining] = str(rate.remaining)
            headers[f"x-ratelimit-reset-{name}"] = f"{rate.reset_ms}ms"


def _refusal(limited: Limited, rules: AccountLimits, tokens: int) -> Refused:
    wait_ms = limited.retry_after_ms
    if wait_ms is None:
        return Refused(
            429,
            "rate_limited",
            f"This request counts {tokens} tokens, over the limit of {rules.tokens_per_minute} a minute. "
            "Shorten the messages, or ask for fewer output tokens.",
            should_retry=False,
        )
    if limited.kind == "concurrent":
        text = f"Over the limit of {rules.concurrent} requests at once. Wait for one to end, then try again."
        return Refused(429, "too_many_concurrent", text, retry_after_s=wait_ms / 1000)
    limit = rules.requests_per_minute if limited.kind == "requests" else rules.tokens_per_minute
    text = f"Over the limit of {limit} {limited.kind} a minute. Try again in {wait_ms / 1000:g} s."
    return Refused(429, "rate_limited", text, retry_after_s=wait_ms / 1000)

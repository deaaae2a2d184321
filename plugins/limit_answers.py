"""What a caller learns of its limits: the `x-ratelimit-*` headers, and the refusal of a request beyond a limit."""

from __future__ import annotations

from typing import Final

from gateway import AccountLimits, Limited, Refused, Taken, TokenLimits

_REQUESTS: Final = ("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests")
_TOKENS: Final = ("x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens")
"""The headers of a limit, of what remains of it, and of when all of it is available again."""

LONG_MS: Final = 59_000
"""The gateway adds a longer wait to the message by itself."""


def set_headers(headers: dict[str, str], result: Taken | Limited) -> None:
    """Set the `x-ratelimit-*` headers; of the tightest limit, if several plugins of this kind are in the chain."""
    for (limit, remaining, reset), rate in ((_REQUESTS, result.requests), (_TOKENS, result.tokens)):
        if rate is not None and (remaining not in headers or rate.remaining <= int(headers[remaining])):
            headers[limit] = str(rate.limit)
            headers[remaining] = str(rate.remaining)
            headers[reset] = f"{rate.reset_ms}ms"


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

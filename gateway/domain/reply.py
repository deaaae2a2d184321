"""The answer that a plugin gives in place of an upstream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Final, Literal

import msgspec

from gateway.base.errors import check_headers, check_status, check_text
from gateway.chat.usage import Usage

MOST_TOKENS: Final = 1_000_000_000


class Reply(msgspec.Struct, frozen=True):
    """A response that a plugin gives in place of the upstream: complete, or, for a chat completion, a stream of `events`.

    `events` yields whole events as an upstream sends them, to `data: [DONE]`: what follows that is left out. It is closed when the
    caller leaves, and may raise `Refused`. A caller that does not stream gets the answer in one piece. `charge`: nothing is charged
    and counted, or what an upstream's answer would be, by `usage`, or else by what the events report, or else by an estimate.

    Raises `TypeError` or `ValueError` for values that no caller could be sent.
    """

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json; charset=utf-8"
    headers: Mapping[str, str] = {}
    events: AsyncIterator[bytes] | None = None
    usage: Usage | None = None
    charge: Literal["none", "as-upstream"] = "none"

    def __post_init__(self) -> None:
        check_status(self.status, 200)
        if not isinstance(self.body, bytes):
            raise TypeError(f"body is bytes, not {type(self.body).__name__}")
        if self.body and self.status in (204, 205, 304):
            raise ValueError(f"a response with the status {self.status} has no body")
        check_text("content_type", self.content_type)
        check_headers({"Content-Type": self.content_type, **self.headers})
        if self.charge not in ("none", "as-upstream"):
            raise ValueError(f"charge is 'none' or 'as-upstream', not {self.charge!r}")
        if self.usage is not None:
            _check_usage(self.usage)
        if self.events is None:
            if self.usage is not None or self.charge != "none":
                raise ValueError("a reply without `events` is not charged: it has neither `usage` nor `charge`")
        elif not hasattr(self.events, "__anext__"):
            raise TypeError(
                f"events is an async iterator, not {type(self.events).__name__}: call the generator function"
            )
        elif self.body or self.status != 200:
            raise ValueError("a reply of `events` has no body, and the status 200")


def _check_usage(usage: Usage) -> None:
    """Raise an error for a usage that cannot be charged."""
    if not isinstance(usage, Usage):
        raise TypeError(f"usage is a Usage, not {type(usage).__name__}")
    parts = (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.cache_write_tokens)
    if any(type(part) is not int or not 0 <= part <= MOST_TOKENS for part in parts):
        raise ValueError(f"each number of a usage is an integer from 0 to {MOST_TOKENS}")
    if usage.cached_tokens + usage.cache_write_tokens > usage.prompt_tokens:
        raise ValueError("the tokens of a usage that were read from a cache or written to it are part of its prompt")

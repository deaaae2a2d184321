"""The shared vocabulary between plugins: what one learns, another may rely on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from gateway.config.channel import Channel

LARGEST_RATE: Final = 100_000_000
"""The largest limit. Above it the numbers of the limits' script, which are doubles, would no longer be exact."""


class AccountLimits(msgspec.Struct, frozen=True):
    """What an account may take, each from 1 to `LARGEST_RATE`.

    None means no such limit; in a `Caller` it means the configured one. The tokens and requests of a whole minute may be
    taken at once and become available again evenly. Raises `ValueError` for other numbers.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent: int | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and not 1 <= value <= LARGEST_RATE:
                raise ValueError(f"{name} must be from 1 to {LARGEST_RATE}; leave it out for no limit")


class Caller(msgspec.Struct, frozen=True):
    """Who asks: an account that is active, and the token it came with. Provided by `auth`.

    `account_models` and `token_models` narrow what the group allows: lists of names and `*` patterns, None for no
    narrowing.
    """

    account: str
    token_id: str
    group: str
    account_models: tuple[str, ...] | None = None
    token_models: tuple[str, ...] | None = None
    limits: AccountLimits = AccountLimits()


class Candidate(msgspec.Struct, frozen=True):
    """One channel that may serve the request, and the model's name there."""

    name: str
    channel: Channel
    model: str


class CircuitBreaker:
    """Says which candidate may be called at the moment, and is told what became of it. This one lets all be called.

    For one request: `admit`, then `answered` or `failed` as often as there is something to tell, then `left`, once. Only
    `admit` may wait. `why_not` is for explanations, outside of any request.
    """

    async def why_not(self, candidate: Candidate) -> str:
        """Why it may not be called at the moment, in words; empty where it may. Takes nothing. Raises `StoreAway`."""
        return ""

    async def admit(self, candidates: Sequence[Candidate], request_id: str) -> Candidate:
        """The first of `candidates`, which are not empty, that may be called.

        Raises `Refused` where none may, and `StoreAway` where that cannot be found out.
        """
        return candidates[0]

    def answered(self, candidate: Candidate, request_id: str, after_s: float) -> None:
        """The upstream began an answer, `after_s` after it was called."""

    def failed(self, candidate: Candidate, request_id: str, code: str, cool_s: float | None) -> None:
        """The upstream failed. It is not to be asked again for `cool_s` at least, or None where it did not say so."""

    def left(self, candidate: Candidate, request_id: str) -> None:
        """The call is over, however it went."""


class Route(msgspec.Struct, frozen=True):
    """The candidates in the order in which they are tried. Provided by `model-routing`, required by the core."""

    candidates: tuple[Candidate, ...]
    breaker: CircuitBreaker = CircuitBreaker()

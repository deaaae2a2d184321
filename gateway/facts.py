"""The shared vocabulary between plugins: what one learns, another may rely on."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.config.channel import Channel


class Limits(msgspec.Struct, frozen=True):
    """Limits of one account that differ from the configured ones; None where they do not."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent: int | None = None


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
    limits: Limits = Limits()


class Candidate(msgspec.Struct, frozen=True):
    """One channel that may serve the request, and the model's name there."""

    name: str
    channel: Channel
    model: str


class Gate:
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
    gate: Gate = Gate()

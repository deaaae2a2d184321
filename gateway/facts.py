"""The shared vocabulary between plugins: what one learns, another may rely on."""

from __future__ import annotations

import msgspec

from gateway.config import Channel


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


class Route(msgspec.Struct, frozen=True):
    """The candidates in the order in which they are tried. Provided by `model-routing`, required by the core."""

    candidates: tuple[Candidate, ...]

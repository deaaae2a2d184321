"""A model of the file: what callers pay for it, the channels that serve it, and what each channel costs.

Prices of tokens are currency units per million tokens, `request` is currency units for each request that was answered. What is
not given is never 0: `cached_input` and `cache_write` fall back to `input`, and each rate of a tier to that of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated, Final

import msgspec

from gateway.chat.prompt_bound import AUDIO_TOKENS, FILE_TOKENS, IMAGE_TOKENS
from gateway.config.section import Section, is_amount

LARGEST_PRICE: Final = 1_000_000
MAX_TIERS: Final = 16
MostTokens = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]


class Tier(Section, frozen=True):
    """The prices of a request with more than `above` prompt tokens: of all its tokens, not only of those beyond."""

    above: Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)]
    input: Decimal | None = None
    output: Decimal | None = None
    cached_input: Decimal | None = None
    cache_write: Decimal | None = None

    def __post_init__(self) -> None:
        if not _check((self.input, self.output, self.cached_input, self.cache_write)):
            raise ValueError("a tier needs a price of its own: `input`, `cached_input`, `cache_write` or `output`")


class Cost(Section, frozen=True):
    """What a channel's operator bills for a model."""

    input: Decimal
    output: Decimal
    cached_input: Decimal | None = None
    cache_write: Decimal | None = None
    request: Decimal | None = None
    tiers: tuple[Tier, ...] = ()

    def __post_init__(self) -> None:
        _check((self.input, self.output, self.cached_input, self.cache_write, self.request))
        _check_tiers(self.tiers)


class Serving(Section, frozen=True):
    """A channel of a model. A smaller `priority` is tried first; within one priority the choice is random by `weight`.

    `cost` is None where it is not known.
    """

    use: str
    model: str = ""
    weight: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1
    priority: int = 0
    cost: Cost | None = None


class Model(Section, frozen=True):
    """A model that callers may request, with its prices.

    `context_length`: how many tokens prompt and answer may have together, told to callers; None where it is not known.
    `image_tokens`, `audio_tokens` and `file_tokens`: the most that one picture, one sound, one file or film can count, for holds.
    """

    channels: list[str | Serving]
    input: Decimal | None = None
    output: Decimal | None = None
    free: bool = False
    max_output_tokens: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)] = 4096
    context_length: Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)] | None = None
    cached_input: Decimal | None = None
    cache_write: Decimal | None = None
    request: Decimal | None = None
    tiers: tuple[Tier, ...] = ()
    image_tokens: MostTokens = IMAGE_TOKENS
    audio_tokens: MostTokens = AUDIO_TOKENS
    file_tokens: MostTokens = FILE_TOKENS

    def __post_init__(self) -> None:
        given = _check((self.input, self.output, self.cached_input, self.cache_write, self.request))
        unpriced = self.input is None or self.output is None
        if (given or self.tiers) if self.free else unpriced:
            raise ValueError("give `input` and `output` prices per million tokens, or `free: true` without them")
        _check_tiers(self.tiers)
        if not self.channels:
            raise ValueError("channels must name at least one channel")

    @property
    def servings(self) -> tuple[Serving, ...]:
        """Return the channels in their long form."""
        return tuple(Serving(use=item) if isinstance(item, str) else item for item in self.channels)


def _check(prices: Sequence[Decimal | None]) -> int:
    """Return how many prices are given. Raises `ValueError` for one that is none."""
    given = [price for price in prices if price is not None]
    if not all(is_amount(price, LARGEST_PRICE) for price in given):
        raise ValueError(f"prices must be from 0 to {LARGEST_PRICE}, with at most six decimals")
    return len(given)


def _check_tiers(tiers: Sequence[Tier]) -> None:
    borders = [tier.above for tier in tiers]
    if len(tiers) > MAX_TIERS or borders != sorted(set(borders)):
        raise ValueError(f"tiers must be at most {MAX_TIERS}, each with a larger `above` than the one before")

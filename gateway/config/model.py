"""The section of a model: its prices, its channels, and how requests for it are routed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Final, Literal

import msgspec

from gateway.chat.prompt import AUDIO_TOKENS, FILE_TOKENS, IMAGE_TOKENS
from gateway.chat.request import AUTO_TIER, DEFAULT_TIER
from gateway.config.decode import Section, is_amount

LARGEST_PRICE: Final = 1_000_000
MAX_TIERS: Final = 16
MostTokens = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]

AFFINITY: Final = (
    *("prompt_cache_key", "header:session-id", "header:x-claude-code-session-id", "user", "prefix:2048"),
    "account",
)
"""By what a conversation is known, the first that a request has."""
AFFINITY_KEY: Final = re.compile(r"header:[A-Za-z0-9-]{1,64}|prefix:[1-9][0-9]{0,5}|[A-Za-z_][A-Za-z0-9_]{0,63}")


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
    """What a channel's operator bills for a model. `service_tiers`: None for those of the model."""

    input: Decimal
    output: Decimal
    cached_input: Decimal | None = None
    cache_write: Decimal | None = None
    request: Decimal | None = None
    tiers: tuple[Tier, ...] = ()
    service_tiers: dict[str, Decimal] | None = None

    def __post_init__(self) -> None:
        _check((self.input, self.output, self.cached_input, self.cache_write, self.request))
        _check_tiers(self.tiers, self.service_tiers)


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

    `context_length`: how many tokens prompt and answer may have together, told to callers, and held for a conversation that
    an upstream keeps and of which it told no tokens; None where it is not known.
    `image_tokens`, `audio_tokens` and `file_tokens`: the most that one picture, one sound, one file or film can count, for holds.
    `affinity`: by what a conversation is known that stays with a channel and its credential; None: `AFFINITY` where cached tokens
    have a price. `order`: of the channels of one priority. `fallback`: models that serve where no channel of this one is left.
    `cannot`: what the model cannot do, so that no request that asks for it falls back to it.
    `image`, `second` and `character`: the prices of a picture that is made, of a second of sound that is heard, and of a million
    characters that are spoken. That of a picture may differ by quality, size, or both: `{low: 0.01, "high 1024x1024": 0.17}`.
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
    service_tiers: dict[str, Decimal] | None = None
    image_tokens: MostTokens = IMAGE_TOKENS
    audio_tokens: MostTokens = AUDIO_TOKENS
    file_tokens: MostTokens = FILE_TOKENS
    affinity: tuple[str, ...] | None = None
    fallback: tuple[str, ...] = ()
    cannot: tuple[Literal["tools", "pictures"], ...] = ()
    image: Decimal | dict[str, Decimal] | None = None
    second: Decimal | None = None
    character: Decimal | None = None
    order: Literal["weight", "latency"] = "weight"

    def __post_init__(self) -> None:
        for key in self.affinity or ():
            if not AFFINITY_KEY.fullmatch(key):
                raise ValueError(
                    f"affinity: `{key}` is none of account, prefix:BYTES, header:NAME, and no name of a field of the body"
                )
        images = self.image.values() if isinstance(self.image, dict) else (self.image,)
        units = _check((*images, self.second, self.character))
        given = units + _check((self.input, self.output, self.cached_input, self.cache_write, self.request))
        unpriced = (self.input is None or self.output is None) and not (units and self.input is self.output is None)
        if (given or self.tiers or self.service_tiers) if self.free else unpriced:
            text = "give `input` and `output` prices per million tokens, or `free: true` without them"
            raise ValueError(f"{text}; or `image`, `second` or `character`, for what is billed by these alone")
        if self.fallback and units and self.input is None:
            raise ValueError(
                "fallback: no other model serves in place of one that is billed by units alone: leave it out"
            )
        _check_tiers(self.tiers, self.service_tiers)
        if not self.channels:
            raise ValueError("channels must name at least one channel")

    def has_price(self, unit: str) -> bool:
        """Return whether it has a price for what an operation is billed by; empty for tokens."""
        return self.free or (self.input if not unit else getattr(self, unit)) is not None

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


def _check_tiers(tiers: Sequence[Tier], service_tiers: Mapping[str, Decimal] | None) -> None:
    borders = [tier.above for tier in tiers]
    if len(tiers) > MAX_TIERS or borders != sorted(set(borders)):
        raise ValueError(f"tiers must be at most {MAX_TIERS}, each with a larger `above` than the one before")
    for name, factor in (service_tiers or {}).items():
        if not re.fullmatch(r"[\w.-]{1,64}", name) or name in (DEFAULT_TIER, AUTO_TIER):
            raise ValueError("service_tiers are named by letters and digits, and `default` and `auto` need no price")
        if not (is_amount(factor, 1000) and factor):
            raise ValueError("service_tiers have factors above 0, 1000 at most, with at most six decimals")

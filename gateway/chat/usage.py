"""Token usage of a response: what the upstream reports, in any of the dialects of OpenAI's API, and what counts where it reports
too little. Sans-I/O.

A usage object is read by these rules:

- **Tokens of the prompt** are `prompt_tokens`, or `input_tokens`. Those that were read from a cache or written to one are part of
  them, unless the names or the numbers show that they come beside: then they are added.
- **Output** is the larger of `completion_tokens` and of what `total_tokens` leaves beside the prompt: some upstreams count
  reasoning in the total alone, and bill it as output.
- **A number that is no count** (negative, not a number, larger than `MAX_COUNT`) is as good as none; a fraction is rounded to the
  whole number that costs more. A usage object with such a count of the prompt, the output or the total is not certain: the larger
  of it and the estimate is charged.
- **Where several names tell the cached tokens**, the smallest of them counts, and of those that tell the written ones the
  largest. A 0 tells nothing: some upstreams fill names that they do not use with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from decimal import ROUND_CEILING, Decimal
from math import ceil, floor
from typing import Annotated, Any, Final, Literal

import msgspec

BYTES_PER_TOKEN: Final = 4
"""How many bytes are counted as one token, where the upstream reports no usage."""

MAX_COUNT: Final = 1 << 40
MAX_KEPT: Final = 4096
"""Bytes of a usage object that is kept as it came. A larger one is not kept."""
MAX_COST_MICROS: Final = 10**15
LEARN_EVERY_S: Final = 5.0
LEARN_FROM_S: Final = 0.2
"""A shorter answer says more about the connection than about the pace."""
SLOW_PER_S: Final = 10.0
"""Tokens a second of a model of which no whole answer is known. Most generate some times as many."""
LEARN_SHARE: Final = 0.25
"""The share of the newest answer in the pace."""

COUNTS: Final = frozenset(("prompt_tokens", "completion_tokens", "total_tokens", "input_tokens", "output_tokens"))
"""An object that has nothing else needs no closer look: some upstreams send one with each event."""
CACHED: Final = ("prompt_cache_hit_tokens", "cached_tokens", "num_cached_tokens", "cache_read_input_tokens")
"""Tokens read from a cache: as DeepSeek, Moonshot and Together, Mistral, and translations of Anthropic's API name them."""
WRITTEN: Final = ("cache_creation_input_tokens", "cache_write_tokens", "cache_creation")
"""Tokens written to one: as Anthropic and Alibaba, OpenAI and OpenRouter name them; `cache_creation` has them by their lifetime."""
SPLIT: Final = frozenset((*CACHED, *WRITTEN))
DETAILS: Final = ("prompt_tokens_details", "prompt_token_details", "input_tokens_details")
BESIDE: Final = frozenset(("cache_read_input_tokens", "cache_creation_input_tokens"))
"""Anthropic's names, which it uses for tokens that `input_tokens` does not contain."""
COSTS: Final = frozenset(("cost", "estimated_cost", "cost_in_usd_ticks"))
TICKS_PER_MICRO: Final = 10_000
"""xAI states the cost in ticks, of which a dollar has 10^10."""


class Counts(msgspec.Struct, frozen=True):
    """The counts of one usage object. 0 stands for a count that is missing, 0, or not a number of tokens.

    `prompt` contains `cached` and `written`, which are never more. `total` is set only where neither side can be derived from it.
    `cost_micros`: the cost that the upstream states. `text`: the object as it came, empty where it is too large.
    """

    prompt: int = 0
    completion: int = 0
    total: int = 0
    cached: int = 0
    written: int = 0
    certain: bool = True
    cost_micros: int | None = None
    text: bytes = b""


NONE: Final = Counts()
Tokens = Annotated[int, msgspec.Meta(gt=0, le=MAX_COUNT)]


class _Plain(msgspec.Struct, forbid_unknown_fields=True):
    """A usage object of three counts alone, as many upstreams write it."""

    prompt_tokens: Tokens
    completion_tokens: Tokens
    total_tokens: Tokens


_plain = msgspec.json.Decoder(_Plain)


class Usage(msgspec.Struct, frozen=True):
    """The tokens of one attempt or of a whole exchange. `source`: reported by the upstream, or estimated from bytes.

    `prompt_tokens` contains those that were read from a cache and those that were written to one. `answers`: how many of the
    attempts were answered. `one_prompt`: of several attempts, the prompt tokens of the one that was answered, else the most of one.
    `units`: the pictures, seconds or characters of an operation that is billed by them.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    source: Literal["upstream", "estimated", "none"] = "none"
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    answers: int = 0
    one_prompt: int | None = None
    units: int = 0

    def __add__(self, other: Usage) -> Usage:
        if "none" in (self.source, other.source):
            return self if other.source == "none" else other
        source: Literal["upstream", "estimated"] = (
            "upstream" if self.source == other.source == "upstream" else "estimated"
        )
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            source,
            self.cached_tokens + other.cached_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.answers + other.answers,
            max((self.answers, self.tier_tokens), (other.answers, other.tier_tokens))[1],
            self.units + other.units,
        )

    @property
    def tier_tokens(self) -> int:
        """Return the prompt tokens that choose the tier of the price."""
        return self.prompt_tokens if self.one_prompt is None else self.one_prompt


class ReportedUsage:  # noqa: PLW1641 - it changes
    """What an upstream has reported of one response until now. 0: nothing.

    Input and output are kept apart, each with whether it is final: reported when nothing more was to be generated. Of several
    reports the last one counts, and a 0 does not replace a count.
    """

    __slots__ = (
        *("prompt", "completion", "total", "prompt_final", "completion_final", "total_final"),
        *("service_tier", "of_prompt", "last", "units"),
    )

    def __init__(
        self,
        prompt: int = 0,
        *,
        prompt_final: bool = False,
        service_tier: str = "",
        of_prompt: Counts = NONE,
        last: Counts = NONE,
        units: int | None = None,
    ) -> None:
        self.prompt = prompt
        self.completion = 0
        self.total = 0
        """The total, where only that was reported."""
        self.prompt_final = prompt_final
        self.completion_final = self.total_final = False
        self.service_tier = service_tier
        """The tier in which the upstream says that it serves the request."""
        self.of_prompt = of_prompt
        """The report that `prompt` is of, with the part of it that was cached."""
        self.last = last
        self.units = units
        """The pictures or seconds that were told."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReportedUsage) and repr(self) == repr(other)

    def __repr__(self) -> str:
        told = (self.prompt, self.completion, self.total, self.prompt_final, self.completion_final, self.total_final)
        return f"<ReportedUsage {told} {self.service_tier} {self.of_prompt} {self.last} {self.units}>"

    @property
    def final(self) -> bool:
        """Return whether nothing more needs to be reported."""
        return (self.prompt_final and self.completion_final) or self.total_final

    def add(self, counts: Counts, final: bool) -> None:
        """Take the counts of a further usage object."""
        self.last = counts
        final = final and counts.certain
        if counts.prompt:
            self.prompt, self.prompt_final, self.of_prompt = counts.prompt, final, counts
        if counts.completion:
            self.completion, self.completion_final = counts.completion, final
        if counts.total:
            self.total, self.total_final = counts.total, final

    def set_final(self) -> None:
        """Note that nothing was generated after the last report."""
        certain = self.last.certain
        self.prompt_final, self.completion_final = certain and self.prompt > 0, certain and self.completion > 0
        self.total_final = certain and self.total > 0

    def usage(self, estimate_prompt: Callable[[], int], estimate_completion: Callable[[], int]) -> Usage:
        """Return the usage to charge, for prompt and output each: the final count, or else the larger of report and estimate."""
        if self.prompt_final and self.completion_final:
            return self._usage(self.prompt, self.completion, "upstream")
        completion = self.completion if self.completion_final else max(self.completion, estimate_completion())
        if self.prompt_final and not completion:
            return self._usage(self.prompt, 0, "upstream")
        prompt = self.prompt if self.prompt_final else max(self.prompt, estimate_prompt())
        if self.total_final:
            prompt = min(prompt, self.total - min(completion, self.total))
            completion = self.total - prompt
        return self._usage(prompt, completion, "estimated")

    def _usage(self, prompt: int, completion: int, source: Literal["upstream", "estimated"]) -> Usage:
        """Return the usage of an answer. Where the prompt is shorter than was reported, fewer tokens of it were cached."""
        cached, written = self.of_prompt.cached, self.of_prompt.written
        if cached or written:
            written = min(written, prompt)
            cached = min(cached, prompt - written)
        return Usage(prompt, completion, source, cached, written, 1)


class Pace:
    """The pace at which a model generates: of one that also thinks unseen, for answers that are left before their usage.

    It is learned from whole answers with a usage that tells more output than their text shows, a third of it at least. Of other
    models, and until the first such answer, it is 0: their text is all that is known. Of an answer in JSON no text is known before
    its end: `all_per_s` is the pace of all output of any model, and until the first whole answer a slow one.
    """

    __slots__ = ("_learn_at", "all_per_s", "tokens_per_s")

    def __init__(self) -> None:
        self.tokens_per_s = 0.0
        self.all_per_s = 0.0
        self._learn_at = 0.0

    def learn(self, usage: Usage, visible: Callable[[], int], began: float) -> None:
        """Learn from a whole answer that was asked for at `began`, once in `LEARN_EVERY_S` at most. `visible`: as in its text."""
        now = time.monotonic()
        if now < self._learn_at or usage.source != "upstream" or now - began < LEARN_FROM_S:
            return
        self._learn_at = now + LEARN_EVERY_S
        pace = usage.completion_tokens / (now - began)
        self.all_per_s += (pace - self.all_per_s) * (LEARN_SHARE if self.all_per_s else 1)
        if visible() * 3 <= usage.completion_tokens * 2:
            self.tokens_per_s += (pace - self.tokens_per_s) * (LEARN_SHARE if self.tokens_per_s else 1)

    def tokens(self, seconds: float, *, streamed: bool = True) -> int:
        """Return the tokens that are generated in some time, and of an answer that is `streamed` are not in its text."""
        return ceil((self.tokens_per_s if streamed else self.all_per_s or SLOW_PER_S) * seconds)


def read_counts(raw: bytes | msgspec.Raw) -> Counts | None:
    """Return the counts of a usage object in JSON; None where it reports none.

    A side that is missing is the total less the other one.
    """
    try:
        counts = _plain.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    else:
        output = max(counts.completion_tokens, counts.total_tokens - counts.prompt_tokens)
        text = bytes(raw)
        return Counts(counts.prompt_tokens, output, text=text if len(text) <= MAX_KEPT else b"")
    try:
        told = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(told, dict):
        return None
    prompt, certain_prompt = _either(told, "prompt_tokens", "input_tokens")
    completion, certain_completion = _either(told, "completion_tokens", "output_tokens")
    stated = told.get("total_tokens")
    total = _count(stated)
    if not (prompt or completion or total):
        return None
    certain = certain_prompt and certain_completion and total == (stated or 0)
    cached = written = 0
    plain = COUNTS.issuperset(told)
    prompt = prompt or (max(0, total - completion) if completion else 0)
    if prompt and not plain:
        cached, written = _split(told)
        if (cached or written) and _is_beside(told, prompt, completion, total, cached + written):
            prompt += cached + written
    if prompt and total - prompt > completion:
        completion = total - prompt
    text = bytes(raw)
    return Counts(
        prompt,
        completion,
        0 if prompt or completion else total,
        cached,
        written,
        certain,
        None if plain or COSTS.isdisjoint(told) else _cost_micros(told),
        text if len(text) <= MAX_KEPT else b"",
    )


def _either(told: dict[str, Any], name: str, other: str) -> tuple[int, bool]:
    """Return the count under one of two names, and whether the values are certain: a count, 0 or null."""
    value = told.get(name)
    if type(value) is int and 0 < value <= MAX_COUNT:  # nearly always
        return value, True
    count = _count(value)
    certain = count == (value or 0)
    if count or other not in told:
        return count, certain
    value = told[other]
    count = _count(value)
    return count, certain and count == (value or 0)


def _split(told: dict[str, Any]) -> tuple[int, int]:
    """Return how many tokens were read from a cache, and how many were written to one."""
    cached = written = 0
    places = [] if SPLIT.isdisjoint(told) else [told]
    for name in DETAILS:
        if isinstance(place := told.get(name), dict):
            places.append(place)
    for place in places:
        for name in CACHED:
            if (value := place.get(name)) and (count := _count(value, floor)) and not 0 < cached <= count:
                cached = count
        for name in WRITTEN:
            if value := place.get(name):
                count = sum(map(_count, value.values())) if isinstance(value, dict) else _count(value)
                written = max(written, count)
    return cached, written


def _is_beside(told: dict[str, Any], prompt: int, completion: int, total: int, split: int) -> bool:
    """Return whether the tokens of the split are not among those of the prompt."""
    if split > prompt:
        return True
    if BESIDE.isdisjoint(told) or not any(_count(told.get(name)) for name in BESIDE):
        return False
    return not _count(told.get("prompt_tokens")) or total == prompt + completion + split


def _count(value: object, rounded: Any = ceil) -> int:
    if type(value) is float and 0 < value <= MAX_COUNT:
        value = rounded(value)
    return value if type(value) is int and 0 < value <= MAX_COUNT else 0


def _cost_micros(told: dict[str, Any]) -> int | None:
    """Return the cost that the upstream states, rounded up; None where it states none."""
    if (ticks := told.get("cost_in_usd_ticks")) is not None:
        return _micros(ticks, Decimal(1) / TICKS_PER_MICRO)
    cost = told.get("cost", told.get("estimated_cost"))
    return _micros(cost.get("total_cost") if isinstance(cost, dict) else cost, Decimal(1_000_000))


def _micros(amount: object, micros: Decimal) -> int | None:
    """Return an amount in micros. The shortest digits of a binary fraction are those that the upstream wrote."""
    if type(amount) not in (int, float) or not 0 <= amount <= MAX_COST_MICROS:  # type: ignore[operator]
        return None
    result = int((Decimal(repr(amount)) * micros).to_integral_value(ROUND_CEILING))
    return result if result <= MAX_COST_MICROS else None

"""Token usage of a response: what the upstream reports, and what counts where it reports too little. Sans-I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

import msgspec

from gateway.chat.counts import Counts

BYTES_PER_TOKEN: Final = 4
"""How many bytes are counted as one token, where the upstream reports no usage."""

NONE: Final = Counts()


class Usage(msgspec.Struct, frozen=True):
    """The tokens of one attempt or of a whole exchange. `source`: reported by the upstream, or estimated from bytes.

    `prompt_tokens` contains those that were read from a cache and those that were written to one. `answers`: how many of the
    attempts were answered. `one_prompt`: of several attempts, the prompt tokens of the one that was answered, else the most of one.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    source: Literal["upstream", "estimated", "none"] = "none"
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    answers: int = 0
    one_prompt: int | None = None

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
        )

    @property
    def tier_tokens(self) -> int:
        """Return the prompt tokens that choose the tier of the price."""
        return self.prompt_tokens if self.one_prompt is None else self.one_prompt


class ReportedUsage(msgspec.Struct):
    """What an upstream has reported of one response until now. 0: nothing.

    Input and output are kept apart, each with whether it is final: reported when nothing more was to be generated. Of several
    reports the last one counts, and a 0 does not replace a count.
    """

    prompt: int = 0
    completion: int = 0
    total: int = 0
    """The total, where only that was reported."""
    prompt_final: bool = False
    completion_final: bool = False
    total_final: bool = False
    of_prompt: Counts = NONE
    """The report that `prompt` is of, with the part of it that was cached."""
    last: Counts = NONE

    @property
    def final(self) -> bool:
        """Return whether nothing more needs to be reported."""
        return (self.prompt_final and self.completion_final) or self.total_final

    def add(self, counts: Counts, *, final: bool) -> None:
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
        """Return the usage to charge: what is final, and else the larger of reported and estimated, for each side."""
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

"""Token usage of a response: what the upstream reports, and what counts where it reports too little. Sans-I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec

BYTES_PER_TOKEN: Final = 4
"""How many bytes are counted as one token, where the upstream reports no usage."""
MAX_COUNT: Final = 1 << 40


class Usage(msgspec.Struct, frozen=True):
    """The tokens of one attempt or of a whole exchange. `source`: reported by the upstream, or estimated from bytes."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    source: Literal["upstream", "estimated", "none"] = "none"

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
        )


class Counts(msgspec.Struct, frozen=True):
    """The counts of one usage object. 0 stands for a count that is missing, 0, or not a number of tokens.

    `total` is set only where neither side can be derived from it.
    """

    prompt: int = 0
    completion: int = 0
    total: int = 0


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

    @property
    def final(self) -> bool:
        """Return whether nothing more needs to be reported."""
        return (self.prompt_final and self.completion_final) or self.total_final

    def add(self, counts: Counts, *, final: bool) -> None:
        """Take the counts of a further usage object."""
        if counts.prompt:
            self.prompt, self.prompt_final = counts.prompt, final
        if counts.completion:
            self.completion, self.completion_final = counts.completion, final
        if counts.total:
            self.total, self.total_final = counts.total, final

    def set_final(self) -> None:
        """Note that nothing was generated after the last report."""
        self.prompt_final, self.completion_final = self.prompt > 0, self.completion > 0
        self.total_final = self.total > 0

    def usage(self, estimate_prompt: Callable[[], int], estimate_completion: Callable[[], int]) -> Usage:
        """Return the usage to charge: what is final, and else the larger of reported and estimated, for each side."""
        if self.prompt_final and self.completion_final:
            return Usage(self.prompt, self.completion, "upstream")
        completion = self.completion if self.completion_final else max(self.completion, estimate_completion())
        if self.prompt_final and not completion:
            return Usage(self.prompt, 0, "upstream")
        prompt = self.prompt if self.prompt_final else max(self.prompt, estimate_prompt())
        if self.total_final:
            prompt = min(prompt, self.total - min(completion, self.total))
            completion = self.total - prompt
        return Usage(prompt, completion, "estimated")


def read_counts(raw: bytes | msgspec.Raw) -> Counts | None:
    """Return the counts of a usage object in JSON; None where it reports none.

    A side that is missing is the total less the other one. Output that only the total shows, as the reasoning of some
    upstreams, is added to the output.
    """
    try:
        reported = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(reported, dict):
        return None
    prompt = _count(reported, "prompt_tokens") or _count(reported, "input_tokens")
    completion = _count(reported, "completion_tokens") or _count(reported, "output_tokens")
    total = _count(reported, "total_tokens")
    if prompt:
        completion = max(completion, total - prompt)
    elif completion:
        prompt = max(0, total - completion)
    if not (prompt or completion or total):
        return None
    return Counts(prompt, completion, 0 if prompt or completion else total)


def _count(reported: dict[str, Any], name: str) -> int:
    value = reported.get(name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 < value <= MAX_COUNT else 0

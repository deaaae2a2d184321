"""What a request needs and what there is, where money is missing: the figures of a 402, in words and for programs."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gateway import amount


class Shortage(msgspec.Struct, frozen=True):
    """The most that a request can cost and what is left for it, in micros, and the largest `max_tokens` that fits; 0 for none."""

    needed: int
    left: int
    fits: int

    @property
    def figures(self) -> str:
        """What is needed and what is left, in words."""
        return f"that is {amount(self.needed)}, and {amount(self.left)} is left"

    @property
    def cure(self) -> str:
        """What to change in the request."""
        return f"lower max_tokens to {self.fits}" if self.fits else "shorten the messages: no max_tokens is low enough"

    def details(self) -> dict[str, int]:
        """Return the same as fields of the error."""
        return {"needed_micros": self.needed, "available_micros": self.left, "max_tokens_that_fit": self.fits}


Fitting = Callable[[int], int]
"""Returns the largest `max_tokens` for which so many micros suffice; 0 for none."""

"""The numbers that a request adds to, in shared memory. Compiled, a number costs an addition and not four calls."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TypeAlias

Numbers: TypeAlias = "memoryview[float]"


class SharedHistogram:
    """Observations counted in ranges. Its numbers: a count for each bound, one for all above, and the sum."""

    def __init__(self, numbers: Numbers, bounds: Sequence[float]) -> None:
        self._numbers = numbers
        self._bounds = memoryview(array("d", bounds or (0.0,)))
        self._above = len(bounds)

    def observe(self, value: float, times: float = 1.0) -> None:
        """Count one observation, or several of the same value."""
        place = 0
        while place < self._above and self._bounds[place] < value:
            place += 1
        self._numbers[place] += times
        self._numbers[self._above + 1] += value * times


class RequestSeries:
    """The counters and histograms of the requests of one outcome, model, channel and group. A counter is a view of one number."""

    def __init__(self, counters: Sequence[Numbers], times: Sequence[SharedHistogram]) -> None:
        self._requests, self._attempts, self._prompt, self._completion, self._read, self._written = counters[:6]
        self._charged, self._cost, self._margin, self._unknown, self._of_group, self._charged_to_group = counters[6:]
        self.duration, self.first_byte, self.longest_gap = times

    def count(self, duration_s: float, charged: float) -> None:
        """Count a request, and its charge in micros."""
        self._requests[0] += 1.0
        self._attempts[0] += 1.0
        self._of_group[0] += 1.0
        self.duration.observe(duration_s)
        self._charged[0] += charged
        self._charged_to_group[0] += charged

    def count_cost(self, cost: float, margin: float) -> None:
        """Count what the channels bill, in micros, and what the charge leaves of it."""
        self._cost[0] += cost
        self._margin[0] += margin

    def count_unknown_cost(self) -> None:
        """Count a request whose cost is not known."""
        self._unknown[0] += 1.0

    def count_answer(self, first_byte_s: float, longest_gap_s: float) -> None:
        """Count the times of an answer that has begun."""
        self.first_byte.observe(first_byte_s)
        self.longest_gap.observe(longest_gap_s)

    def count_tokens(self, prompt: float, completion: float, read: float, written: float) -> None:
        """Count the tokens of one call of an upstream."""
        self._prompt[0] += prompt
        self._completion[0] += completion
        self._read[0] += read
        self._written[0] += written


def histogram_width(bounds: Sequence[float]) -> int:
    """Return how many numbers a histogram with these bounds has."""
    return len(bounds) + 2

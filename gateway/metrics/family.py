"""What one metric is: its kind, its labels, and how the numbers of several processes are made one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Literal

import msgspec

from gateway.metrics.shared import Histogram

OTHER: Final = "other"
"""The label of what has no label of its own."""
WAIT_BOUNDS: Final = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Family(msgspec.Struct, frozen=True):
    """One metric. `merge` makes one number of those of several processes; without it each has the label `process`.

    Of one with `states`, the last label is the state: each has a series, 1 for the present one. None has while the number is 0.
    """

    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    merge: Callable[[Iterable[float]], float] | None = sum
    states: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """How many numbers one series has."""
        return Histogram.width(self.bounds) if self.kind == "histogram" else 1

"""Roll-ups of the usage log: sums of each minute and of each hour by model, from which charts are drawn however many requests
there are. They are written with the requests, in the same transaction, and belong to the time of the arrival.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

from gateway.domain.exchange import Outcome
from gateway.usage.record import Record

WAITS_MS: Final = (50, 100, 200, 300, 500, 750, 1000, 1500, 2000, 3000, 5000, 7500, 10_000, 15_000, 30_000, 60_000)
"""Times until the first byte up to which requests are counted, each in a column; the last column counts the others."""
ROLLUP_GROUPS: Final = ("step", "at", "model")
_COUNTS: Final = ("requests", "failed", "refused", "prompt_tokens", "completion_tokens", "charge_micros", "cost_micros")
ROLLUP_SUMS: Final = (*_COUNTS, *(f"waits_{number}" for number in range(len(WAITS_MS) + 1)))
STEPS: Final = {"minute": 16, "hour": 13}
"""How many characters of a time name it."""
WELL: Final = (Outcome.COMPLETED, Outcome.REFUSED, Outcome.CALLER_GONE)
"""Outcomes that are no fault of the gateway or of an upstream."""
_LARGEST: Final = 2**63 - 1


def rolled_up(ended: Iterable[Record], sign: int = 1) -> list[tuple[Any, ...]]:
    """Return the groups and the sums of requests that ended; with -1 for `sign`, what takes them out again."""
    found: defaultdict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0] * len(ROLLUP_SUMS))
    for record in ended:
        counts = (
            *(1, record.outcome not in WELL, record.outcome == Outcome.REFUSED),
            *(record.prompt_tokens, record.completion_tokens, record.charge_micros, record.cost_micros or 0),
        )
        wait = record.first_byte_ms
        for step, width in STEPS.items():
            sums = found[step, record.arrived_at[:width], record.model]
            for place, number in enumerate(counts):
                sums[place] += sign * number
            if wait is not None:
                sums[len(counts) + bisect_left(WAITS_MS, wait)] += sign
    return [(*group, *(max(-_LARGEST, min(_LARGEST, number)) for number in sums)) for group, sums in found.items()]


def quantile(waits: Sequence[int], part: float) -> int:
    """Return below which time a part of the requests had their first byte, in ms; 0 for none. Between columns it is a guess."""
    wanted = part * sum(waits)
    low = 0
    for count, high in zip(waits, (*WAITS_MS, 2 * WAITS_MS[-1]), strict=True):
        if count and wanted <= count:
            return round(low + (high - low) * wanted / count)
        wanted, low = wanted - count, high
    return 0

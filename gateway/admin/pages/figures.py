"""The figures of the last minute, as texts for a page, and how the gateway's processes and its store are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from gateway.admin.pages.rendering import count, share, span
from gateway.amounts import MICROS
from gateway.exchange import Outcome
from gateway.metrics.shared import SharedNumbers
from gateway.tools.plain_text import counted

SECONDS: Final = 60
RECENT_S: Final = 10
"""The seconds that the rate is the mean of."""
MOST_SAMPLES: Final = 500
"""Times of one second that are kept; of further requests the time counts for nothing."""
WELL: Final = (Outcome.COMPLETED, Outcome.REFUSED, Outcome.CALLER_GONE)
"""Outcomes that are no fault of the gateway or of an upstream."""


class Ended(msgspec.Struct, frozen=True):
    """What the figures take of a request that has ended: when, in seconds since 1970, and how."""

    at: int
    outcome: str
    first_byte_ms: int | None
    charge_micros: int


class Minute:
    """The requests of the last minute, second by second."""

    def __init__(self) -> None:
        self._seconds: dict[int, _Second] = {}

    def add(self, ended: Ended) -> None:
        """Count a request."""
        second = self._seconds.get(ended.at)
        if second is None:
            for old in [at for at in self._seconds if at < ended.at - 2 * SECONDS]:
                del self._seconds[old]
            second = self._seconds[ended.at] = _Second()
        second.requests += 1
        second.failed += ended.outcome not in WELL
        second.refused += ended.outcome == Outcome.REFUSED
        second.charge_micros += ended.charge_micros
        if ended.first_byte_ms is not None and len(second.first_bytes) < MOST_SAMPLES:
            second.first_bytes.append(ended.first_byte_ms)

    def figures(self, now: int) -> Figures:
        """Return the figures of the minute before `now`, of which the last second is not over."""
        seconds = [self._seconds.get(at, _NONE) for at in range(now - SECONDS, now)]
        requests = sum(second.requests for second in seconds)
        failed = sum(second.failed for second in seconds)
        waits = sorted(wait for second in seconds for wait in second.first_bytes)
        charged = sum(second.charge_micros for second in seconds) * 60
        rate = sum(second.requests for second in seconds[-RECENT_S:]) / RECENT_S
        return Figures(
            rate=f"{rate:.1f}" if rate < 100 else f"{rate:,.0f}",
            requests=f"{count(requests)} in the last minute",
            failed=share(failed / requests) if requests else "\u2013",
            failures=f"{count(failed)} failed, {count(sum(second.refused for second in seconds))} refused",
            trouble=bool(failed),
            first_byte=span(_at(waits, 0.5)) or "\u2013",
            slow=f"95 % within {span(_at(waits, 0.95))}" if waits else "no answer in the last minute",
            money=f"{charged / MICROS:,.2f}" if charged >= 10_000 or not charged else f"{charged / MICROS:.6f}",
            rates=[second.requests for second in seconds],
            troubles=[second.failed for second in seconds],
        )


class _Second(msgspec.Struct):
    requests: int = 0
    failed: int = 0
    refused: int = 0
    charge_micros: int = 0
    first_bytes: list[int] = []


_NONE: Final = _Second()


class Figures(msgspec.Struct, frozen=True):
    """What the cards of the page say, and the two curves: requests and failures of each second."""

    rate: str
    requests: str
    failed: str
    failures: str
    trouble: bool
    first_byte: str
    slow: str
    money: str
    rates: list[int]
    troubles: list[int]


class Health(msgspec.Struct, frozen=True):
    """How the processes and the store are, in words. `well`: nobody needs to look."""

    store: str
    store_well: bool
    workers: str
    open: str


def health_of(numbers: Mapping[str, SharedNumbers], store_ms: float | None) -> Health:
    """Return how this gateway is. `store_ms`: how long the store took to answer, None where it does not."""
    workers = [name for name in numbers if name.startswith("worker ")]
    died = int(sum(_sum(numbers[name], "children_died") for name in numbers))
    running = int(sum(_sum(numbers[name], "open_requests") for name in workers))
    words = counted(len(workers), "worker")
    return Health(
        store="away" if store_ms is None else f"{store_ms:.1f} ms",
        store_well=store_ms is not None,
        workers=f"{words}, {count(died)} restarted" if died else words,
        open=count(running),
    )


def _sum(shared: SharedNumbers, name: str) -> float:
    return sum(numbers[0] for key, numbers in shared if key[0] == name)


def _at(waits: Sequence[int], part: float) -> int | None:
    return waits[min(len(waits) - 1, int(part * len(waits)))] if waits else None

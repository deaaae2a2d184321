"""What one caller saw of one request, and what was done to the gateway meanwhile."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from enum import StrEnum

import msgspec


class Saw(StrEnum):
    """How a request ended for its caller."""

    NOTHING = "no answer"
    WHOLE = "whole"
    CUT = "cut"
    ERROR = "error"
    LEFT = "left"
    UNREADABLE = "unreadable"
    HANG = "hang"


class Seen(msgspec.Struct):
    """One request. Times are seconds since the start of the run. `id` is the `x-request-id` of the answer, if there was one.

    `code`: of the error answer or of the error event in the stream. `recorded`: False where an answer with an id leaves no
    record. `honest`: the caller did nothing wrong, so that only what was injected excuses a failure.
    """

    tag: str
    kind: str
    model: str
    sent: float
    honest: bool = True
    ended: float = 0.0
    id: str = ""
    status: int = 0
    saw: Saw = Saw.NOTHING
    code: str = ""
    finish: bool = False
    events: int = 0
    retry_after: str = ""
    recorded: bool = True
    problem: str = ""


class Injection(msgspec.Struct):
    """A disturbance and its time. `ended` is infinite while it lasts. `what` says more, for the report."""

    kind: str
    began: float
    ended: float = float("inf")
    what: str = ""

    def __str__(self) -> str:
        return f"{self.began:.1f}-{self.ended:.1f} s {self.kind}{f' ({self.what})' if self.what else ''}"


class Timeline:
    """The clock of the run, and all disturbances in the order of their begin."""

    def __init__(self) -> None:
        self.start = time.monotonic()
        self.injections: list[Injection] = []

    @property
    def now(self) -> float:
        return time.monotonic() - self.start

    @contextmanager
    def during(self, kind: str, what: str = "") -> Iterator[Injection]:
        """Note a disturbance that lasts as long as the block."""
        injection = Injection(kind, self.now, what=what)
        self.injections.append(injection)
        try:
            yield injection
        finally:
            injection.ended = self.now

    def note(self, kind: str, lasted_s: float, what: str) -> None:
        """Note what has lasted until now."""
        now = self.now
        self.injections.append(Injection(kind, now - lasted_s, now, what))

    def around(
        self, begin: float, end: float, kinds: Collection[str] | None = None, after: float = 0.0
    ) -> list[Injection]:
        """Return the disturbances (of these kinds) that lasted, or had ended for less than `after`, from `begin` to `end`."""
        return [
            each
            for each in self.injections
            if (kinds is None or each.kind in kinds) and each.began <= end and each.ended + after >= begin
        ]

"""Ends that neither the store nor the disk accepts: kept in memory until one of them does.

Requests that reached an upstream are charged, so their ends come first: what was refused is dropped when it needs more than
its share of the memory. While neither accepts anything, no request reaches an upstream, so the charged ones are few.
"""

from __future__ import annotations

import time
from typing import Final

from gateway.log import Logger
from gateway.usage.record import Record, encode

MAX_BYTES: Final = 64 * 1024 * 1024
MAX_REFUSED_BYTES: Final = 8 * 1024 * 1024
LOG_INTERVAL_S: Final = 10.0

log = Logger("gateway.usage.unwritten")


class Unwritten:
    """The ends that one process keeps."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._bytes = 0
        self._dropped = 0
        self._logged = -LOG_INTERVAL_S

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, record: Record, reason: str) -> None:
        """Keep an end, and log that now and then."""
        line = encode(record)
        if self._bytes + len(line) > (MAX_BYTES if record.attempts or record.charge_micros else MAX_REFUSED_BYTES):
            self._dropped += 1
        else:
            self._lines.append(line)
            self._bytes += len(line)
        if time.monotonic() - self._logged >= LOG_INTERVAL_S:
            self._logged = time.monotonic()
            log.error("records_not_written", reason=reason, in_memory=len(self._lines), dropped=self._dropped)

    def take(self) -> list[bytes]:
        """Return all lines, and keep none."""
        lines, self._lines, self._bytes = self._lines, [], 0
        return lines

    def put_back(self, lines: list[bytes]) -> None:
        """Keep lines again that could not be written."""
        self._lines = lines + self._lines
        self._bytes += sum(map(len, lines))

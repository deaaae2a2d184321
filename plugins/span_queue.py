"""Bound of the memory for spans that wait: content is counted until a collector takes it, so that an absent one costs none."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Final

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

MOST_CONTENT: Final = 32 << 20
"""Characters of content that wait in one worker, at most. Spans beyond them are sent without."""


class SpanQueue(SpanExporter):
    """An exporter, and the sizes of what waits for it: of `spans` at most, of which OpenTelemetry drops the oldest."""

    def __init__(self, exporter: SpanExporter, spans: int) -> None:
        self._exporter = exporter
        self._spans = spans
        self._sizes: deque[int] = deque()
        self._total = 0
        self._lock = threading.Lock()

    def has_room(self, size: int) -> bool:
        """Return whether content of this size may wait."""
        return self._total + size <= MOST_CONTENT

    def add(self, size: int) -> None:
        """Note that a span has ended, with content of this size."""
        with self._lock:
            self._sizes.append(size)
            self._total += size
            if len(self._sizes) > self._spans:
                self._total -= self._sizes.popleft()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans. They wait until they are sent."""
        try:
            return self._exporter.export(spans)
        finally:
            with self._lock:
                for _ in range(min(len(spans), len(self._sizes))):
                    self._total -= self._sizes.popleft()

    def shutdown(self) -> None:
        """Send nothing more."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Do nothing: what waits is not here."""
        return True

"""Lines for a person at the terminal while a gateway stops, and the second Ctrl-C, which cuts the streams that are open."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from gateway.base.text import counted
from gateway.metrics.shared import SharedNumbers

CUT: Final = signal.SIGUSR1
"""The parent's signal to a draining worker: end the open streams now. A worker ignores SIGINT, which a terminal sends to all."""

SILENT_S: Final = 0.3
"""A shorter stop says nothing. Within this time each worker has counted its open exchanges."""


class Farewell:
    """Reports the open requests that the stop of a gateway waits for. Call `look` again and again meanwhile."""

    def __init__(
        self, numbers: Iterable[SharedNumbers], drain_s: float, say: Callable[[str], None] | None = None
    ) -> None:
        """Read the open requests from the workers' `numbers`. `say` writes a line; without it, to standard error."""
        self._numbers = list(numbers)
        self._drain_s = drain_s
        self._say = say or _to_stderr
        self._said = ""
        self._began: float | None = None

    def look(self, *, cut: bool) -> None:
        """Say how many requests are open, if the line differs from the last one. `cut`: the streams are being cut."""
        if self._began is None:
            self._began = time.monotonic()
        if time.monotonic() - self._began < SILENT_S and not cut:
            return
        requests, streams = self._sum("open_requests"), self._sum("open_streams")
        what = "stream" if streams >= requests else "request"
        many = counted(requests, what)
        text = ""
        if cut:
            text = "the open streams are cut; each gets an error, and is charged for what it was sent"
        elif requests:
            them = "it" if requests == 1 else "them"
            text = f"waiting for {many}, up to {self._drain_s:g} s; Ctrl-C again cuts {them}"
        if text and text != self._said:
            self._line(text)

    def end(self, folder: Path) -> None:
        """Say that the gateway has stopped, and where its data is."""
        self._line(f"stopped; balances and records are in {folder}")

    def _line(self, text: str) -> None:
        """Say a line, the first one below the `^C` that a terminal shows."""
        self._say(text if self._said else f"\n{text}")
        self._said = text

    def _sum(self, name: str) -> int:
        return sum(int(values[0]) for numbers in self._numbers for key, values in numbers if key == (name,))


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

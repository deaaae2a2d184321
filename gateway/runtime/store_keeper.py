"""The embedded store of a running gateway: started at first, and started again when it dies, without stopping anything else.

While it loads its data again, the workers refuse requests with 503 and go on with their streams.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gateway.base.errors import GatewayError
from gateway.base.log import log
from gateway.store.embedded import REPORT_INTERVAL_S, EmbeddedStore, StoreStart, ask, rewrite

MAX_PAUSE_S: Final = 10.0
LOOK_S: Final = 0.5
"""How often it is looked whether the disk is full: a store notes that for about a second, or for as long as it lasts."""
LOOK_TIMEOUT_S: Final = 0.05


class StoreKeeper:
    """Keeps the server of a folder running. All of it runs on the main thread, with which the server ends."""

    def __init__(self, folder: Path, report: Callable[[str], None]) -> None:
        """Start the server, and wait until it serves; call `report` with the progress. Raises `GatewayError`."""
        self._folder = folder
        self._store = EmbeddedStore.start(folder, adopt=False, report=report)
        self.url = self._store.url
        self._start: StoreStart | None = None
        self._failures = 0
        self._due_at = self._reported_at = self._look_at = 0.0
        self._was_full = False

    def tick(self) -> None:
        """Look at the server, and go on with starting it if it has died. Called several times a second."""
        now = time.monotonic()
        if self._store.ended and now >= self._due_at:
            self._restart(now)
        elif now >= self._look_at:
            self._look_at = now + LOOK_S
            self._look()

    def _look(self) -> None:
        """Rewrite the file of a store whose disk was full: it may have zero bytes, and a disk that is full again would cut it."""
        answer = ask(self._store.path, LOOK_TIMEOUT_S)
        if answer is not None and self._was_full and not answer.full:
            log.warning("store_file_rewritten", reason="the disk was full")
            rewrite(self._store.path, LOOK_TIMEOUT_S)
        self._was_full = self._was_full if answer is None else answer.full

    def _restart(self, now: float) -> None:
        try:
            if self._start is None:
                log.error("store_died", restarted=True)
                self._start, self._reported_at = StoreStart(self._folder, adopt=False), now
            if (store := self._start.poll()) is not None:
                log.warning("store_serves_again")
                self._store, self._start, self._failures = store, None, 0
            elif self._start.progress and now - self._reported_at >= REPORT_INTERVAL_S:
                self._reported_at = now
                log.warning("store_loads", progress=self._start.progress)
        except GatewayError as error:
            self._failures += 1
            pause_s = min(MAX_PAUSE_S, 2.0 ** (self._failures - 1))
            self._start, self._due_at = None, now + pause_s
            log.error("store_did_not_start", reason=str(error), again_in_s=pause_s)

    def stop(self) -> None:
        """Stop the server; kill one that is still loading."""
        if self._start is not None:
            self._start.abandon()
        self._store.stop()

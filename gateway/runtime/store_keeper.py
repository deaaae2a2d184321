"""The embedded store of a running gateway: started at first, and started again when it dies, without stopping anything else.

While it loads its data again, the workers refuse requests with 503 and go on with their streams.

Where a full disk left a hole in its append-only file, the file is rewritten: see `gateway.store.embedded`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gateway.base.errors import GatewayError
from gateway.base.log import Logger
from gateway.store import embedded
from gateway.store.embedded import REPORT_INTERVAL_S, EmbeddedStore, StoreStart, ask, rewrite

MAX_PAUSE_S: Final = 10.0
CHECK_INTERVAL_S: Final = 1.0
REWRITE_INTERVAL_S: Final = 10.0
"""How long a rewrite may take before the next is tried: it fails while the disk is full."""
CHECK_TIMEOUT_S: Final = 0.05

log = Logger("gateway.runtime.store_keeper")


class StoreKeeper:
    """Keeps the server of a folder running. All of it runs on the main thread, with which the server ends."""

    def __init__(self, folder: Path, report: Callable[[str], None]) -> None:
        """Start the server, and wait until it serves; call `report` with the progress. Raises `GatewayError`."""
        self._folder = folder
        self._store = EmbeddedStore.start(folder, adopt=False, report=report)
        self.url = self._store.url
        self._manifest = embedded.manifest_of(folder)
        self._start: StoreStart | None = None
        self._failures = 0
        self._due_at = self._reported_at = self._check_at = 0.0

    def tick(self) -> None:
        """Look at the server, and go on with starting it if it has died. Called several times a second."""
        now = time.monotonic()
        if not self._store.ended:
            if now >= self._check_at:
                self._check_at = now + (REWRITE_INTERVAL_S if self._rewrite_with_holes() else CHECK_INTERVAL_S)
        elif now >= self._due_at:
            self._restart(now)

    def _rewrite_with_holes(self) -> bool:
        """Let the server rewrite its files if they have a hole. Return whether it does."""
        try:
            if not (holes := embedded.zero_bytes(self._folder, self._manifest, self._written)):
                return False
            log.warning("append_only_file_rewritten", zero_bytes=holes, reason="a full disk left them there")
            rewrite(self._store.path, CHECK_TIMEOUT_S)
        except OSError:
            return False
        return True

    def _written(self) -> int:
        answer = ask(self._store.path, CHECK_TIMEOUT_S)
        return -1 if answer is None else answer.written

    def _restart(self, now: float) -> None:
        try:
            if self._start is None:
                log.error("store_died", restarted=True)
                self._start, self._reported_at = StoreStart(self._folder, adopt=False), now
            if (store := self._start.poll()) is not None:
                log.warning("store_serves_again")
                self._store, self._start, self._failures = store, None, 0
                self._manifest = embedded.manifest_of(self._folder)
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

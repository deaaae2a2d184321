"""The credentials of a channel, used in turn. One that the upstream refuses is not used for a while.

No credential is ever logged: log lines have its index in the list, counted from 0.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import structlog

SUSPENDED_S: Final = 600.0
"""How long a refused credential is not used. It may have been blocked for a time, or its budget may be refilled."""

log = structlog.get_logger("gateway.proxy.credentials")


class Credentials:
    """The credentials of one channel in one worker. A channel without credentials has one empty credential."""

    def __init__(self, credentials: Sequence[str]) -> None:
        self._all = tuple(credentials) or ("",)
        self._suspended_until = [0.0] * len(self._all)
        self._turn = 0

    def next(self) -> str:
        """Return the credential whose turn it is, or the one that is usable first where all are suspended."""
        count = len(self._all)
        if count == 1:
            return self._all[0]
        now = time.monotonic()
        turns = [(self._turn + step) % count for step in range(count)]
        chosen = min(turns, key=lambda index: max(now, self._suspended_until[index]))
        self._turn = (chosen + 1) % count
        return self._all[chosen]

    def refused(self, credential: str, channel: str) -> bool:
        """Suspend a credential and log an error. Return whether there is another to try.

        The only credential of a channel is never suspended: the circuit breaker opens for the channel instead.
        """
        index = self._all.index(credential)
        now = time.monotonic()
        log.error("credential_refused", channel=channel, index=index, of=len(self._all))
        if len(self._all) > 1:
            self._suspended_until[index] = now + SUSPENDED_S
        return any(until <= now for until in self._suspended_until) and len(self._all) > 1

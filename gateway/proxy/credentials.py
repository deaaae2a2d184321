"""A channel's credentials, used in turn; one that the upstream refuses is set aside for a while.

No credential is ever shown: log lines name its place in the list, counted from 0.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import structlog

ASIDE_S: Final = 600.0
"""How long a refused credential rests. It may have been blocked for a while only, or its budget be filled again."""

log = structlog.get_logger("gateway.proxy.credentials")


class Credentials:
    """The credentials of one channel in one worker. A channel without any has one that is empty."""

    def __init__(self, credentials: Sequence[str]) -> None:
        self._all = tuple(credentials) or ("",)
        self._rests_until = [0.0] * len(self._all)
        self._turn = 0

    def next(self) -> str:
        """The one whose turn it is; where all are set aside, the one that has rested longest."""
        count = len(self._all)
        if count == 1:
            return self._all[0]
        now = time.monotonic()
        turns = [(self._turn + step) % count for step in range(count)]
        chosen = min(turns, key=lambda index: max(now, self._rests_until[index]))
        self._turn = (chosen + 1) % count
        return self._all[chosen]

    def refused(self, credential: str, channel: str) -> bool:
        """Set one aside, loudly; whether there is another to try. The only one of a channel never is: the channel cools."""
        index = self._all.index(credential)
        now = time.monotonic()
        log.error("credential_refused", channel=channel, index=index, of=len(self._all))
        if len(self._all) > 1:
            self._rests_until[index] = now + ASIDE_S
        return any(rests <= now for rests in self._rests_until) and len(self._all) > 1

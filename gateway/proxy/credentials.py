"""The credentials of a channel, used in turn. One that the upstream refuses is not used for a while.

A 403 may be about what a request contains. So the credential is set aside for the account that met it, and for all accounts
only when a second one meets it before any call with that credential has succeeded.

No credential is ever logged: log lines have its index in the list, counted from 0.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from gateway.log import Logger
from gateway.proxy.failure import UpstreamFailure

SUSPENDED_S: Final = 600.0
"""How long a refused credential is not used. It may have been blocked for a time, or its budget may be refilled."""
MAX_ACCOUNTS: Final = 64
"""Accounts for which one credential is set aside at the same time; the earliest is forgotten first."""

OnRefused = Callable[[str, int, int], None]
"""Is called with the channel, the credential's index, and how many credentials the channel has."""

log = Logger("gateway.proxy.credentials")


class Credentials:
    """The credentials of one channel in one worker. A channel without credentials has one empty credential."""

    def __init__(self, credentials: Sequence[str], on_refused: OnRefused = lambda channel, index, of: None) -> None:
        self._on_refused = on_refused
        self._all = tuple(credentials) or ("",)
        self._suspended_until = [0.0] * len(self._all)
        self._aside_until: list[dict[str, float]] = [{} for _ in self._all]
        self._in_doubt: list[set[str]] = [set() for _ in self._all]
        self._turn = 0

    def next(self, account: str = "") -> str:
        """Return the credential whose turn it is, or the one that the account may use first where all are set aside."""
        count = len(self._all)
        if count == 1:
            return self._all[0]
        now = time.monotonic()
        turns = [(self._turn + step) % count for step in range(count)]
        chosen = min(
            turns,
            key=lambda index: max(now, self._suspended_until[index], self._aside_until[index].get(account, 0.0)),
        )
        self._turn = (chosen + 1) % count
        return self._all[chosen]

    def another(self, credential: str, channel: str, account: str, failed: UpstreamFailure | None) -> bool:
        """Note how a call of an account ended. Return whether it is to be repeated with the next credential."""
        if failed is None:
            self._in_doubt[self._all.index(credential)].clear()
            return False
        if failed.credential_refused:
            return self.refused(credential, channel)
        return failed.forbidden and self.forbidden(credential, channel, account)

    def refused(self, credential: str, channel: str) -> bool:
        """Suspend a credential and log an error. Return whether there is another to try.

        The only credential of a channel is never suspended: the circuit breaker opens for the channel instead.
        """
        index = self._all.index(credential)
        now = time.monotonic()
        log.error("credential_refused", channel=channel, index=index, of=len(self._all))
        self._on_refused(channel, index, len(self._all))
        if len(self._all) > 1:
            self._suspended_until[index] = now + SUSPENDED_S
        return any(until <= now for until in self._suspended_until) and len(self._all) > 1

    def forbidden(self, credential: str, channel: str, account: str) -> bool:
        """Set a credential aside for an account, or suspend it if other accounts met the same. Return as `refused` does."""
        index = self._all.index(credential)
        if len(self._in_doubt[index]) < MAX_ACCOUNTS:
            self._in_doubt[index].add(account)
        if len(self._in_doubt[index]) > 1:
            self._in_doubt[index].clear()
            return self.refused(credential, channel)
        log.warning("credential_forbidden", channel=channel, index=index, of=len(self._all), account=account)
        aside = self._aside_until[index]
        aside.pop(account, None)
        aside[account] = time.monotonic() + SUSPENDED_S
        if len(aside) > MAX_ACCOUNTS:
            del aside[next(iter(aside))]
        return False

"""The credentials of a channel, used in turn. One that the upstream refuses is not used for a while, by no worker.

A 403 may be about what a request contains. So the credential is set aside for the account that met it, by this worker, and for all
accounts and workers only when a second account meets it before any call with that credential has succeeded.

No credential is ever logged: log lines have its index in the list, counted from 0.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from gateway.log import Logger
from gateway.proxy.failure import UpstreamFailure
from gateway.store.credential_states import SUSPENDED_S, CredentialStates, fingerprint_of

MAX_ACCOUNTS: Final = 64
"""Accounts for which one credential is set aside at the same time; the earliest is forgotten first."""

log = Logger("gateway.proxy.credentials")


class Credentials:
    """The credentials of one target in one worker. A channel without credentials has one empty credential."""

    def __init__(self, credentials: Sequence[str], states: CredentialStates | None = None) -> None:
        self._states = states or CredentialStates()
        self._all = tuple(credentials) or ("",)
        self._fingerprints = [fingerprint_of(credential) for credential in self._all]
        self._aside_until: list[dict[str, float]] = [{} for _ in self._all]
        self._in_doubt: dict[int, set[str]] = {}
        self._turn = 0

    def next(self, channel: str = "", account: str = "") -> str:
        """Return the credential whose turn it is, or the one that the account may use first where all are set aside."""
        count = len(self._all)
        if count == 1:
            return self._all[0]
        now = time.monotonic()
        turns = [(self._turn + step) % count for step in range(count)]
        chosen = min(
            turns,
            key=lambda index: max(now, self._until(channel, index), self._aside_until[index].get(account, 0.0)),
        )
        self._turn = (chosen + 1) % count
        return self._all[chosen]

    def another(self, credential: str, channel: str, account: str, failed: UpstreamFailure | None) -> bool:
        """Note how a call of an account ended. Return whether it is to be repeated with the next credential."""
        if failed is None:
            if self._in_doubt or self._states.aside:
                index = self._all.index(credential)
                self._in_doubt.pop(index, None)
                self._states.worked(channel, self._fingerprints[index])
            return False
        if failed.credential_refused:
            return self.refused(credential, channel, failed.why)
        return failed.forbidden and self.forbidden(credential, channel, account)

    def refused(self, credential: str, channel: str, why: str = "") -> bool:
        """Suspend a credential and log an error. Return whether there is another to try.

        The only credential of a channel is used all the same: the circuit breaker opens for the channel instead.
        """
        index = self._all.index(credential)
        log.error("credential_refused", channel=channel, index=index, of=len(self._all), reason=why)
        self._states.on_refused(channel, index, len(self._all))
        self._states.refused(channel, self._fingerprints[index], why)
        now = time.monotonic()
        return any(self._until(channel, other) <= now for other in range(len(self._all)))

    def forbidden(self, credential: str, channel: str, account: str) -> bool:
        """Set a credential aside for an account, or suspend it if other accounts met the same. Return as `refused` does."""
        index = self._all.index(credential)
        in_doubt = self._in_doubt.setdefault(index, set())
        if len(in_doubt) < MAX_ACCOUNTS:
            in_doubt.add(account)
        if len(in_doubt) > 1:
            del self._in_doubt[index]
            return self.refused(credential, channel, "403 for several accounts")
        log.warning("credential_forbidden", channel=channel, index=index, of=len(self._all), account=account)
        aside = self._aside_until[index]
        aside.pop(account, None)
        aside[account] = time.monotonic() + SUSPENDED_S
        if len(aside) > MAX_ACCOUNTS:
            del aside[next(iter(aside))]
        return False

    def _until(self, channel: str, index: int) -> float:
        return self._states.until(channel, self._fingerprints[index])

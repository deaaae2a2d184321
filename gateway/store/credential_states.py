"""Which credentials of the channels are set aside, as all workers and machines share it, without a round trip for a request.

1. A worker notes what an upstream refused, and sets it aside at once. The next synchronization of its channels, twice a second,
   tells the store, and learns what other workers and the operator have set aside.
2. A refused credential is set aside for ten minutes by the store's clock. One that is used before that, since all are set
   aside, and that the upstream accepts, is in use again. One that an operator switched off is not used until it is switched on.
3. Credentials are stored as fingerprints, so a list that is edited gives no key the state of another. 48 bits of a hash identify a
   key that a provider made; they do not lead back to it. The pepper has no part in them: its change must not switch a key on.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

SUSPENDED_S: Final = 600.0
"""How long a refused credential is not used, as in `channels.lua`. Its budget may be refilled, or its block be over."""
OFF: Final = float("inf")

OnRefused = Callable[[str, int, int], None]
"""Is called with the channel, the credential's index, and how many credentials the channel has."""


class CredentialState(StrEnum):
    """The state of a credential. `REFUSED`: the upstream refused it lately. `OFF`: an operator switched it off."""

    IN_USE = "in use"
    REFUSED = "refused"
    OFF = "off"


class CredentialStatus(msgspec.Struct, frozen=True):
    """A credential as the store has it: since when it is set aside and until when, in ms since 1970, and why."""

    state: CredentialState = CredentialState.IN_USE
    since_ms: int | None = None
    until_ms: int | None = None
    reason: str = ""


def fingerprint_of(credential: str) -> str:
    """Return the short name under which the store keeps a credential's state."""
    return hashlib.blake2b(credential.encode(), digest_size=6, person=b"credential").hexdigest()


class CredentialStates:
    """What one process knows of the credentials of its channels."""

    def __init__(self) -> None:
        self.aside: dict[str, dict[str, float]] = {}
        """By channel, the fingerprints of those that are set aside, and until when by `time.monotonic`."""
        self._reports: dict[str, dict[str, str]] = {}
        self.on_refused: OnRefused = lambda channel, index, of: None
        """Called for each credential that an upstream refuses."""

    def until(self, channel: str, fingerprint: str) -> float:
        """Return until when a credential is set aside by the clock `time.monotonic`; `OFF` where it is switched off."""
        known = self.aside.get(channel)
        return known.get(fingerprint, 0.0) if known else 0.0

    def refused(self, channel: str, fingerprint: str, why: str) -> None:
        """Set a credential aside, and let the other workers know with the next report."""
        known = self.aside.setdefault(channel, {})
        known[fingerprint] = max(known.get(fingerprint, 0.0), time.monotonic() + SUSPENDED_S)
        self._reports.setdefault(channel, {})[fingerprint] = why or "refused"

    def worked(self, channel: str, fingerprint: str) -> None:
        """Note that an upstream accepted a credential: if it was refused before, it is in use again."""
        known = self.aside.get(channel)
        if known and 0.0 < known.get(fingerprint, 0.0) < OFF:
            del known[fingerprint]
            self._reports.setdefault(channel, {})[fingerprint] = ""

    def take_report(self, channel: str) -> dict[str, str]:
        """Return what was noted since the last call: why a credential was refused; empty where it is in use again."""
        return self._reports.pop(channel, {})

    def learn(self, channel: str, aside: Iterable[tuple[bytes, int]]) -> None:
        """Take over what the store says: the credentials that are set aside, and for how many ms; -1: switched off."""
        now = time.monotonic()
        told = {name.decode(): OFF if ms < 0 else now + ms / 1000 for name, ms in aside}
        for fingerprint, why in self._reports.get(channel, {}).items():  # noted meanwhile, and not told yet
            if why:
                told.setdefault(fingerprint, now + SUSPENDED_S)
            elif told.get(fingerprint) != OFF:
                told.pop(fingerprint, None)
        if told:
            self.aside[channel] = told
        else:
            self.aside.pop(channel, None)

    def all_off(self, channel: str, credentials: Sequence[str]) -> bool:
        """Return whether an operator has switched off every credential of a channel."""
        known = self.aside.get(channel)
        if not known or OFF not in known.values():
            return False
        return all(known.get(fingerprint_of(credential)) == OFF for credential in credentials or ("",))


def statuses(state: Mapping[str, str], now_ms: int) -> dict[str, CredentialStatus]:
    """Return the credentials that are set aside, by fingerprint, from the fields of a channel's state in the store."""
    found: dict[str, CredentialStatus] = {}
    for name, value in state.items():
        kind, _, fingerprint = name.partition(":")
        if kind == "key" and fingerprint not in found:
            until_ms, since_ms, why = value.split(" ", 2)
            if int(until_ms) > now_ms:
                found[fingerprint] = CredentialStatus(CredentialState.REFUSED, int(since_ms), int(until_ms), why)
        elif kind == "off":
            found[fingerprint] = CredentialStatus(CredentialState.OFF, int(value))
    return found

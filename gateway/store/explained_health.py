"""The circuit breaker of one worker as far as it explains itself: why a candidate may not be called now."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.facts import Candidate, CircuitBreaker
from gateway.store.channels import Channels, Condition
from gateway.store.local_channel import LocalChannel


class ExplainedHealth(CircuitBreaker):
    """Says why candidates may not be called, by what the store and this worker know. It takes nothing."""

    def __init__(self, store: Channels, channels: Mapping[str, LocalChannel]) -> None:
        self._store = store
        self._channels = channels

    def why_not_for(self, candidate: Candidate, account: str, *, alone: bool = False) -> str:
        """Return why this account may not call the candidate, as far as this worker knows; empty if it may."""
        wait_s, firm = self._channels[candidate.name].wait_s(account)
        refused = firm or (wait_s and not alone)
        return f"cooling for {-(-wait_s // 1):.0f} s for this account, whose requests fail there" if refused else ""

    async def why_not_alone(self, candidate: Candidate) -> str:
        limits = self._channels[candidate.name].limits
        if self._channels[candidate.name].status.credentials_off:
            return await self.why_not(candidate)
        (snapshot,) = await self._store.show([candidate.name])
        if (await self._store.look_alone(limits, cools=snapshot.firm)).index is not None:
            return ""
        return await self.why_not(candidate)

    async def why_not(self, candidate: Candidate) -> str:
        """Return why the candidate may not be called, by what the store knows; empty if it may."""
        limits = self._channels[candidate.name].limits
        if self._channels[candidate.name].status.credentials_off:
            return "has no credential that is switched on"
        (snapshot,) = await self._store.show([candidate.name])
        if (await self._store.look([limits])).index is not None:
            return ""
        match snapshot.condition:
            case Condition.DISABLED:
                return "switched off by an operator"
            case Condition.COOLING:
                return f"cooling for {-(-snapshot.cool_ms // 1000)} s after {snapshot.last_error or 'failures'}"
            case Condition.PROBING:
                return f"has cooled after {snapshot.last_error or 'failures'}, and another request tries it now"
            case _:
                return "full: it has as many requests, at once or in this minute, as its limits allow"

"""The circuit breaker for the calls of one account: what its requests cause is not held against others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

from gateway.facts import Candidate, CircuitBreaker
from gateway.store.channel_health import ChannelHealth


class AccountHealth(CircuitBreaker):
    """Admits the calls of one request, and reports how they end for its account."""

    __slots__ = ("_account", "_health", "_succeeding")

    def __init__(self, health: ChannelHealth, account: str) -> None:
        self._health = health
        self._account = account
        self._succeeding = False

    async def why_not(self, candidate: Candidate) -> str:
        return await self._health.why_not(candidate) or self._health.why_not_for(candidate, digest_of(self._account))

    async def why_not_alone(self, candidate: Candidate) -> str:
        account = digest_of(self._account)
        return await self._health.why_not_alone(candidate) or self._health.why_not_for(candidate, account, alone=True)

    async def admit(self, candidates: Sequence[Candidate], request_id: str) -> Candidate:
        self._succeeding = False
        return await self._health.admit_for(candidates, request_id, digest_of(self._account))

    def answered(self, candidate: Candidate, request_id: str, after_s: float) -> None:
        self._succeeding = True
        self._health.answered(candidate, request_id, after_s)

    def failed(self, candidate: Candidate, request_id: str, code: str, cool_s: float | None) -> None:
        self._succeeding = False
        self._health.failed_for(candidate, request_id, code, cool_s, digest_of(self._account))

    def unusable(self, candidate: Candidate, request_id: str, code: str, cool_s: float | None) -> None:
        self._succeeding = False
        self._health.failed(candidate, request_id, code, cool_s)

    async def wait_s(self, candidates: Sequence[Candidate], asked_s: float) -> float:
        return await self._health.wait_s_for(candidates, digest_of(self._account), asked_s)

    def left(self, candidate: Candidate, request_id: str) -> None:
        if self._succeeding:
            self._health.succeeded_for(candidate, digest_of(self._account))
        self._health.left(candidate, request_id)


@lru_cache(4096)
def digest_of(account: str) -> str:
    """Return a short digest of an account's name, under which its failures are counted; empty for no account."""
    return blake2b(account.encode(), digest_size=8).hexdigest() if account else ""

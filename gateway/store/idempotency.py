"""Requests that may be repeated: who has begun one, and what was answered. All gateways of a store know it.

1. **One attempt at a time.** It has the key for `LEASE_MS`, and renews that while it works. What was killed is free after that.
2. **A key is for one request.** The fingerprint tells another one with the same key, also after a kill.
3. **An answer is kept for a day.** What was refused is not: nothing was changed, so that it may be sent again.
"""

from __future__ import annotations

from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from gateway.store.client.client import Client, Script

PREFIX: Final = "gw:idempotency:"
LEASE_MS: Final = 10_000
KEPT_S: Final = 86_400
_SCRIPT: Final = Script.load(Path(__file__).with_name("idempotency.lua"))


class Begun(StrEnum):
    """What is known of a key at the beginning of an attempt."""

    BEGUN = "begun"
    """This attempt has it."""
    IN_USE = "in_use"
    """Another attempt has it."""
    REUSED = "reused"
    """It was used for another request."""
    ANSWERED = "answered"


class Known(NamedTuple):
    """What is known of a key, with the answer where there is one."""

    state: Begun
    answer: bytes = b""


class Idempotency:
    """The requests with one key. Every method may also raise `StoreAway`."""

    def __init__(self, client: Client, key: str, fingerprint: str) -> None:
        """`key`: as the caller sent it; the store has its digest. `fingerprint`: what differs between requests."""
        self._client = client
        self._key = PREFIX + sha256(key.encode()).hexdigest()
        self._fingerprint = fingerprint

    async def begin(self) -> Known:
        """Take the key, if no other attempt has it, and return what is known of it."""
        state, *answer = await self._run("begin")
        return Known(Begun(state.decode()), *answer)

    async def go_on(self) -> None:
        """Have the key for `LEASE_MS` from now on."""
        await self._run("go on")

    async def keep(self, answer: bytes) -> None:
        """Keep the answer for `KEPT_S`."""
        await self._run("keep", answer=answer)

    async def end(self) -> None:
        """Leave the key to the next attempt, which must be of the same request: how this one ended is not known."""
        await self._run("go on", 0)

    async def forget(self) -> None:
        """Leave the key to any request: this one has changed nothing."""
        await self._run("forget")

    async def _run(self, what: str, lease_ms: int | None = None, answer: bytes = b"") -> list[bytes]:
        lease_ms = LEASE_MS if lease_ms is None else lease_ms
        reply: list[bytes] = await self._client.run(
            _SCRIPT, [self._key], [what, self._fingerprint, lease_ms, KEPT_S, answer]
        )
        return reply

"""`Idempotency-Key`: a write that is repeated with it is done once, and has the answer of the first time.

The action itself knows the first attempt by `LocalClient.key`, so that it is done once also where the process ended before the
answer was kept. An answer is kept without the secret that it shows once. All gateways of a store know who has begun a request.

1. **One attempt at a time.** It has the key for `LEASE_MS`, and renews that while it works. What was killed is free after that.
2. **A key is for one request.** The fingerprint tells another one with the same key, also after a kill.
3. **An answer is kept for a day.** What was refused is not: nothing was changed, so that it may be sent again.
4. **A write is done to its end**, also where the caller leaves meanwhile: half of one would be worse than either.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import web

from gateway.admin.actions.action import IN_USE, Action, Actor, Arguments
from gateway.base import crash_points
from gateway.base.errors import GatewayError, Refused, StoreAway
from gateway.store.client.client import Client, Script

HEADER: Final = "Idempotency-Key"
REPLAYED: Final = "Idempotent-Replayed"
MAX_KEY: Final = 255
MAX_KEPT: Final = 256 * 1024
"""Bytes of an answer that is kept. A longer one is that of an import, each row of which is done once."""

PREFIX: Final = "gw:idempotency:"
LEASE_MS: Final = 10_000
KEPT_S: Final = 86_400
_SCRIPT: Final = Script.load(Path(__file__).with_name("idempotency.lua"))

Result = TypeVar("Result")

END_S: Final = 5.0
"""How long a stop waits for them."""


class KeptAnswer(msgspec.Struct, frozen=True):
    """A status with a body. `replayed`: it is that of an earlier request."""

    status: int
    body: bytes = b""
    replayed: bool = False

    @classmethod
    def of(cls, action: Action[Any, Any], result: Any) -> KeptAnswer:
        """Return the answer that has the result of an action."""
        return cls(204) if result is None else cls(action.status, msgspec.json.encode(result))


async def answered(
    known: Idempotency | None, action: Action[Any, Any], work: Callable[[], Awaitable[Any]]
) -> KeptAnswer:
    """Do the work of a request without a key, or with one that is known; or return the answer of the first time.

    Raises `Refused` (409) where the key was used for another request or another attempt has it, and what the work raises.
    """
    if known is None:
        crash_points.point("api.begun")
        result = await work()
        crash_points.point("api.done")
        return KeptAnswer.of(action, result)
    state, kept = await known.begin()
    if state is Begun.ANSWERED:
        return msgspec.structs.replace(msgspec.msgpack.decode(kept, type=KeptAnswer), replayed=True)
    if state is Begun.REUSED:
        raise Refused(
            409, "idempotency_key_reused", f"This {HEADER} was used for another request. Use a new one.", param=HEADER
        )
    if state is Begun.IN_USE:
        raise Refused(
            409,
            IN_USE,
            f"Another request with this {HEADER} is under way. Repeat it shortly.",
            param=HEADER,
            retry_after_s=1,
            should_retry=True,
        )
    crash_points.point("api.begun")
    async with _having(known):
        result = await work()
    crash_points.point("api.done")
    answer = KeptAnswer.of(action, result)
    secret = action.shown_once
    shown = KeptAnswer.of(action, msgspec.structs.replace(result, **{secret: None})) if secret else answer
    with suppress(
        StoreAway
    ):  # it is done; without the kept answer a repeated request is done again, which changes nothing
        await (known.keep(msgspec.msgpack.encode(shown)) if len(shown.body) <= MAX_KEPT else known.forget())
    crash_points.point("api.kept")
    return answer


@asynccontextmanager
async def _having(known: Idempotency) -> AsyncIterator[None]:
    """Have the key while the work is done. Where that is refused, leave it."""

    async def renew() -> None:
        while True:
            await asyncio.sleep(LEASE_MS / 3000)
            with suppress(StoreAway):
                await known.go_on()

    renewing = asyncio.get_running_loop().create_task(renew())
    try:
        yield
    except StoreAway:
        with suppress(GatewayError):
            await known.end()
        raise
    except GatewayError:
        with suppress(GatewayError):
            await known.forget()
        raise
    finally:
        renewing.cancel()
        await asyncio.wait((renewing,))


class Begun(StrEnum):
    """What is known of a key at the beginning of an attempt."""

    BEGUN = "begun"
    """This attempt has it."""
    IN_USE = "in_use"
    """Another attempt has it."""
    REUSED = "reused"
    """It was used for another request."""
    ANSWERED = "answered"


class Idempotency:
    """The requests with one key. Every method may also raise `StoreAway`."""

    def __init__(self, client: Client, key: str, fingerprint: str) -> None:
        """`key`: as the caller sent it; the store has its digest. `fingerprint`: what differs between requests."""
        self._client = client
        self._key = PREFIX + sha256(key.encode()).hexdigest()
        self._fingerprint = fingerprint
        self.client_key = sha256(f"{key} {fingerprint}".encode()).hexdigest()
        """What the action knows the first attempt by: the same for this request alone."""

    @classmethod
    def of(
        cls, client: Client, request: web.Request, actor: Actor, action: Action[Any, Any], arguments: Arguments
    ) -> Idempotency | None:
        """Return what is known of the key of a request, None without one. Raises `Refused` (400) for what is no key."""
        values = request.headers.getall(HEADER, [])
        if not values or not action.writes:
            return None
        (key, *others) = (value.strip() for value in values)
        if others or not (0 < len(key) <= MAX_KEY and key.isascii() and key.isprintable()):
            text = f"{HEADER} is one text of 1 to {MAX_KEY} printable ASCII characters."
            raise Refused(400, "invalid_request", text, param=HEADER)
        parts = (actor.name, action.name, arguments.path, arguments.query, arguments.body)
        return cls(client, key, sha256(msgspec.json.encode(parts)).hexdigest())

    async def begin(self) -> tuple[Begun, bytes]:
        """Take the key, if no other attempt has it, and return what is known of it, with the answer where there is one."""
        state, *answer = await self._run("begin")
        return Begun(state.decode()), b"".join(answer)

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


class Unbroken:
    """The writes in progress."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def done(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do the work and return its result. Where this call is cancelled, the work goes on."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # nobody may be left to hear of it

    async def end(self, *_: object) -> None:
        """Wait until those in progress have ended, for some seconds."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=END_S)

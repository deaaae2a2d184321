"""`Idempotency-Key`: a write that is repeated with it is done once, and has the answer of the first time.

The operation itself knows the first attempt by `LocalDesk.key`, so that it is done once also where the process ended before the
answer was kept. An answer is kept without the secret that it shows once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from typing import Any, Final

import msgspec
from aiohttp import web

from gateway import crash_points
from gateway.errors import GatewayError, Refused, StoreAway
from gateway.management.desk import Actor
from gateway.management.errors import IN_USE
from gateway.management.operation import Arguments, Operation
from gateway.store.client.client import Client
from gateway.store.idempotency import LEASE_MS, Begun, Idempotency

HEADER: Final = "Idempotency-Key"
REPLAYED: Final = "Idempotent-Replayed"
MAX_KEY: Final = 255
MAX_KEPT: Final = 256 * 1024
"""Bytes of an answer that is kept. A longer one is that of an import, each row of which is done once."""


class Answer(msgspec.Struct, frozen=True):
    """A status with a body. `replayed`: it is that of an earlier request."""

    status: int
    body: bytes = b""
    replayed: bool = False

    @classmethod
    def of(cls, operation: Operation[Any, Any], result: Any) -> Answer:
        """Return the answer that has the result of an operation."""
        return cls(204) if result is None else cls(operation.status, msgspec.json.encode(result))


class Repeatable(msgspec.Struct, frozen=True):
    """A key that was sent, with the fingerprint of its request. Without a key both are empty."""

    key: str = ""
    fingerprint: str = ""

    @classmethod
    def of(cls, request: web.Request, actor: Actor, operation: Operation[Any, Any], arguments: Arguments) -> Repeatable:
        """Return the key of a request. Raises `Refused` (400) for what is no key."""
        values = request.headers.getall(HEADER, [])
        if not values or not operation.writes:
            return cls()
        (key, *others) = (value.strip() for value in values)
        if others or not (0 < len(key) <= MAX_KEY and key.isascii() and key.isprintable()):
            raise Refused(
                400,
                "invalid_request",
                f"{HEADER} is one text of 1 to {MAX_KEY} printable ASCII characters.",
                param=HEADER,
            )
        parts = (actor.name, operation.name, arguments.path, arguments.query, arguments.body)
        return cls(key, sha256(msgspec.json.encode(parts)).hexdigest())

    @property
    def desk_key(self) -> str:
        """What the operation knows the first attempt by: the same for this request alone."""
        return sha256(f"{self.key} {self.fingerprint}".encode()).hexdigest() if self.key else ""


async def answered(
    client: Client, repeatable: Repeatable, operation: Operation[Any, Any], work: Callable[[], Awaitable[Any]]
) -> Answer:
    """Do the work, or return the answer of the first time.

    Raises `Refused` (409) where the key was used for another request or another attempt has it, and what the work raises.
    """
    if not repeatable.key:
        crash_points.point("api.begun")
        result = await work()
        crash_points.point("api.done")
        return Answer.of(operation, result)
    known = Idempotency(client, repeatable.key, repeatable.fingerprint)
    state, kept = await known.begin()
    if state is Begun.ANSWERED:
        return msgspec.structs.replace(msgspec.msgpack.decode(kept, type=Answer), replayed=True)
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
    answer = Answer.of(operation, result)
    secret = operation.shown_once
    shown = Answer.of(operation, msgspec.structs.replace(result, **{secret: None})) if secret else answer
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

"""What operations write in the audit log: who changed what, when, with the state before and after.

A write has two lines. The first is there before anything is changed, so that no change is without one; the second says that it was
done, or refused. Where the second is missing, the process or the store ended meanwhile: the first one says what was asked for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from gateway.errors import GatewayError, Refused, StoreAway
from gateway.log import Logger
from gateway.management.operation import Arguments
from gateway.store.audit_log import OPERATORS, AuditLog, Part
from gateway.store.client.client import Client

MAX_FIELD: Final = 4096
"""Bytes of a field of a line."""
MAX_TARGET: Final = 200
LEFT_OUT: Final = b'"(left out: too long)"'

log = Logger("gateway.management.audit_lines")


class Change:
    """What an operation says of itself: how what it was done to was before, and is after."""

    def __init__(self) -> None:
        self.before: object = None
        self.after: object = None


class Audit:
    """The writing end of a part of the audit log of a store."""

    def __init__(self, client: Client, part: Part = OPERATORS) -> None:
        self._log = AuditLog(client)
        self._part = part

    async def begin(self, actor: str, operation: str, arguments: Arguments) -> str:
        """Write that a change is asked for, and return the id of the line. Raises `StoreAway`."""
        named = next(iter(arguments.path.values()), None) or getattr(arguments.body, "id", "")
        return await self._log.add(
            self._part,
            *("actor", actor, "operation", operation, "target", str(named)[:MAX_TARGET].encode("utf-8", "replace")),
            *("path", _json(arguments.path), "body", _json(arguments.body)),
        )

    async def done(self, line: str, before: object, after: object) -> None:
        """Write that the change of the line `line` was done. Raises `StoreAway`."""
        await self._log.add(self._part, "done", line, "before", _json(before), "after", _json(after))

    async def refused(self, line: str, code: str) -> None:
        """Write that the change of the line `line` was refused, so that nothing was changed. Raises `StoreAway`."""
        await self._log.add(self._part, "refused", line, "code", code)


@asynccontextmanager
async def audited(
    client: Client, actor: str, operation: str, arguments: Arguments, part: Part = OPERATORS
) -> AsyncIterator[Change]:
    """Write that a change is asked for before it is made inside, and afterwards what became of it. Raises `StoreAway`."""
    audit, change = Audit(client, part), Change()
    line = await audit.begin(actor, operation, arguments)
    try:
        yield change
    except StoreAway:  # whether something was changed is not known: the line stays as it is
        raise
    except GatewayError as error:
        await audit.refused(line, error.code if isinstance(error, Refused) else error.kind)
        raise
    try:
        await audit.done(line, change.before, change.after)
    except StoreAway as error:  # it is done, whatever the log can say of it
        log.warning("audit_line_lost", operation=operation, line=line, reason=str(error))


def _json(value: object) -> bytes:
    encoded = msgspec.json.encode(value)
    return encoded if len(encoded) <= MAX_FIELD else LEFT_OUT

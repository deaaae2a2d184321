"""What operations write in the audit log: who changed what, when, with the state before and after.

A write has two lines. The first is there before anything is changed, so that no change is without one; the second says that it was
done, or refused. Where the second is missing, the process or the store ended meanwhile: the first one says what was asked for.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gateway.management.operation import Arguments
from gateway.store.audit_log import AuditLog
from gateway.store.client.client import Client

MAX_FIELD: Final = 4096
"""Bytes of a field of a line."""
MAX_TARGET: Final = 200
LEFT_OUT: Final = b'"(left out: too long)"'


class Audit:
    """The writing end of the audit log of a store."""

    def __init__(self, client: Client) -> None:
        self._log = AuditLog(client)

    async def begin(self, actor: str, operation: str, arguments: Arguments) -> str:
        """Write that a change is asked for, and return the id of the line. Raises `StoreAway`."""
        named = next(iter(arguments.path.values()), None) or getattr(arguments.body, "id", "")
        return await self._log.add(
            *("actor", actor, "operation", operation, "target", str(named)[:MAX_TARGET].encode("utf-8", "replace")),
            *("path", _json(arguments.path), "body", _json(arguments.body)),
        )

    async def done(self, line: str, before: object, after: object) -> None:
        """Write that the change of the line `line` was done. Raises `StoreAway`."""
        await self._log.add("done", line, "before", _json(before), "after", _json(after))

    async def refused(self, line: str, code: str) -> None:
        """Write that the change of the line `line` was refused, so that nothing was changed. Raises `StoreAway`."""
        await self._log.add("refused", line, "code", code)


def _json(value: object) -> bytes:
    encoded = msgspec.json.encode(value)
    return encoded if len(encoded) <= MAX_FIELD else LEFT_OUT

"""The audit log: who changed what, when, with the state before and after. It is a stream of the store, which all gateways share.

A write has two lines. The first is there before anything is changed, so that no change is without one; the second says that it was
done, or refused. Where the second is missing, the process or the store ended meanwhile: the first one says what was asked for.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gateway.management.operation import Arguments
from gateway.store.client.client import Client

KEY: Final = "gw:{audit}:lines"
MAX_LINES: Final = 100_000
MAX_BYTES: Final = 4096
"""Of one field of a line."""
LEFT_OUT: Final = b'"(left out: too long)"'


class Audit:
    """The audit log of a store."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def begin(self, actor: str, operation: str, arguments: Arguments) -> str:
        """Write that a change is asked for, and return the id of the line. Raises `StoreAway`."""
        return await self._add(
            "actor", actor, "operation", operation, "path", _json(arguments.path), "body", _json(arguments.body)
        )

    async def done(self, line: str, before: object, after: object) -> None:
        """Write that the change of the line `line` was done. Raises `StoreAway`."""
        await self._add("done", line, "before", _json(before), "after", _json(after))

    async def refused(self, line: str, code: str) -> None:
        """Write that the change of the line `line` was refused, so that nothing was changed. Raises `StoreAway`."""
        await self._add("refused", line, "code", code)

    async def _add(self, *fields: Any) -> str:
        reply = await self._client.call("XADD", KEY, "MAXLEN", "~", MAX_LINES, "*", *fields)
        return bytes(reply).decode()


def _json(value: object) -> bytes:
    encoded = msgspec.json.encode(value)
    return encoded if len(encoded) <= MAX_BYTES else LEFT_OUT

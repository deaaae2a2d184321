"""The lines of the audit log: a stream of the store, which all gateways share. It is bounded in lines and in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from gateway.store.client.client import Argument, Client, Script

KEY: Final = "gw:{audit}:lines"
BYTES: Final = "gw:{audit}:bytes"
MAX_LINES: Final = 100_000
MAX_BYTES: Final = 128 * 1024 * 1024
_ADD: Final = Script.load(Path(__file__).with_name("audit_add.lua"))


class StoredLine(NamedTuple):
    """A line as the stream has it. `id` begins with the milliseconds since 1970 and a hyphen."""

    id: str
    fields: Mapping[str, bytes]

    @property
    def at_ms(self) -> int:
        """When it was written, in milliseconds since 1970."""
        return int(self.id.partition("-")[0])


class AuditLog:
    """The audit log of a store. Every method may raise `StoreAway`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def add(self, *fields: Argument) -> str:
        """Add a line and return its id. `fields`: names and values in turn."""
        reply = await self._client.run(_ADD, [KEY, BYTES], [MAX_LINES, MAX_BYTES, *fields])
        return bytes(reply).decode()

    async def before(self, line: str, count: int) -> list[StoredLine]:
        """Return the lines before the one of this id, newest first; of the newest where the id is empty."""
        return _lines(await self._client.call("XREVRANGE", KEY, f"({line}" if line else "+", "-", "COUNT", count))

    async def after(self, line: str, count: int) -> list[StoredLine]:
        """Return the lines after the one of this id, oldest first."""
        return _lines(await self._client.call("XRANGE", KEY, f"({line}", "+", "COUNT", count))


def _lines(reply: list[tuple[bytes, Mapping[bytes, bytes] | list[bytes]]] | None) -> list[StoredLine]:
    lines = []
    for line, fields in reply or []:
        pairs = fields.items() if isinstance(fields, Mapping) else zip(fields[::2], fields[1::2], strict=True)
        lines.append(StoredLine(line.decode(), {name.decode(): value for name, value in pairs}))
    return lines

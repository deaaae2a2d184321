"""The lines of the audit log: streams of the store, which all gateways share. Each is bounded in lines and in bytes.

What callers change at their own pages has a stream of its own, so that no caller can push out the lines of operators. No two lines
of both have the same id: those of callers are numbered from `FIRST_OF_CALLERS` on within a millisecond.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from gateway.store.client.client import Argument, Client, Script

KEY: Final = "gw:{audit}:lines"
BYTES: Final = "gw:{audit}:bytes"
FIRST_OF_CALLERS: Final = 1_000_000_000
MAX_LINES: Final = 100_000
MAX_BYTES: Final = 128 * 1024 * 1024
_ADD: Final = Script.load(Path(__file__).with_name("audit_add.lua"))


class Part(NamedTuple):
    """A part of the log: the key of its stream, that of its size in bytes, and the first number of a line."""

    lines: str
    bytes: str
    first: int


OPERATORS: Final = Part(KEY, BYTES, 0)
CALLERS: Final = Part("gw:{audit}:callers:lines", "gw:{audit}:callers:bytes", FIRST_OF_CALLERS)
PARTS: Final = (OPERATORS, CALLERS)


class StoredLine(NamedTuple):
    """A line as its stream has it. `id` is the milliseconds since 1970, a hyphen, and a number within them."""

    id: str
    fields: Mapping[str, bytes]

    @property
    def place(self) -> tuple[int, int]:
        """The order of lines."""
        at_ms, _, number = self.id.partition("-")
        return int(at_ms), int(number)

    @property
    def at_ms(self) -> int:
        """When it was written, in milliseconds since 1970."""
        return self.place[0]


class AuditLog:
    """The audit log of a store, or some parts of it. Every method may raise `StoreAway`."""

    def __init__(self, client: Client, parts: Iterable[Part] = PARTS) -> None:
        self._client = client
        self._parts = tuple(parts)

    async def add(self, part: Part, *fields: Argument) -> str:
        """Add a line and return its id. `fields`: names and values in turn."""
        limits = (MAX_LINES, MAX_BYTES, part.first)
        reply = await self._client.run(_ADD, [part.lines, part.bytes], [*limits, *fields])
        return bytes(reply).decode()

    async def before(self, line: str, count: int) -> list[StoredLine]:
        """Return the lines before the one of this id, newest first; of the newest where the id is empty."""
        found = await self._read("XREVRANGE", f"({line}" if line else "+", "-", count)
        return sorted(found, key=lambda each: each.place, reverse=True)[:count]

    async def after(self, line: str, count: int) -> list[StoredLine]:
        """Return the lines after the one of this id, oldest first."""
        found = await self._read("XRANGE", f"({line}", "+", count)
        return sorted(found, key=lambda each: each.place)[:count]

    async def _read(self, command: str, first: str, last: str, count: int) -> list[StoredLine]:
        found: list[StoredLine] = []
        for part in self._parts:
            found += _lines(await self._client.call(command, part.lines, first, last, "COUNT", count))
        return found


def _lines(reply: list[tuple[bytes, Mapping[bytes, bytes] | list[bytes]]] | None) -> list[StoredLine]:
    lines = []
    for line, fields in reply or []:
        pairs = fields.items() if isinstance(fields, Mapping) else zip(fields[::2], fields[1::2], strict=True)
        lines.append(StoredLine(line.decode(), {name.decode(): value for name, value in pairs}))
    return lines

"""The audit log: who changed what, when, with the state before and after.

A write has a line before anything is changed, so that no change is without one. Another takes its place, which says that it was
done, or refused. Where that did not come, the process or the store ended meanwhile: the first one says what was asked for.

The lines are in streams of the store, which all gateways share. Each is bounded in lines and in bytes. The changes that callers
make at their own pages have a stream of their own, so that no caller can push out the lines of operators. No two lines of both
have the same id: those of callers are numbered from `FIRST_OF_CALLERS` on within a millisecond.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from gateway.admin.actions.action import Arguments
from gateway.base.errors import GatewayError, Refused, StoreAway
from gateway.base.log import log
from gateway.store.client.client import Argument, Client, Script

MAX_FIELD: Final = 4096
"""Bytes of a field of a line."""
MAX_TARGET: Final = 200
REPEATED: Final = "repeated"
"""The code of a write that an earlier one with its key had done."""
LEFT_OUT: Final = b'"(left out: too long)"'

KEY: Final = "gw:{audit}:lines"
BYTES: Final = "gw:{audit}:bytes"
FIRST_OF_CALLERS: Final = 1_000_000_000
MAX_LINES: Final = 100_000
MAX_BYTES: Final = 128 * 1024 * 1024
_ADD: Final = Script.load(Path(__file__).with_name("audit_add.lua"))


class LogPart(NamedTuple):
    """A part of the log: the key of its stream, that of its size in bytes, and the first number of a line."""

    lines: str
    bytes: str
    first: int


OPERATORS: Final = LogPart(KEY, BYTES, 0)
CALLERS: Final = LogPart("gw:{audit}:callers:lines", "gw:{audit}:callers:bytes", FIRST_OF_CALLERS)
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

    def __init__(self, client: Client, parts: Iterable[LogPart] = PARTS) -> None:
        self._client = client
        self._parts = tuple(parts)

    async def add(self, part: LogPart, *fields: Argument, replaces: str = "") -> str:
        """Add a line and return its id. `fields`: names and values in turn. `replaces`: the id of the line before, if any."""
        limits = (MAX_LINES, MAX_BYTES, part.first)
        reply = await self._client.run(_ADD, [part.lines, part.bytes], [*limits, replaces, *fields])
        return bytes(reply).decode()

    async def before(self, line: str, count: int) -> list[StoredLine]:
        """Return the lines before the one of this id, newest first; of the newest where the id is empty."""
        found: list[StoredLine] = []
        for part in self._parts:
            terms = (part.lines, f"({line}" if line else "+", "-", "COUNT", count)
            found += _lines(await self._client.call("XREVRANGE", *terms))
        return sorted(found, key=lambda each: each.place, reverse=True)[:count]


def _lines(reply: list[tuple[bytes, Mapping[bytes, bytes] | list[bytes]]] | None) -> list[StoredLine]:
    lines = []
    for line, fields in reply or []:
        pairs = fields.items() if isinstance(fields, Mapping) else zip(fields[::2], fields[1::2], strict=True)
        lines.append(StoredLine(line.decode(), {name.decode(): value for name, value in pairs}))
    return lines


class RecordedChange:
    """What an action says of itself: how what it was done to was before, and is after."""

    def __init__(self) -> None:
        self.before: object = None
        self.after: object = None
        self.is_repeated = False
        """Whether an earlier request with its key has made what this one asks for."""


@asynccontextmanager
async def audited(
    client: Client, actor: str, operation: str, arguments: Arguments, part: LogPart = OPERATORS
) -> AsyncIterator[RecordedChange]:
    """Write that a change is asked for before it is made inside, and afterwards what became of it. Raises `StoreAway`."""
    named = next(iter(arguments.path.values()), None) or getattr(arguments.body, "id", "")
    asked: tuple[Argument, ...] = (
        *("actor", actor, "operation", operation, "target", str(named)[:MAX_TARGET].encode("utf-8", "replace")),
        *("path", _json(arguments.path), "body", _json(arguments.body)),
    )
    audit, change = AuditLog(client), RecordedChange()
    line = await audit.add(part, *asked)
    asked += ("at", line.partition("-")[0])
    try:
        yield change
    except StoreAway:  # whether something was changed is not known: the line stays as it is
        raise
    except GatewayError as error:
        code = error.code if isinstance(error, Refused) else error.kind
        await audit.add(part, *asked, "outcome", "refused", "code", code, replaces=line)
        raise
    states = ("before", _json(change.before), "after", _json(change.after))
    repeated = ("code", REPEATED) if change.is_repeated else ()
    try:
        await audit.add(part, *asked, "outcome", "done", *states, *repeated, replaces=line)
    except StoreAway as error:  # it is done, whatever the log can say of it
        log.warning("audit_line_lost", operation=operation, line=line, reason=str(error))


def _json(value: object) -> bytes:
    encoded = msgspec.json.encode(value)
    return encoded if len(encoded) <= MAX_FIELD else LEFT_OUT

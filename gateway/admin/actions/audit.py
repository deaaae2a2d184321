"""The action that lists the audit log, one entry for each write."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

import msgspec

from gateway.admin.actions.action import DEFAULT_PAGE, LongLimit, Page, Scope, action
from gateway.admin.actions.audit_log import CALLERS, OPERATORS, PARTS, AuditLog, StoredLine
from gateway.admin.actions.local import LocalClient

READ_AT_ONCE: Final = 500
MOST_READ: Final = 20_000
"""Lines of the log that are searched for one page."""
MOST_LATER: Final = 4_000
"""Lines after a write that are searched for its second one."""
LONGEST_MS: Final = 600_000
"""Where the second line of a write is looked for: no action takes longer."""
_PARTS: Final = {None: PARTS, "operators": (OPERATORS,), "callers": (CALLERS,)}

Text = Annotated[str, msgspec.Meta(max_length=200)]
AfterEntry = Annotated[
    str,
    msgspec.Meta(
        pattern="^([0-9]{1,15}-[0-9]{1,18})?$", description="`next` of the answer before; empty for the newest entries."
    ),
]


class AuditLines(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which writes are listed: those to which all of it applies.

    `actor`: what its name begins with, as in `token 1a2b3c` or `command of`. `operation`: as in `tokens.create`, or `tokens` for
    all of them. `target`: the id of an account, with its tokens, or of a token. `since`: seconds since 1970. `by`: `operators`, or
    `callers` for what callers changed at their own pages.
    """

    limit: LongLimit = DEFAULT_PAGE
    after: AfterEntry = ""
    actor: Text = ""
    operation: Text = ""
    target: Text = ""
    since: Annotated[int, msgspec.Meta(ge=0, le=2**40)] = 0
    by: Literal["operators", "callers"] | None = None


class AuditEntry(msgspec.Struct, frozen=True):
    """A write: who asked for what, and what became of it. `at`: when it began, in UTC.

    `outcome`: `unfinished` where the process or the store ended meanwhile, so that it may have been done or not. `code`: why it
    was refused; `repeated` for what an earlier one with its key had done. `target`: what it was done to. `path` and `body`: what
    was asked for. `before` and `after`: how it was and is. In place of what was too long there is a text that says so.
    """

    id: str
    at: str
    actor: str
    operation: str
    target: str
    outcome: Literal["done", "refused", "unfinished"]
    code: str | None = None
    path: Any = None
    body: Any = None
    before: Any = None
    after: Any = None


@action("GET", "/audit", Scope.ADMIN)
async def list_(client: LocalClient, query: AuditLines) -> Page[AuditEntry]:
    """List who changed what, newest first: one entry for each write, also one that was refused or did not end.

    The log has the last 100,000 lines, of 128 MiB at most; a write has two. What callers changed at their own pages is kept apart,
    in as many lines, so that it takes no room from the others. A page may have fewer entries than were asked for, or none, where a
    filter selects few: `has_more` says whether to go on.
    """
    log = AuditLog(client.store.client, _PARTS[query.by])
    found: list[AuditEntry] = []
    place, read = query.after, 0
    while read < MOST_READ:
        lines = await log.before(place, READ_AT_ONCE)
        read += len(lines)
        begun = [line for line in lines if "operation" in line.fields and line.at_ms >= query.since * 1000]
        begun = [line for line in begun if _may_be_selected(query, line)]
        ends = await _ends(log, begun, lines)
        found += [entry for entry in (_entry(line, ends.get(line.id)) for line in begun) if _is_selected(query, entry)]
        if len(found) > query.limit:
            return Page(found[: query.limit], True, found[query.limit - 1].id)
        if len(lines) < READ_AT_ONCE or lines[-1].at_ms < query.since * 1000:
            return Page(found)
        place = lines[-1].id
    return Page(found, True, place)


async def _ends(log: AuditLog, begun: list[StoredLine], known: Iterable[StoredLine]) -> dict[str, StoredLine]:
    """Return the second lines of writes by the ids of the first. `known`: lines in which some of them may be."""
    ends: dict[str, StoredLine] = {}
    wanted = {line.id for line in begun}

    def note(lines: Iterable[StoredLine]) -> None:
        for line in lines:
            first = (line.fields.get("done") or line.fields.get("refused") or b"").decode()
            if first in wanted:
                ends[first] = line

    note(known)
    missing = [line for line in begun if line.id not in ends]
    if not missing:
        return ends
    place, last_ms = missing[-1].id, missing[0].at_ms + LONGEST_MS
    for _ in range(MOST_LATER // READ_AT_ONCE):
        lines = await log.after(place, READ_AT_ONCE)
        note(lines)
        if len(ends) == len(wanted) or len(lines) < READ_AT_ONCE or lines[-1].at_ms > last_ms:
            break
        place = lines[-1].id
    return ends


def _may_be_selected(query: AuditLines, line: StoredLine) -> bool:
    """Return whether the first line of a write does not exclude it."""
    if not _text(line, "actor").startswith(query.actor):
        return False
    name = _text(line, "operation")
    return not query.operation or name == query.operation or name.startswith(f"{query.operation}.")


def _is_selected(query: AuditLines, entry: AuditEntry) -> bool:
    if not query.target or entry.target == query.target or entry.target.startswith(f"{query.target}-"):
        return True
    made = entry.after.get("id") if isinstance(entry.after, dict) else None
    return isinstance(made, str) and made == query.target


def _entry(begun: StoredLine, end: StoredLine | None) -> AuditEntry:
    fields = {} if end is None else end.fields
    return AuditEntry(
        id=begun.id,
        at=datetime.fromtimestamp(begun.at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        actor=_text(begun, "actor"),
        operation=_text(begun, "operation"),
        target=_text(begun, "target"),
        outcome="unfinished" if end is None else "done" if "done" in fields else "refused",
        code=fields["code"].decode() if "code" in fields else None,
        path=_decoded(begun.fields.get("path")),
        body=_decoded(begun.fields.get("body")),
        before=_decoded(fields.get("before")),
        after=_decoded(fields.get("after")),
    )


def _text(line: StoredLine, name: str) -> str:
    return line.fields.get(name, b"").decode("utf-8", "replace")


def _decoded(raw: bytes | None) -> Any:
    return None if raw is None else msgspec.json.decode(raw)

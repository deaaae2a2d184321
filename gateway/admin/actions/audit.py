"""The action that lists the audit log, one entry for each write."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Final, Literal

import msgspec

from gateway.admin.actions.action import DEFAULT_PAGE, LongLimit, Page, Scope, action
from gateway.admin.actions.audit_log import CALLERS, OPERATORS, PARTS, AuditLog, StoredLine
from gateway.admin.actions.local import LocalClient
from gateway.base.ids import utc

READ_AT_ONCE: Final = 500
MOST_READ: Final = 20_000
"""Lines of the log that are searched for one page."""
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

    The log has the last 100,000 writes, in 128 MiB at most. What callers changed at their own pages is kept apart, in as many
    lines, so that it takes no room from the others. A page may have fewer entries than were asked for, or none, where a filter
    selects few: `has_more` says whether to go on.
    """
    log = AuditLog(client.store.client, _PARTS[query.by])
    found: list[AuditEntry] = []
    place, read = query.after, 0
    while read < MOST_READ:
        lines = await log.before(place, READ_AT_ONCE)
        read += len(lines)
        found += filter(partial(_is_selected, query), (_entry(line) for line in lines if _may_be_selected(query, line)))
        if len(found) > query.limit:
            return Page(found[: query.limit], True, found[query.limit - 1].id)
        if len(lines) < READ_AT_ONCE or lines[-1].at_ms < query.since * 1000:
            return Page(found)
        place = lines[-1].id
    return Page(found, True, place)


def _may_be_selected(query: AuditLines, line: StoredLine) -> bool:
    """Return whether the texts of a line do not exclude it."""
    if line.at_ms < query.since * 1000 or not _text(line, "actor").startswith(query.actor):
        return False
    name = _text(line, "operation")
    return not query.operation or name == query.operation or name.startswith(f"{query.operation}.")


def _is_selected(query: AuditLines, entry: AuditEntry) -> bool:
    if not query.target or entry.target == query.target or entry.target.startswith(f"{query.target}-"):
        return True
    made = entry.after.get("id") if isinstance(entry.after, dict) else None
    return isinstance(made, str) and made == query.target


def _entry(line: StoredLine) -> AuditEntry:
    at_ms = int(line.fields.get("at", line.at_ms))
    return AuditEntry(
        id=line.id,
        at=utc(at_ms),
        actor=_text(line, "actor"),
        operation=_text(line, "operation"),
        target=_text(line, "target"),
        outcome=_text(line, "outcome") or "unfinished",  # type: ignore[arg-type]
        code=_text(line, "code") or None,
        **{name: _decoded(line.fields.get(name)) for name in ("path", "body", "before", "after")},
    )


def _text(line: StoredLine, name: str) -> str:
    return line.fields.get(name, b"").decode("utf-8", "replace")


def _decoded(raw: bytes | None) -> Any:
    return None if raw is None else msgspec.json.decode(raw)

"""Operations on requests: the list with its filters, one record, and its story in words."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from gateway.errors import GatewayError, Refused
from gateway.exchange import Outcome
from gateway.management import story
from gateway.management.desk import LocalDesk
from gateway.management.operation import Scope, operation
from gateway.management.page import DEFAULT_PAGE, LongLimit, Page
from gateway.management.story import Step
from gateway.management.times import Since, Until, between
from gateway.request_id import arrival_ms, check_time, first_id
from gateway.usage import gaps, pages, queries
from gateway.usage.damage import UnusableFile
from gateway.usage.pages import WantedOfAll
from gateway.usage.record import Record
from gateway.usage.reference import hashed_reference
from gateway.usage.search import Found

SCANNED: Final = 10_000
"""Rows that are compared with the filters between two looks at the time."""
LONGEST_S: Final = 0.12
"""How long it is looked for requests that are rare: then the page ends, with what was found."""
_AFTER_PREFIX: Final = "g"

AfterRequest = Annotated[
    str,
    msgspec.Meta(
        pattern="^([0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12})?$",
        description="`next` of the answer before, the id of a request; empty for the newest requests.",
    ),
]
IdPrefix = Annotated[
    str,
    msgspec.Meta(pattern="^[0-9a-f-]{1,36}$", description="Only requests whose id begins so: at least one character."),
]
Text = Annotated[str, msgspec.Meta(max_length=256)]


class Filters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which requests: those to which all of it applies.

    `reference`: what the caller sent as `X-Client-Request-Id`; it needs `account` or `token`, since each account's references are
    kept as hashes of its own. `operation` is `chat.completions` for those that were answered with generated text.
    """

    id: IdPrefix | None = None
    account: Text | None = None
    token: Text | None = None
    model: Text | None = None
    channel: Text | None = None
    outcome: Outcome | None = None
    error_code: Text | None = None
    operation: Text | None = None
    reference: Annotated[str, msgspec.Meta(max_length=512)] | None = None
    since: Since | None = None
    until: Until | None = None


class Requests(Filters, frozen=True, kw_only=True):
    """Which requests are listed, and from where on."""

    limit: LongLimit = DEFAULT_PAGE
    after: AfterRequest = ""


class RequestPage(Page[Record], frozen=True):
    """Requests, newest first, also those under way. It may have fewer than `limit`, also none, where more follow: see `next`.

    `unread`: files of the log that cannot be read, whose requests are left out.
    """

    unread: list[str] = msgspec.field(default_factory=list)


class FoundRecord(Record, frozen=True, kw_only=True, gc=False):
    """A record. `unasked`: where its end is not known here, who may know of it and was not asked, in words."""

    unasked: list[str] = msgspec.field(default_factory=list)


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to a request: the sentence of `gateway trace`, and its steps.

    `record` is null where none was found; that it never arrived is only certain where `unasked` is empty, too.
    """

    id: str
    verdict: str
    record: Record | None
    steps: list[Step] = []
    unasked: list[str] = []


@operation("GET", "/requests", Scope.READ)
async def list_(desk: LocalDesk, query: Requests) -> RequestPage:
    """List requests of all gateways of the store, newest first."""
    return await asyncio.to_thread(_list, desk.usage_folder, query)


@operation("GET", "/requests/{id}", Scope.READ)
async def read(desk: LocalDesk, id: str) -> FoundRecord:  # noqa: A002 - the field's name
    """Return the record of a request. 404 where it is not found, with who may know of it and was not asked."""
    found = await _find(desk, id)
    if found.record is None:
        raise GatewayError("; ".join([f"the usage log has no request {id}", *found.unasked])).of_kind("not_found")
    return FoundRecord(**_fields(found.record), unasked=found.unasked)


@operation("GET", "/requests/{id}/trace", Scope.READ)
async def trace(desk: LocalDesk, id: str) -> Story:  # noqa: A002
    """Return what happened to a request, in words. That it never arrived is an answer, too."""
    found = await _find(desk, id)
    told = [] if found.record is None else story.steps(found.record)
    return Story(id=id, verdict=story.verdict(found), record=found.record, steps=told, unasked=found.unasked)


def record_of(found: FoundRecord) -> Record:
    """Return the record alone."""
    return Record(**_fields(found))


async def _find(desk: LocalDesk, id: str) -> Found:  # noqa: A002
    """Return the record of a request from the files, or else from the store; or who was not asked."""
    try:
        check_time(id)
    except ValueError:
        raise Refused(400, "invalid_request", "The id of a request is its `x-request-id`.", param="id") from None
    record = None
    with suppress(UnusableFile):  # the store may have it, or says what is wrong
        record = await asyncio.to_thread(queries.find, desk.usage_folder, id)
    return Found(record) if record is not None and record.outcome else await desk.store.usage.ask(id)


def wanted_of(query: Filters) -> WantedOfAll:
    """Return what the files are asked for. Raises `Refused` (400)."""
    since_ms, until_ms = between(query.since, query.until)
    account = query.account or None
    if query.token is not None and account is None:
        account = query.token.rpartition("-")[0]
    reference = query.reference
    if reference is not None:
        if account is None:
            text = "Give the account of the reference: the references of each are kept as hashes of its own."
            raise Refused(400, "invalid_request", text, param="reference")
        reference = hashed_reference(account, reference)
    prefix = query.id or ""
    return WantedOfAll(
        account=account,
        lowest=max(prefix, "" if since_ms is None else first_id(since_ms)),
        highest=min(prefix + _AFTER_PREFIX, _AFTER_PREFIX if until_ms is None else first_id(until_ms)),
        token_id=query.token,
        model=query.model,
        channel=query.channel,
        outcome=query.outcome,
        error_code=query.error_code,
        operation=query.operation,
        reference=reference,
    )


def _list(folder: Path, query: Requests) -> RequestPage:
    since_ms, until_ms = between(query.since, query.until)
    wanted, until = wanted_of(query), time.monotonic() + LONGEST_S
    found, unusable = pages.Page([], query.after), list[UnusableFile]()
    while True:
        terms = msgspec.structs.replace(wanted, after=found.next)
        more = pages.page(folder, terms, query.limit - len(found.records), unusable, SCANNED)
        found = pages.Page(found.records + more.records, more.next)
        if not found.next or len(found.records) == query.limit or time.monotonic() > until:
            break
    notes = gaps.notes(folder, arrival_ms(found.next) if found.next else since_ms, until_ms)
    unread = list(dict.fromkeys(map(str, unusable)))
    return RequestPage(found.records, bool(found.next), found.next or None, notes, unread=unread)


def _fields(record: Record) -> dict[str, Any]:
    return {name: getattr(record, name) for name in Record.__struct_fields__}

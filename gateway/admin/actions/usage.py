"""Operations on the usage log as a whole: sums, records as CSV, and requests as they end."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from gateway.admin.actions.action import Page, Scope, action
from gateway.admin.actions.local import LocalClient
from gateway.admin.actions.requests import Filters, Text, check_account, wanted_of
from gateway.admin.actions.times import Since, Until, between
from gateway.base.errors import Refused
from gateway.base.text import csv_line
from gateway.domain import exchange
from gateway.domain.exchange import Outcome
from gateway.usage import queries
from gateway.usage.completeness import notes
from gateway.usage.database import SUMS, UnusableFile
from gateway.usage.home import Home
from gateway.usage.queries import RequestsQuery
from gateway.usage.record import Record
from gateway.usage.sums import NAMES, TAG, Order, Row, Selected, totals

SHORT: Final = {"token": "token_id", "error": "error_code"}
"""Names that `by` has for some of `NAMES`."""
GIVEN: Final = tuple({long: short for short, long in SHORT.items()}.get(name, name) for name in NAMES)
_TAG: Final = re.compile(f"{TAG}{exchange.TAG.pattern}")
MOST_LINES: Final = 100_000
DEFAULT_LINES: Final = 1000
ROWS: Final = 1000
"""Records of an export that are read at once."""
SCANNED: Final = 20_000
POLL_S: Final = 0.25
"""Between two looks for requests that have ended."""


class Sums(msgspec.Struct, frozen=True):
    """Sums of requests. Amounts in micros; `unknown_costs` counts the requests whose cost is not known, which `cost_micros` and
    `margin_micros` leave out."""

    requests: int = 0
    completed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    completion_tokens: int = 0
    charge_micros: int = 0
    cost_micros: int = 0
    margin_micros: int = 0
    unknown_costs: int = 0


class SumLine(Sums, frozen=True, kw_only=True):
    """The sums of one group, with the names of what it was grouped by."""

    month: str | UnsetType = UNSET
    day: str | UnsetType = UNSET
    hour: str | UnsetType = UNSET
    account: str | UnsetType = UNSET
    group: str | UnsetType = UNSET
    token_id: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    channel: str | UnsetType = UNSET
    outcome: str | UnsetType = UNSET
    error_code: str | UnsetType = UNSET
    first_channel: str | UnsetType = UNSET
    first_error: str | UnsetType = UNSET
    address: str | UnsetType = UNSET
    user_agent: str | UnsetType = UNSET
    tags: dict[str, str] | UnsetType = UNSET

    def of(self, name: str) -> Any:
        """Return the name of a group of `by`, or a sum."""
        return self.tags[name.removeprefix(TAG)] if name.startswith(TAG) and self.tags else getattr(self, name)


By = Annotated[
    str,
    msgspec.Meta(
        max_length=200,
        description=f"What it is grouped by: some of {', '.join(GIVEN)} and `tag:NAME`, with commas; empty for one sum.",
    ),
]


AfterLine = Annotated[
    str,
    msgspec.Meta(
        max_length=4096, description="`next` of the answer before; empty for the first lines. Not with `sort`."
    ),
]


class SumsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which requests are added up, by what, and in which order: sorted by the groups, or the largest of a sum first."""

    by: By = "day"
    account: Text | None = None
    model: Text | None = None
    outcome: Outcome | None = None
    token: Text | None = None
    since: Since | None = None
    until: Until | None = None
    sort: Literal["", "requests", "charge_micros", "cost_micros", "margin_micros"] = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST_LINES, description="Lines of the answer at most.")] = DEFAULT_LINES
    after: AfterLine = ""


class Summary(Page[SumLine], frozen=True, kw_only=True):
    """Sums by groups. `lines` is how many groups there are, of which `data` has some, and `total` adds up all of them.

    `notes` say what may be missing, in words; `unread`: files of the log that cannot be read, whose requests are left out.
    """

    total: Sums
    lines: int
    unread: list[str] = msgspec.field(default_factory=list)


class Followed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which requests are followed."""

    account: Text | None = None
    model: Text | None = None
    outcome: Outcome | None = None


class CsvFile:
    """A file of CSV for a spreadsheet, with the names of its columns in the first line."""

    content_type: ClassVar[str] = "text/csv"

    def __init__(self, name: str, pieces: AsyncIterator[str]) -> None:
        """`name`: what the file is called where it is saved. `pieces`: some lines at a time, read when they are needed."""
        self.name = name
        self.pieces = pieces


class Feed:
    """Server-sent events: the record of each request when it ends. The id of an event is the `Last-Event-ID` to go on after it."""

    content_type: ClassVar[str] = "text/event-stream"

    def __init__(self, home: Home, selects: Callable[[Record], bool]) -> None:
        self.home = home
        self.selects = selects

    async def records(self) -> AsyncIterator[Record]:
        """Yield records, without an end."""
        tail = await asyncio.to_thread(queries.Tail, self.home)
        while True:
            for _, record in await asyncio.to_thread(tail.poll):
                if self.selects(record):
                    yield record
            await asyncio.sleep(POLL_S)


@action("GET", "/usage/summary", Scope.READ)
async def summary(client: LocalClient, query: SumsQuery) -> Summary:
    """Add up requests, tokens, charges, costs and margins by any of the groups. Times are those of the arrival, in UTC.

    404 for an account that there is not.
    """
    by, between_ms = groups(query.by), between(query.since, query.until)
    selected = Selected(query.account, query.model, query.outcome, *between_ms, query.token)
    found = await asyncio.to_thread(_summary, client.usage_home, by, selected, query)
    if query.account and not found.lines:
        await check_account(client, query.account)
    return found


@action("GET", "/usage/export.csv", Scope.READ)
async def export(client: LocalClient, query: Filters) -> CsvFile:
    """Return the records of requests as CSV, newest first, with all fields; amounts in micros."""
    return CsvFile("requests.csv", _records_as_csv(client.usage_home, wanted_of(query)))


@action("GET", "/usage/live", Scope.READ)
async def live(client: LocalClient, query: Followed) -> Feed:
    """Follow requests as they end, from now on, or after the event of the header `Last-Event-ID`."""
    terms = [(name, value) for name in query.__struct_fields__ if (value := getattr(query, name)) is not None]
    return Feed(client.usage_home, lambda record: all(getattr(record, name) == value for name, value in terms))


def groups(text: str) -> list[str]:
    """Return the names of what is grouped by. Raises `Refused` (400) for any other."""
    names = [SHORT.get(name, name) for name in text.split(",") if name]
    if unknown := [name for name in names if name not in NAMES and not _TAG.fullmatch(name)]:
        text = f"`{unknown[0][:50]!a}` is not one of {', '.join(GIVEN)}, or a tag as in tag:tenant."
        raise Refused(400, "invalid_request", text, param="by")
    return list(dict.fromkeys(names))


def _summary(home: Home, by: Sequence[str], selected: Selected, query: SumsQuery) -> Summary:
    unusable: list[UnusableFile] = []
    after = _decoded(query.after, len(by)) if query.after else ()
    found = totals(home, by, selected, Order(query.limit, query.sort, after), unusable)
    has_more = bool(found.rows) and len(found.rows) == query.limit < found.lines
    return Summary(
        [_line(by, row) for row in found.rows],
        has_more,
        msgspec.json.encode(found.rows[-1][: len(by)]).decode() if has_more and not query.sort else None,
        notes(home, selected.since_ms, selected.until_ms),
        total=Sums(*found.total),
        lines=found.lines,
        unread=list(dict.fromkeys(map(str, unusable))),
    )


def _line(by: Sequence[str], row: Row) -> SumLine:
    groups = dict(zip(by, row, strict=False))
    tags = {name.removeprefix(TAG): groups.pop(name) for name in by if name.startswith(TAG)}
    return SumLine(*row[len(by) :], **groups, tags=tags or UNSET)


def _decoded(after: str, width: int) -> tuple[str, ...]:
    try:
        names = msgspec.json.decode(after, type=tuple[str, ...])
    except msgspec.DecodeError:
        names = ()
    if len(names) != width:
        raise Refused(
            400, "invalid_request", "`after` is not the `next` of an answer with these groups.", param="after"
        )
    return names


async def _records_as_csv(home: Home, wanted: RequestsQuery) -> AsyncIterator[str]:
    """Yield lines of CSV. No file is open while they are sent, so that a slow reader keeps nothing from the log."""
    yield csv_line(Record.__struct_fields__)
    while True:
        lines, after = await asyncio.to_thread(_lines, home, wanted)
        if lines:
            yield lines
        if not after:
            return
        wanted = msgspec.structs.replace(wanted, after=after)


def _lines(home: Home, wanted: RequestsQuery) -> tuple[str, str]:
    """Return some records as lines, and after which one the next begin; empty where there are none."""
    found = queries.page(home, wanted, ROWS, [], SCANNED)
    return "".join(csv_line(msgspec.to_builtins(record).values()) for record in found.records), found.next


def dicts(lines: Sequence[SumLine], by: Sequence[str]) -> list[dict[str, Any]]:
    """Return lines as dicts with their groups in the order of `by`, and then the sums."""
    return [{name: line.of(name) for name in (*by, *SUMS)} for line in lines]

"""Operations on requests: the list with its filters, the search by whatever one has, one record, and its story in words.

The story leads from the arrival to the charge: a sentence, and the steps with their times.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import tzinfo
from typing import Annotated, Final, Literal

import msgspec

from gateway.admin.actions.accounts import existing
from gateway.admin.actions.action import DEFAULT_PAGE, LongLimit, Page, Scope, action
from gateway.admin.actions.local import LocalClient
from gateway.admin.actions.times import Since, Until, between, local
from gateway.admin.actions.tokens import ShownToken, shown
from gateway.base.amounts import amount
from gateway.base.errors import GatewayError, Refused
from gateway.base.ids import EXTERNAL, REQUEST_ID, arrival_ms, first_id, is_request_id
from gateway.base.text import counted
from gateway.config.schema import ACCOUNT_ID
from gateway.domain import exchange
from gateway.domain.exchange import Outcome
from gateway.domain.prices import PER_TOKENS, price_from
from gateway.store.accounts import Account
from gateway.usage import completeness, queries
from gateway.usage.database import UnusableFile
from gateway.usage.home import Home
from gateway.usage.log import SearchResult
from gateway.usage.queries import RequestsQuery
from gateway.usage.record import AttemptRecord, Record, charge_of, hashed_reference

SCANNED: Final = 10_000
"""Rows that are compared with the filters between two looks at the time."""
LONGEST_S: Final = 0.12
"""How long it is looked for requests that are rare: then the page ends, with what was found."""
_AFTER_PREFIX: Final = "g"
SAME: Final = ("group", "model", "channel", "outcome", "error_code", "operation", "tag")
"""Filters that the files are asked for as they are."""
MOST: Final = 20
"""Requests of an answer."""
TOKEN: Final = re.compile(r"(?:sk-)?([a-z0-9]{3,32})-([a-z0-9]{0,8})(?:-[0-9A-Za-z]*)?")
"""The id of a token, its text, or the beginning of either."""

AfterRequest = Annotated[
    str,
    msgspec.Meta(
        pattern=f"^({REQUEST_ID})?$",
        description="`next` of the answer before, the id of a request; empty for the newest requests.",
    ),
]
IdPrefix = Annotated[
    str,
    msgspec.Meta(pattern="^[0-9a-f-]{1,36}$", description="Only requests whose id begins so: at least one character."),
]
Tag = Annotated[
    str,
    msgspec.Meta(
        pattern=f"^{exchange.TAG.pattern}:",
        max_length=256,
        description="Only requests with this tag, as in `tenant:acme`.",
    ),
]
Text = Annotated[str, msgspec.Meta(max_length=256)]

NEVER_ARRIVED: Final = (
    "never arrived: the usage log has no request with this id. Compare it with the x-request-id of the response, and the "
    "address with the base address: only requests below /v1 are in the log. If it was refused among very many, a record with the "
    "operation `counted` stands for it: `gateway usage list` shows them."
)

NOT_IN_ALL: Final = "not found, but it may have arrived: not every gateway of the store could be asked:"

END_UNKNOWN: Final = "arrived; how it ended is not known here:"


class Filters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which requests: those to which all of it applies.

    `reference`: what the caller sent as `X-Client-Request-Id`; it needs `account` or `token`, since each account's references are
    kept as hashes of its own. `operation` is `chat.completions` for those that were answered with generated text.
    """

    id: IdPrefix | None = None
    account: Text | None = None
    token: Text | None = None
    group: Text | None = None
    model: Text | None = None
    channel: Text | None = None
    outcome: Outcome | None = None
    error_code: Text | None = None
    operation: Text | None = None
    reference: Annotated[str, msgspec.Meta(max_length=512)] | None = None
    tag: Tag | None = None
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
    steps: list[StoryStep] = []
    unasked: list[str] = []


@action("GET", "/requests", Scope.READ)
async def list_(client: LocalClient, query: Requests) -> RequestPage:
    """List requests of all gateways of the store, newest first. 404 for an account that there is not."""
    found = await asyncio.to_thread(_list, client.usage_home, query)
    if query.account and not found.data and not found.next:
        await check_account(client, query.account)
    return found


@action("GET", "/requests/{id}", Scope.READ)
async def read(client: LocalClient, id: str) -> FoundRecord:  # noqa: A002 - the field's name
    """Return the record of a request. 404 where it is not found, with who may know of it and was not asked."""
    found = await _find(client, id)
    if found.record is None:
        raise GatewayError("; ".join([f"the usage log has no request {id}", *found.unasked])).of_kind("not_found")
    return FoundRecord(**msgspec.structs.asdict(found.record), unasked=found.unasked)


@action("GET", "/requests/{id}/trace", Scope.READ)
async def trace(client: LocalClient, id: str) -> Story:  # noqa: A002
    """Return what happened to a request, in words. That it never arrived is an answer, too."""
    found = await _find(client, id)
    told = [] if found.record is None else steps(found.record)
    return Story(id=id, verdict=verdict(found), record=found.record, steps=told, unasked=found.unasked)


async def check_account(client: LocalClient, account: str) -> None:
    """Raise `AccountError` for an account that the store does not have, and the usage log has no requests of."""
    if not (await asyncio.to_thread(_list, client.usage_home, Requests(account=account, limit=1))).data:
        await existing(client, account)


class SearchQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is looked for."""

    q: Annotated[
        str,
        msgspec.Meta(
            min_length=1,
            max_length=512,
            description="The id of a request, of its answer or of its upstream; what the caller sent as `X-Client-Request-Id`; the "
            "id or the external id of an account, also with `ext:`; the id of a token, or the beginning of its text.",
        ),
    ]


class Found(msgspec.Struct, frozen=True):
    """What was found: the newest 20 requests, and all accounts and tokens."""

    requests: list[Record]
    accounts: list[Account]
    tokens: list[ShownToken]


@action("GET", "/search", Scope.READ)
async def search(client: LocalClient, query: SearchQuery) -> Found:
    """Find requests, accounts and tokens by whatever one has of them. Ids of answers are found when a request has ended."""
    text, store = query.q.strip(), client.store
    external_id = text.removeprefix(EXTERNAL)
    owner = await store.external_ids.find(external_id) if len(external_id.encode()) <= 200 else None
    named = [each for each in (text, owner) if each and ACCOUNT_ID.fullmatch(each)]
    tokens: list[ShownToken] = []
    if match := TOKEN.fullmatch(text):
        begins = f"{match[1]}-{match[2]}"
        tokens = [shown(token) for token in await store.tokens.all_of(match[1]) if token.id.startswith(begins)]
    ids = await store.directory.ids()
    requests = await asyncio.to_thread(_named, client.usage_home, text, list(ids))
    if not requests and is_request_id(text) and (found := (await store.usage.ask(text)).record):
        requests = [found]
    return Found(requests, await store.accounts.several(list(dict.fromkeys(named))), tokens)


def _named(home: Home, text: str, accounts: list[str]) -> list[Record]:
    """Return the requests of an id, a reference, or the hash of one in a record. Of a reference each account has another hash."""
    if is_request_id(text):
        return [record] if (record := queries.find(home, text)) else []
    for name in ("completion_id", "upstream_request_id"):
        if found := queries.named(home, name, [text], MOST):
            return found
    return queries.named(home, "reference", [text, *(hashed_reference(account, text) for account in accounts)], MOST)


def record_of(found: FoundRecord) -> Record:
    """Return the record alone."""
    return Record(**{name: getattr(found, name) for name in Record.__struct_fields__})


async def _find(client: LocalClient, id: str) -> SearchResult:  # noqa: A002
    """Return the record of a request from the files, or else from the store; or who was not asked."""
    if not is_request_id(id):
        raise Refused(400, "invalid_request", "The id of a request is its `x-request-id`.", param="id")
    record = None
    with suppress(UnusableFile):  # the store may have it, or says what is wrong
        record = await asyncio.to_thread(queries.find, client.usage_home, id)
    return SearchResult(record) if record is not None and record.outcome else await client.store.usage.ask(id)


def wanted_of(query: Filters) -> RequestsQuery:
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
    return RequestsQuery(
        account=account,
        lowest=max(prefix, "" if since_ms is None else first_id(since_ms)),
        highest=min(prefix + _AFTER_PREFIX, _AFTER_PREFIX if until_ms is None else first_id(until_ms)),
        token_id=query.token,
        reference=reference,
        **{name: getattr(query, name) for name in SAME},
    )


def _list(home: Home, query: Requests) -> RequestPage:
    since_ms, until_ms = between(query.since, query.until)
    wanted, until = wanted_of(query), time.monotonic() + LONGEST_S
    found, unusable = queries.RequestList([], query.after), list[UnusableFile]()
    while True:
        terms = msgspec.structs.replace(wanted, after=found.next)
        more = queries.page(home, terms, query.limit - len(found.records), unusable, SCANNED)
        found = queries.RequestList(found.records + more.records, more.next)
        if not found.next or len(found.records) == query.limit or time.monotonic() > until:
            break
    notes = completeness.notes(home, arrival_ms(found.next) if found.next else since_ms, until_ms)
    unread = list(dict.fromkeys(map(str, unusable)))
    return RequestPage(found.records, bool(found.next), found.next or None, notes, unread=unread)


class StoryStep(msgspec.Struct, frozen=True):
    """A part of a story. `after_ms`: how long after the arrival it was, where that is known.

    `kind`: `arrival`, also of a request that was refused; `change` by a plugin; `attempt` at a channel; `first_byte`; `end`;
    `unavailable` of a channel that was not called; `charge`.
    """

    kind: Literal["arrival", "change", "attempt", "first_byte", "end", "unavailable", "charge"]
    text: str
    after_ms: int | None = None


def verdict(found: SearchResult) -> str:
    """Return what happened to a request that was asked for, as far as it is known, in one sentence."""
    if found.record is not None and not found.unasked:
        return in_words(found.record)
    if not found.unasked:
        return NEVER_ARRIVED
    return "\n- ".join([NOT_IN_ALL if found.record is None else END_UNKNOWN, *found.unasked])


def in_words(record: Record) -> str:
    """Return what happened to a request, from its arrival to its charge, in one sentence."""
    if record.outcome is None:
        return "arrived, still under way; or its process died, which is written here once its longest time is over"
    _, *others = steps(record)
    first = _arrival(record) if record.outcome is Outcome.REFUSED or not record.attempts else ""
    return ", ".join(part for part in (first, *(step.text for step in others)) if part)


def steps(record: Record) -> list[StoryStep]:
    """Return what happened to a request, in the order in which it is told; the first step is its arrival."""
    found = [StoryStep("arrival", _arrival(record), 0)]
    found += [StoryStep("change", text) for text in _changes(record)]
    found += [StoryStep("attempt", text) for text in _attempts(record)]
    if record.first_byte_ms is not None and record.attempts:
        found.append(StoryStep("first_byte", f"first byte after {record.first_byte_ms} ms", record.first_byte_ms))
    if record.outcome is None:
        return found
    if text := _end(record, record.outcome):
        found.append(StoryStep("end", text, None if record.outcome is Outcome.GATEWAY_CRASHED else record.duration_ms))
    found += [
        StoryStep("unavailable", f"channel {name} was not asked: {reason}")
        for name, reason in record.unavailable.items()
    ]
    return [*found, StoryStep("charge", text)] if (text := _charge(record)) else found


def heading(record: Record, zone: tzinfo) -> str:
    """Return the line above a story, with the time of the arrival in `zone`."""
    named = (("account", record.account), ("model", record.model), ("model asked for", record.requested_model))
    parts = ", ".join(f"{name} {value}" for name, value in named if value)
    return f"{record.id}  {local(record.arrived_at, zone)}  {record.operation}{f'  {parts}' if parts else ''}"


def _arrival(record: Record) -> str:
    if record.outcome is not Outcome.REFUSED:
        return "arrived"
    by = f" by {record.refused_by}" if record.refused_by else ""
    others = record.events - 1
    counted = f", and {others} like it within {record.duration_ms} ms, which were only counted" if others > 0 else ""
    asked = f", asked for `{record.requested_model}`" if record.requested_model else ""
    param = f" of `{record.error_param}`" if record.error_param else ""
    said = f', told "{record.error_message}"' if record.error_message else ""
    return f"arrived and refused{by}: {_words(record.error_code)} ({record.status}){param}{said}{asked}{counted}"


def _changes(record: Record) -> Iterator[str]:
    """Yield which plugins changed the request or answered it."""
    if record.changed_by:
        yield f"changed by {' and '.join(record.changed_by)}"
    if record.answered_by:
        yield f"answered by {record.answered_by}"


def _attempts(record: Record) -> Iterator[str]:
    for tried in record.attempts:
        if not tried.error or (tried is record.attempts[-1] and record.first_byte_ms is not None):
            yield f"sent to channel {tried.channel}{_said(tried)}"
        else:
            yield f"tried channel {tried.channel}: {_failure(tried.error, tried.status)}{_said(tried)}"


def _said(tried: AttemptRecord) -> str:
    """Return what the upstream itself said about its error."""
    named = ", ".join(dict.fromkeys(filter(None, (tried.code, tried.type))))
    words = f'"{tried.message}"' if tried.message else ""
    return f", whose upstream said {words}{f' ({named})' if named else ''}" if words or named else ""


def _end(record: Record, outcome: Outcome) -> str:
    events = f"after {counted(record.events, 'event')}"
    began = record.first_byte_ms is not None
    by = record.refused_by or "the gateway"
    at_fault = f"the plugin {record.refused_by}" if record.refused_by else "the gateway"
    ends = {
        Outcome.REFUSED: "",
        Outcome.COMPLETED: f"completed {events} and {record.duration_ms} ms"
        if record.events
        else f"answered {record.status}",
        Outcome.CALLER_GONE: f"cut by the caller {events}" if began else "cut by the caller before the first byte",
        Outcome.UPSTREAM_FAILED: f"no channel answered: {_failure(record.error_code, record.status)}",
        Outcome.UPSTREAM_TRUNCATED: f"ended early by the upstream {events}",
        Outcome.UPSTREAM_STALLED: f"cut {events} because the upstream sent nothing more (longest gap {record.longest_gap_ms} ms)",
        Outcome.UPSTREAM_ERROR_IN_STREAM: f"ended by an error of the upstream {events}",
        Outcome.STOPPED: f"stopped by {by} {events} and {record.duration_ms} ms: {_words(record.error_code)}",
        Outcome.GATEWAY_CRASHED: "never ended: the gateway's process died, and the hold ended with its lease",
        Outcome.INTERNAL_ERROR: f"failed because of an internal error of {at_fault} ({record.status})",
    }
    return ends[outcome]


def _charge(record: Record) -> str:
    if record.outcome is Outcome.GATEWAY_CRASHED and not record.charge_micros:
        return ""
    if not record.charge_micros:
        return f"charged nothing{_cost(record)}"
    source = " (estimated)" if record.usage_source == "estimated" else ""
    return f"charged {amount(record.charge_micros)}{source}{sum_of(record) or _split(record)}{_hold(record)}{_cost(record)}"


def _hold(record: Record) -> str:
    """Return how the hold grew before further attempts, or that the balance did not cover one."""
    held, refused = (record.price.get(name) for name in ("hold_micros", "hold_refused_micros"))
    grown = f", its hold grew to {amount(held)} with a further attempt" if isinstance(held, int) else ""
    if not isinstance(refused, int):
        return grown
    return f"{grown}, the balance did not cover a hold of {amount(refused)} for a further attempt"


def sum_of(record: Record) -> str:
    """Return the charge as tokens by prices, where those alone come to it: it may have ended at its hold, or have other parts."""
    if "input" not in record.price or "capped_micros" in record.price or charge_of(record) != record.charge_micros:
        return ""
    price, cached, written = price_from(record.price), record.cached_tokens, record.cache_write_tokens
    tokens = (
        (record.prompt_tokens - cached - written, "of input", price.input),
        (cached, "read from a cache", price.cached_input),
        (written, "written to one", price.cache_write),
        (record.completion_tokens, "of output", price.output),
    )
    parts = " + ".join(f"{count:,} {kind} x {amount(each)}" for count, kind, each in tokens if count)
    parts = f"{parts} a million" if parts else ""
    if price.unit:
        parts = f"{record.price.get('units')} x {amount(price.unit // PER_TOKENS)}"
        parts = parts if price.unit >= PER_TOKENS else f"{record.price.get('units')} x {amount(price.unit)} a million"
    if price.request:
        parts = f"{parts} + {amount(price.request)} for the answer".removeprefix(" + ")
    return f" = {parts}" if price.ratio == 1 else f" = ({parts}) x {price.ratio} of the group"


def _split(record: Record) -> str:
    parts = [
        f"{tokens} {what}"
        for tokens, what in ((record.cached_tokens, "read from a cache"), (record.cache_write_tokens, "written to one"))
        if tokens
    ]
    return f" for {record.prompt_tokens} prompt tokens, of which {' and '.join(parts)}" if parts else ""


def _cost(record: Record) -> str:
    known = f", cost {amount(record.cost_micros)}" if record.cost_micros else ""
    stated = record.upstream_cost_micros
    return known if stated is None else f"{known}, by the upstream's own account {amount(stated)}"


def _failure(code: str, status: int) -> str:
    return f"{_words(code)} ({status})" if status else _words(code)


def _words(code: str) -> str:
    return code.replace("_", " ") or "no reason recorded"

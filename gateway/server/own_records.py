"""The questions of callers about themselves: account, ledger, usage and requests, each of the caller's own account alone.

1. **They have threads of their own**: what else blocks does not wait for them, nor they for it.
2. **One query of an account runs at a time.** A few more wait, in their order; any more are refused.
3. A caller that leaves does not free its turn before its query has ended. Questions about kept answers have turns, too.
4. The query of a path has each parameter at most once, with a value that is accepted, or a 400 names the one that is not.
5. A list that may lack something says so (`notes_of`): the one place where an answer says that it is not whole.

Reasons of credits are for operators. Sums are in micros of the caller's charges.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl

import msgspec

from gateway.base.errors import Refused
from gateway.base.ids import arrival_ms, is_request_id
from gateway.chain.services import Services, Store
from gateway.domain.budgets import Calendar
from gateway.domain.exchange import Exchange, Outcome
from gateway.domain.facts import AccountLimits, Caller
from gateway.operations.operation import Operation
from gateway.usage import completeness
from gateway.usage.completeness import span_ms
from gateway.usage.database import FilesUnusable, UnusableFile
from gateway.usage.home import Home
from gateway.usage.queries import OWN_GROUPS, OWN_SUMS, RequestsQuery, own_sums, page
from gateway.usage.record import ACCEPTED, Record, hashed_reference, is_reference

OWN_FIELDS: Final = (
    *("id", "arrived_at", "operation", "account", "token_id", "group", "model", "requested_model"),
    *(
        "status",
        "outcome",
        "error_code",
        "error_param",
        "error_message",
        "refused_by",
        "prompt_tokens",
        "completion_tokens",
        "usage_source",
    ),
    *("charge_micros", "price", "first_byte_ms", "duration_ms", "longest_gap_ms", "events", "bytes", "config"),
    *("cached_tokens", "cache_write_tokens"),
)
"""The fields of a record that callers see. The others name upstreams, say what these cost, or are of no use to a caller."""
NOT_FOUND: Final = (
    "No request with this id has ended in this account. Check it against x-request-id, or ask again later."
)
NOT_IN_ALL: Final = (
    "No request with this id has been found in this account, but not every gateway could be asked: it may have arrived. Ask again "
    "later, or ask the operator."
)

ACCOUNT_FIELDS = ("id", "status", "group", "balance_micros", "held_micros", "holds", "credit_line_micros")
FIELDS: Final = ("id", "at", "kind", "amount_micros", "request_id", "transaction")
DEFAULT_DAYS: Final = 30
MOST_DAYS: Final = 366
MOST_LINES: Final = 10_000

_MONTH: Final = re.compile(r"usage-(\d{4}-\d{2})")

Result = TypeVar("Result")

THREADS: Final = 2
"""Queries that run at once in a process."""
MAX_QUERIES: Final = 8
"""Queries of one account in a process, with those that wait."""
RETRY_AFTER_S: Final = 1.0

MOST: Final = 100
"""Lines of a list in one answer."""
DEFAULT: Final = 20
MAX_NAME: Final = 256
MAX_SHOWN: Final = 64
"""Characters of a wrong name that its error repeats."""

_GROUP_NAMES: Final = {name.removesuffix("_id"): name for name in OWN_GROUPS}


class Parameter(NamedTuple):
    """A query parameter: the accepted values in words and as a pattern, and the function that reads them.

    The function raises `ValueError` for what is not accepted all the same.
    """

    accepted: str
    pattern: str = "(?s).*"
    read: Callable[[str], Any] = str

    def value(self, text: str) -> Any:
        """Return the value of a text. Raises `ValueError`."""
        if not re.fullmatch(self.pattern, text, re.ASCII):
            raise ValueError
        return self.read(text)


def _checked(valid: Callable[[str], bool], text: str) -> str:
    if not valid(text):
        raise ValueError
    return text


def _groups(text: str) -> list[str]:
    names = text.split(",")
    if len(set(names)) != len(names) or not set(names) <= _GROUP_NAMES.keys():
        raise ValueError
    return [_GROUP_NAMES[name] for name in names]


LIMIT: Final = Parameter(f"a number from 1 to {MOST}", f"[1-9][0-9]?|{MOST}", int)
DAY: Final = Parameter("a day (UTC), as in 2026-11-21", r"[0-9]{4}-[0-9]{2}-[0-9]{2}", date.fromisoformat)
REQUEST_PARAMETERS: Final = {
    "limit": LIMIT,
    "after": Parameter("`next` of the answer before, which is a request's id", read=partial(_checked, is_request_id)),
    "model": Parameter(f"a model's name, of at most {MAX_NAME} characters", f"(?s).{{1,{MAX_NAME}}}"),
    "outcome": Parameter(f"one of {', '.join(Outcome)}", read=Outcome),
    "operation": Parameter(f"one of {', '.join(Operation)}", read=Operation),
    "reference": Parameter(f"what was sent as X-Client-Request-Id, {ACCEPTED}", read=partial(_checked, is_reference)),
}
LEDGER_PARAMETERS: Final = {
    "limit": LIMIT,
    "after": Parameter("`next` of the answer before", r"[1-9][0-9]{0,14}-[0-9]{1,18}"),
}
USAGE_PARAMETERS: Final = {
    "by": Parameter(f"some of {','.join(_GROUP_NAMES)}, each once, with commas between them", read=_groups),
    "from": DAY,
    "to": DAY,
}


async def request_of(account: str, id: str, store: Store) -> dict[str, Any]:  # noqa: A002 - the field's name
    """Return the record of one request of an account. Raises `Refused` and `StoreAway`."""
    found = await store.usage.ask(id, account=account)
    if found.record is None:
        raise Refused(404, "request_not_found", NOT_IN_ALL if found.unasked else NOT_FOUND)
    return own_fields(found.record)


async def requests_of(account: str, query: str, store: Store, lookups: Lookups) -> bytes:
    """Return a page of the requests of an account, as JSON. Raises `Refused`."""
    given = parameters(query, REQUEST_PARAMETERS)
    limit = given.pop("limit", DEFAULT)
    if "reference" in given:
        given["reference"] = hashed_reference(account, given["reference"])
    wanted = RequestsQuery(account, **given)
    return await lookups.in_thread(account, partial(_list, store.usage.home, wanted, limit))


def _list(home: Home, wanted: RequestsQuery, limit: int) -> bytes:
    unusable: list[UnusableFile] = []
    with readable():
        found = page(home, wanted, limit, unusable)
    since_ms = arrival_ms(found.next) if found.next else None
    return listed(list(map(own_fields, found.records)), found.next, notes_of(home, unusable, since_ms))


def listed(lines: Sequence[object], next_: str, notes: Sequence[str], **more: object) -> bytes:
    """Return a page of a list, as JSON."""
    return msgspec.json.encode(
        {
            "object": "list",
            "data": lines,
            "has_more": bool(next_),
            "next": next_ or None,
            **more,
            "notes": notes,
        }
    )


def own_fields(record: Record) -> dict[str, Any]:
    """Return the fields of a record that its caller may see."""
    fields = msgspec.to_builtins(record)
    return {name: fields[name] for name in OWN_FIELDS}


async def account_of(exchange: Exchange, caller: Caller, store: Store, calendar: Calendar) -> dict[str, object]:
    """Return the account of the caller, and the budgets and limits of it, of the token that was sent and of a session.

    The headers of the response have what is left of the limits. Raises `Refused` and `StoreAway`.
    """
    account, uses = await asyncio.gather(
        store.accounts.get(caller.account),
        store.wallet.budgets(caller.account, calendar.budgets(caller, exchange.request.headers)),
    )
    if account is None:
        raise Refused(404, "unknown_path", "There is no account behind this token any more.")
    left = {
        name.removeprefix("x-ratelimit-").replace("-", "_"): int(value)
        for name, value in exchange.response_headers.items()
        if name.startswith(("x-ratelimit-limit-", "x-ratelimit-remaining-"))
    }
    fields = msgspec.to_builtins(account)
    return {
        **{name: fields[name] for name in ACCOUNT_FIELDS},
        "available_micros": account.balance_micros - account.held_micros + account.credit_line_micros,
        "budgets": [calendar.report(use) for use in uses],
        "limits": {**left, "account": _given(caller.limits), "token": _given(caller.token_limits)},
    }


def _given(limits: AccountLimits) -> dict[str, int]:
    """Return the limits that are set, without the defaults of the plugin's settings."""
    return {name: value for name, value in msgspec.structs.asdict(limits).items() if value is not None}


async def ledger_of(account: str, query: str, store: Store, lookups: Lookups) -> bytes:
    """Return a page of the ledger of an account, as JSON. Raises `Refused` and `StoreAway`."""
    given = parameters(query, LEDGER_PARAMETERS)
    limit, after = given.get("limit", DEFAULT), given.get("after", "")
    found = await lookups.run(account, partial(store.wallet.ledger, account, limit, after))
    lines = [{name: getattr(line, name) for name in FIELDS} for line in found.lines]
    return listed(lines, found.next, (), archived=msgspec.to_builtins(found.archived))


async def usage_of(account: str, query: str, services: Services, lookups: Lookups) -> bytes:
    """Return the sums of an account, as JSON. Raises `Refused`."""
    given = parameters(query, USAGE_PARAMETERS)
    today = datetime.fromtimestamp(services.clock.time(), UTC).date()
    last: date = given.get("to", today)
    first: date = given.get("from") or last - min(timedelta(days=DEFAULT_DAYS - 1), last - date.min)
    if not 0 <= (last - first).days < MOST_DAYS:
        text = f"The parameter from must be a day up to `to`, {last}, and less than {MOST_DAYS} days before it."
        raise Refused(400, "invalid_request", text, param="from")
    by = given.get("by", ["day"])
    return await lookups.in_thread(account, partial(_sums, services.store.usage.home, account, by, first, last))


def _sums(home: Home, account: str, by: Sequence[str], first: date, last: date) -> bytes:
    unusable: list[UnusableFile] = []
    with readable():
        lines = own_sums(home, account, by, f"{first}", f"{last}", unusable)
    if len(lines) > MOST_LINES:
        text = f"That is more than {MOST_LINES} lines. Ask for fewer days, or group by less."
        raise Refused(400, "invalid_request", text, param="by")
    return msgspec.json.encode(
        {
            "object": "list",
            "from": first,
            "to": last,
            "data": lines,
            "total": _total(lines),
            "notes": notes_of(home, unusable, *span_ms(first, last)),
        }
    )


def _total(lines: Sequence[dict[str, Any]]) -> dict[str, int]:
    return {name: sum(line[name] for line in lines) for name in OWN_SUMS}


def notes_of(
    home: Home, unusable: Sequence[UnusableFile], since_ms: int | None = None, until_ms: int | None = None
) -> list[str]:
    """Return a sentence for each month of which a file cannot be read, without naming the file, and for each gap in this time,
    and each other gateway that may have more."""
    found = (_MONTH.search(str(error)) for error in unusable)
    months = sorted({match[1] if match else "" for match in found})
    unread = [
        f"Requests of {month or 'some months'} cannot be read at the moment and may be missing." for month in months
    ]
    missing = completeness.notes(home, since_ms, until_ms, with_hosts=False)
    return unread + [f"{note[0].upper()}{note[1:]}." for note in missing]


@contextmanager
def readable() -> Iterator[None]:
    """Turn the error of a log of which nothing can be read into `FilesUnusable`."""
    try:
        yield
    except UnusableFile as error:
        raise FilesUnusable(str(error)) from None


class Lookups:
    """The queries of one process."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="lookup")
        self._accounts: dict[str, list[asyncio.Task[object]]] = {}

    async def in_thread(self, account: str, query: Callable[[], Result]) -> Result:
        """Return the result of a query that blocks. Raises its exceptions, and `Refused` where too many wait."""

        async def run() -> Result:
            return await asyncio.get_running_loop().run_in_executor(self._threads, query)

        return await self.run(account, run)

    async def run(self, account: str, query: Callable[[], Awaitable[Result]]) -> Result:
        """Return the result of a query, when it is its turn. Raises as `in_thread` does."""
        queries = self._accounts.setdefault(account, [])
        if len(queries) >= MAX_QUERIES:
            raise Refused(
                429,
                "too_many_concurrent",
                f"{MAX_QUERIES} requests for lists or kept answers of this account are in progress. Wait for one to end, then "
                "try again.",
                retry_after_s=RETRY_AFTER_S,
            )
        task = asyncio.create_task(_after(queries[-1] if queries else None, query))
        queries.append(task)
        task.add_done_callback(lambda _: self._forget(account, task))
        return await asyncio.shield(task)

    def _forget(self, account: str, task: asyncio.Task[object]) -> None:
        queries = self._accounts[account]
        queries.remove(task)
        if not queries:
            del self._accounts[account]
        if not task.cancelled():
            task.exception()  # of a query whose caller has left, nothing else asks for it


async def _after(before: asyncio.Task[object] | None, query: Callable[[], Awaitable[Result]]) -> Result:
    if before is not None:
        await asyncio.wait([before])
    return await query()


def parameters(query: str, known: Mapping[str, Parameter]) -> dict[str, Any]:
    """Return the values of the parameters that a query has, by their names. Raises `Refused`."""
    values: dict[str, Any] = {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict")
        "".join(chain.from_iterable(pairs)).encode()
    except UnicodeError:
        raise _wrong("The query must be UTF-8 with percent encoding.") from None
    for name, text in pairs:
        if name not in known:
            raise _wrong(
                f"There is no parameter {_cleaned(name) or 'without a name'} here. Known: {', '.join(known)}.", name
            )
        if name in values:
            raise _wrong(f"Give the parameter {name} once.", name)
        try:
            values[name] = known[name].value(text)
        except ValueError:
            raise _wrong(f"The parameter {name} must be {known[name].accepted}.", name) from None
    return values


def _wrong(message: str, name: str | None = None) -> Refused:
    return Refused(400, "invalid_request", message, param=None if name is None else _cleaned(name))


def _cleaned(name: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in name[:MAX_SHOWN])

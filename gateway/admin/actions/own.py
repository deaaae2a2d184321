"""Self-service of callers: an account's own usage and requests for its pages, the same sums and records as at the public port."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Annotated, Any

import msgspec

from gateway.admin.actions import accounts, tokens
from gateway.admin.actions.accounts import AccountNow
from gateway.admin.actions.local import LocalClient
from gateway.admin.actions.requests import AfterRequest, Text, sum_of
from gateway.base.errors import Refused
from gateway.domain.exchange import Outcome
from gateway.server.own_records import NOT_FOUND, NOT_IN_ALL, notes_of, own_fields, readable
from gateway.usage import queries
from gateway.usage.completeness import span_ms
from gateway.usage.database import UnusableFile
from gateway.usage.queries import OWN_SUMS, RequestsQuery, own_sums
from gateway.usage.record import hashed_reference

Line = Mapping[str, Any]


class OwnUsage(msgspec.Struct, frozen=True):
    """The sums of an account over some days: each day of them, also those without requests, each model, each token, and all."""

    days: Sequence[Line]
    models: Sequence[Line]
    tokens: Sequence[Line]
    total: Mapping[str, int]
    notes: Sequence[str]


class OwnRequests(msgspec.Struct, frozen=True):
    """A part of the list of an account's requests, newest first. `next`: what the next part comes after, or empty."""

    data: Sequence[Line]
    next: str
    notes: Sequence[str]


async def account(client: LocalClient, name: str, token: str) -> AccountNow:
    """Return an account and what it may spend by this token of its own, if one is named: then with the token's budgets, too."""
    found = await accounts.read(client, name)
    if not token:
        return found
    uses = [*found.budget_use, *(await tokens.read(client, token)).budget_use]
    spendable = None if found.may_spend_micros is None else accounts.may_spend(found, uses)
    return msgspec.structs.replace(found, may_spend_micros=spendable, budget_use=uses)


async def usage(client: LocalClient, account: str, first: date, last: date) -> OwnUsage:
    """Return the sums of some days (UTC). Raises `FilesUnusable`."""
    wanted = [f"{first + timedelta(days=number)}" for number in range((last - first).days + 1)]

    def read() -> OwnUsage:
        unusable: list[UnusableFile] = []
        home = client.usage_home
        with readable():
            by_day, by_model, by_token = (
                own_sums(home, account, [group], wanted[0], wanted[-1], unusable)
                for group in ("day", "model", "token_id")
            )
        found = {line["day"]: line for line in by_day}
        nothing = dict.fromkeys(OWN_SUMS, 0)
        return OwnUsage(
            [found.get(day, {"day": day, **nothing}) for day in wanted],
            _largest_first(by_model),
            _largest_first(by_token),
            {name: sum(line[name] for line in by_day) for name in OWN_SUMS},
            notes_of(home, unusable, *span_ms(first, last)),
        )

    return await asyncio.to_thread(read)


async def lines(client: LocalClient, account: str, first: date, last: date) -> list[Line]:
    """Return the sums of each day and model of some days (UTC). Raises `FilesUnusable`."""

    def read() -> list[Line]:
        with readable():
            return list(own_sums(client.usage_home, account, ["day", "model"], f"{first}", f"{last}", []))

    return await asyncio.to_thread(read)


class OwnRequestsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which of its requests a caller looks at. `reference`: what it sent as `X-Client-Request-Id`."""

    model: Text | None = None
    outcome: Outcome | None = None
    reference: Annotated[str, msgspec.Meta(max_length=512)] | None = None
    after: AfterRequest = ""


async def requests(client: LocalClient, account: str, query: OwnRequestsQuery, limit: int) -> OwnRequests:
    """Return a part of the list of an account's requests. Raises `FilesUnusable`."""
    reference = None if query.reference is None else hashed_reference(account, query.reference)
    wanted = RequestsQuery(account, after=query.after, model=query.model, outcome=query.outcome, reference=reference)

    def read() -> OwnRequests:
        unusable: list[UnusableFile] = []
        with readable():
            found = queries.page(client.usage_home, wanted, limit, unusable)
        return OwnRequests(list(map(own_fields, found.records)), found.next, notes_of(client.usage_home, unusable))

    return await asyncio.to_thread(read)


async def request(client: LocalClient, account: str, request_id: str) -> Line:
    """Return one request of an account, with its charge as a `sum`. Raises `Refused` (404) where it has none with this id."""
    found = await client.store.usage.ask(request_id, account=account)
    if found.record is None:
        raise Refused(404, "request_not_found", NOT_IN_ALL if found.unasked else NOT_FOUND)
    return own_fields(found.record) | {"sum": sum_of(found.record) if found.record.charge_micros else ""}


def _largest_first(lines: Sequence[Line]) -> list[Line]:
    return sorted(lines, key=lambda line: (-line["charge_micros"], -line["requests"]))

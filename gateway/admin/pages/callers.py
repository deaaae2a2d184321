"""A caller's own pages: its use, balance and budgets, its requests, and its tokens.

All of them are about the account of the session. No address and no form names an account. A caller may do only so much there at
once, and change only so much in a minute, so that other callers are served meanwhile.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec
from aiohttp import web

from gateway.admin.actions import money, own, tokens
from gateway.admin.actions.links import base
from gateway.admin.actions.money import LedgerLines
from gateway.admin.actions.own import OwnRequestsQuery
from gateway.admin.actions.tokens import TokenList
from gateway.admin.actions.usage import CsvFile
from gateway.admin.http.api import send_csv
from gateway.admin.pages.login import OWN
from gateway.admin.pages.view import Form, Page, View, body, plot_of
from gateway.base.errors import Refused
from gateway.base.ids import is_request_id
from gateway.base.leaky_buckets import LeakyBuckets
from gateway.base.text import csv_line
from gateway.config.schema import PortalSettings
from gateway.domain.catalogue import Catalogue
from gateway.domain.exchange import Outcome
from gateway.domain.facts import Caller
from gateway.server.own_records import OWN_FIELDS
from gateway.store.accounts import Account
from gateway.usage.database import month_before
from gateway.usage.queries import OWN_SUMS

DAYS: Final = 30
MONTHS: Final = 6
LISTED: Final = 50
LINES: Final = 25
EXPORTED_AT_ONCE: Final = 500
MOST_EXPORTED: Final = 20_000
"""Requests of a file, the newest ones."""
MOST_TOKENS: Final = 100
"""Tokens of an account with which a caller may make no more."""
EXAMPLE: Final = """\
curl -N {base_url}/chat/completions -H "Authorization: Bearer {token}" -H 'Content-Type: application/json' \\
  -d '{{"model": "{model}", "stream": true, "messages": [{{"role": "user", "content": "Hello"}}]}}'"""

MOST_AT_ONCE: Final = 4
"""Requests of an account that are worked on at once. Others wait for their turn."""
MOST_CHANGES: Final = 30
"""Changes of an account in a minute: each is written to the store and to its audit log."""


async def show(view: View, problem: str | None = None, opened: str = "", status: int = 200) -> web.Response:
    """Show the account: what is left, what was used, the tokens and the ledger."""
    name = view.user.account
    lines = view.search(LedgerLines).asked
    account = await own.account(view.client, name, view.user.token)
    held = await tokens.list_(view.client, name, query=TokenList(limit=MOST_TOKENS))
    period, first, last = _period(view)
    used = await own.usage(view.client, name, first, last)
    portal = view.client.config.portal or PortalSettings()
    return view.page(
        "my_account.html",
        status,
        account=account,
        usage=used,
        plot=plot_of([(day["day"], day["charge_micros"]) for day in used.days], ("charge",)),
        period=period,
        month=view.request.query.get("month", ""),
        months=[month_before(f"{datetime.now(UTC):%Y-%m}", back) for back in range(MONTHS)],
        ledger=await money.ledger(view.client, name, query=body(LedgerLines, limit=LINES, **lines)),
        older=bool(lines),
        tokens=held,
        spent={line["token_id"]: line["charge_micros"] for line in used.tokens},
        names={each.id: each.name for each in held.data},
        help=portal.help,
        form=view.form if opened else Form({}),
        problem=problem,
        opened=opened,
        once=secrets.token_urlsafe(12),
    )


async def models(view: View) -> web.Response:
    """Show the models that the account may use, with their prices, and how they are called."""
    account = await own.account(view.client, view.user.account, view.user.token)
    return view.page("my_models.html", **offer(view, account))


def offer(view: View, account: Account, text: str = "TOKEN") -> dict[str, Any]:
    """Return the models of an account, and a command that calls the first of them with the text of a token, for templates."""
    config, catalogue = view.client.config, Catalogue(view.client.config)
    caller = Caller(account.id, "", account.group, account_models=account.models or None)
    named = [(name, catalogue.aliases.get(name, name)) for name in catalogue.visible(caller)]
    models = [(name, catalogue.price(model, account.group), catalogue.models[model]) for name, model in named]
    base_url = (config.portal or PortalSettings()).base_url or f"{base(config.listen)}/v1"
    return {
        "models": models,
        "ratio": models[0][1].ratio if models and models[0][1] else 1,
        "base_url": base_url,
        "example": EXAMPLE.format(base_url=base_url, model=models[0][0], token=text) if models else "",
    }


def _period(view: View) -> tuple[str, date, date]:
    """Return what a time is called, its first and its last day: a month, or by default the last days. Raises `Refused`."""
    today, month = datetime.now(UTC).date(), view.request.query.get("month", "")
    if not month:
        return f"the last {DAYS} days", today - timedelta(days=DAYS - 1), today
    with suppress(ValueError):
        if (first := date.fromisoformat(f"{month}-01")) <= today:
            return month, first, min(today, (first + timedelta(days=31)).replace(day=1) - timedelta(days=1))
    raise Refused(400, "invalid_request", "This is no month up to the present one: write it as 2026-11.", param="month")


async def usage_as_csv(view: View) -> web.StreamResponse:
    """Send what was used and charged on each day by each model as CSV; amounts in micros."""
    period, first, last = _period(view)
    lines = await own.lines(view.client, view.user.account, first, last)

    async def pieces() -> AsyncIterator[str]:
        yield csv_line(["day", "model", *OWN_SUMS])
        for line in lines:
            yield csv_line(line.values())

    return await send_csv(view.request, CsvFile(f"usage-{period.replace(' ', '-')}.csv", pieces()))


async def requests(view: View) -> web.Response:
    """Show the requests that are searched for, newest first."""
    search = view.search(OwnRequestsQuery)
    found = await own.requests(view.client, view.user.account, body(OwnRequestsQuery, **search.asked), LISTED)
    outcomes = [str(outcome) for outcome in Outcome]
    return view.page("my_requests.html", page=found, search=search, outcomes=outcomes)


async def export(view: View) -> web.StreamResponse:
    """Send the newest requests that are searched for as CSV."""
    query = body(OwnRequestsQuery, **view.search(OwnRequestsQuery).asked)

    async def pieces() -> AsyncIterator[str]:
        wanted, sent = query, 0
        while True:
            found = await own.requests(view.client, view.user.account, wanted, EXPORTED_AT_ONCE)
            yield "".join(csv_line(line) for line in ([] if sent else [OWN_FIELDS]))
            yield "".join(csv_line(line.values()) for line in found.data)
            sent += EXPORTED_AT_ONCE
            if not found.next or sent >= MOST_EXPORTED:
                return
            wanted = msgspec.structs.replace(wanted, after=found.next)

    return await send_csv(view.request, CsvFile("requests.csv", pieces()))


async def request(view: View) -> web.Response:
    """Show one request."""
    if not is_request_id(view.path["id"]):
        raise Refused(404, "not_found", "There is no such request.")
    record = await own.request(view.client, view.user.account, view.path["id"])
    return view.page("my_request.html", record=record)


PAGES: Final[tuple[tuple[str, str, Page], ...]] = (
    ("GET", OWN, show),
    ("GET", f"{OWN}/models", models),
    ("GET", f"{OWN}/usage.csv", usage_as_csv),
    ("GET", f"{OWN}/requests", requests),
    ("GET", f"{OWN}/requests.csv", export),
    ("GET", f"{OWN}/requests/{{id}}", request),
)


class OwnBounds:
    """What callers do at the moment, and have changed of late."""

    def __init__(self) -> None:
        self._turns = WeakValueDictionary[str, asyncio.Semaphore]()  # those that somebody uses
        self._changes = LeakyBuckets(MOST_CHANGES)

    @asynccontextmanager
    async def turn(self, account: str) -> AsyncIterator[None]:
        """Wait for the turn of a request of this account."""
        turns = self._turns.setdefault(account, asyncio.Semaphore(MOST_AT_ONCE))
        async with turns:
            yield

    def count_change(self, account: str) -> None:
        """Count a change. Raises `Refused` (429) for one too many."""
        if wait_s := self._changes.add(account):
            text = f"At most {MOST_CHANGES} changes a minute: wait, then try again."
            raise Refused(429, "rate_limited", text, retry_after_s=wait_s)

"""A caller's own pages: its use, balance and budgets, its requests, and its tokens.

All of them are about the account of the session. No address and no form names an account. A caller may do only so much there at
once, and change only so much in a minute, so that other callers are served meanwhile.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec
from aiohttp import web

from gateway.admin.actions import accounts, money, own, tokens
from gateway.admin.actions.money import LedgerLines
from gateway.admin.actions.tokens import MadeToken, NewToken, Rotation, TokenList
from gateway.admin.pages.accounts import DAY_S, HOUR_S, check_sure, problem_of
from gateway.admin.pages.login import OWN
from gateway.admin.pages.view import Form, Page, View, body, plot_of
from gateway.base.errors import GatewayError, Refused
from gateway.base.ids import check_time
from gateway.base.leaky_buckets import LeakyBuckets
from gateway.store.accounts import AccountStatus

DAYS: Final = 30
LISTED: Final = 50
LINES: Final = 25
MOST_TOKENS: Final = 100
"""Tokens of an account with which a caller may make no more."""
_SHORT_ID: Final = re.compile(r"[a-z0-9]{1,64}")
_REQUEST_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")

MOST_AT_ONCE: Final = 4
"""Requests of an account that are worked on at once. Others wait for their turn."""
MOST_CHANGES: Final = 30
"""Changes of an account in a minute: each is written to the store and to its audit log."""


class After(msgspec.Struct, frozen=True):
    """Which part of a list is asked for."""

    after: str = ""


async def show(view: View, problem: str | None = None, opened: str = "", status: int = 200) -> web.Response:
    """Show the account: what is left, what was used, the tokens and the ledger."""
    name = view.user.account
    after = view.query(After).after if view.request.method == "GET" else ""
    account = await accounts.read(view.client, name)
    held = await tokens.list_(view.client, name, query=TokenList(limit=MOST_TOKENS))
    used = await own.usage(view.client, name, DAYS)
    return view.page(
        "my_account.html",
        status,
        account=account,
        usage=used,
        plot=plot_of([(day["day"], day["charge_micros"], 0) for day in used.days]),
        days=DAYS,
        ledger=await money.ledger(view.client, name, query=body(LedgerLines, limit=LINES, after=after)),
        older=bool(after),
        tokens=held,
        spent={line["token_id"]: line["charge_micros"] for line in used.tokens},
        names={each.id: each.name for each in held.data},
        form=view.form if opened else Form({}),
        problem=problem,
        opened=opened,
        once=secrets.token_urlsafe(12),
    )


async def requests(view: View) -> web.Response:
    """Show the requests, newest first."""
    after = view.query(After).after
    if after:
        _checked(after)
    found = await own.requests(view.client, view.user.account, after, LISTED)
    return view.page("my_requests.html", page=found, older=bool(after))


async def request(view: View) -> web.Response:
    """Show one request."""
    record = await own.request(view.client, view.user.account, _checked(view.path["id"]))
    return view.page("my_request.html", record=record)


async def create(view: View) -> web.StreamResponse:
    """Make a token, and show its text."""
    form = view.form
    try:
        await _check_room(view)
        given: dict[str, Any] = {"name": form["name"]}
        if form["days"]:
            given["expires_at"] = int(time.time()) + form.number("days") * DAY_S
        if form["day"]:
            given["budgets"] = {"day_micros": form.micros("day")}
        made = await tokens.create(view.client, view.user.account, body=body(NewToken, **given))
    except GatewayError as error:
        return await _refused(view, error, "token")
    return _made(view, made, "")


async def rotate(view: View) -> web.StreamResponse:
    """Replace a token, and show the text of the new one."""
    token = _token_in(view)
    try:
        await _check_room(view)
        overlap = view.form.number("hours") * HOUR_S
        made = await tokens.rotate(view.client, token, body=body(Rotation, overlap_s=overlap))
    except GatewayError as error:
        return await _refused(view, error, f"rotate {token}")
    return _made(view, made, token)


async def delete(view: View) -> web.StreamResponse:
    """Delete a token for good."""
    token = _token_in(view)

    async def work(form: Form) -> str:
        check_sure(form)
        await tokens.delete(view.client, token)
        return "token-deleted"

    return await _attempt(view, f"delete {token}", work(view.form))


async def _attempt(view: View, action: str, work: Awaitable[str]) -> web.StreamResponse:
    try:
        done = await work
    except GatewayError as error:
        return await _refused(view, error, action)
    return view.go(OWN, done)


async def _refused(view: View, error: GatewayError, action: str) -> web.StreamResponse:
    shown = problem_of(error)
    if shown.status == 404:  # its words are for operators
        raise Refused(404, "not_found", "There is no such token.")
    if shown.status == 403:
        raise error
    return await show(view, shown.message, action, shown.status)


async def _check_room(view: View) -> None:
    """Raise `Refused` where the account may have no further token."""
    name = view.user.account
    if (await accounts.read(view.client, name)).status is not AccountStatus.ACTIVE:
        raise Refused(409, "conflict", "The account is not active: its operator can say why.")
    held = await tokens.list_(view.client, name, query=TokenList(limit=MOST_TOKENS))
    if len(held.data) >= MOST_TOKENS:
        raise Refused(409, "conflict", f"There are {MOST_TOKENS} tokens already: delete those that are not used.")


def _made(view: View, made: MadeToken, replaced: str) -> web.Response:
    return view.page("token.html", 201, made=made, replaced=replaced, account=view.user.account, home=OWN)


def _token_in(view: View) -> str:
    """Return the id of the token of the address, as one of this account whatever it says. Raises `Refused` (404)."""
    short = view.path["token"]
    if not _SHORT_ID.fullmatch(short):
        raise Refused(404, "not_found", "There is no such token.")
    return f"{view.user.account}-{short}"


def _checked(request_id: str) -> str:
    """Return the id of a request. Raises `Refused` (404) for what is none."""
    try:
        if _REQUEST_ID.fullmatch(request_id):
            check_time(request_id)
            return request_id
    except ValueError:
        pass
    raise Refused(404, "not_found", "There is no such request.")

PAGES: Final[tuple[tuple[str, str, Page], ...]] = (
    ("GET", OWN, show),
    ("GET", f"{OWN}/requests", requests),
    ("GET", f"{OWN}/requests/{{id}}", request),
    ("POST", f"{OWN}/tokens", create),
    ("POST", f"{OWN}/tokens/{{token}}/rotate", rotate),
    ("POST", f"{OWN}/tokens/{{token}}/delete", delete),
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

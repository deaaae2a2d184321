"""Accounts: the list with its search, and one account with its money, budgets, tokens and what can be done about it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable
from typing import Any, Final
from urllib.parse import quote

import msgspec
from aiohttp import web

from gateway.admin.api import refused
from gateway.admin.pages.forms import Form, body
from gateway.admin.pages.visit import Page, Visit
from gateway.config.schema import ACCOUNT_ID
from gateway.errors import GatewayError, Refused, StoreAway
from gateway.facts import AccountLimits
from gateway.management import accounts, money, tokens, usage
from gateway.management.accounts import AccountChange, Accounts, NewAccount
from gateway.management.money import LedgerLines, NewAdjustment, NewCredit
from gateway.management.operation import Scope
from gateway.management.tokens import TokenList
from gateway.management.usage import Wanted
from gateway.store.accounts import AccountStatus

LISTED: Final = 50
LINES: Final = 25
TOKENS: Final = 200
LONGEST: Final = 10_000
"""Tokens whose spending is read."""
WINDOWS: Final = ("day", "week", "month", "total")


class Asked(msgspec.Struct, frozen=True):
    """Which accounts are asked for."""

    q: str = ""
    status: AccountStatus | None = None
    group: str | None = None
    after: str = ""


class Lines(msgspec.Struct, frozen=True):
    """Which part of a ledger is asked for."""

    after: str = ""


async def index(visit: Visit, problem: str | None = None, status: int = 200) -> web.Response:
    """Show the accounts that are searched for, and the form for a new one."""
    asked = visit.query(Asked) if visit.request.method == "GET" else Asked()
    query = body(Accounts, limit=LISTED, q=asked.q, status=asked.status, group=asked.group, after=asked.after)
    page = await accounts.list_(visit.desk, query=query)
    kept = "".join(f"{name}={quote(str(text))}&" for name, text in _searched(asked).items())
    return visit.page(
        "accounts.html",
        status,
        page=page,
        asked=asked,
        searched=bool(_searched(asked) or asked.after),
        next_page=f"/accounts?{kept}",
        groups=list(visit.desk.config.groups),
        form=visit.form,
        problem=problem,
        once=secrets.token_urlsafe(12),
    )


async def create(visit: Visit) -> web.StreamResponse:
    """Create an account."""
    form = visit.form
    try:
        new = body(
            NewAccount,
            id=form["id"],
            group=form["group"],
            external_id=form["external_id"],
            credit_line_micros=_credit_line(form),
        )
        await accounts.create(visit.desk, body=new)
    except GatewayError as error:
        shown = problem_of(error)
        if shown.status == 403:
            raise
        return await index(visit, shown.message, shown.status)
    return visit.go(f"/accounts/{form['id']}", "created")


async def show(
    visit: Visit, problem: str | None = None, opened: str = "", status: int = 200, **more: Any
) -> web.Response:
    """Show one account."""
    name = account_in(visit)
    account = await accounts.read(visit.desk, name)
    lines = visit.query(Lines) if visit.request.method == "GET" else Lines()
    ledger = await money.ledger(visit.desk, name, query=body(LedgerLines, limit=LINES, after=lines.after))
    held = await tokens.list_(visit.desk, name, query=TokenList(limit=TOKENS))
    month = time.strftime("%Y-%m", time.gmtime())
    spent = await usage.summary(visit.desk, query=body(Wanted, by="token", account=name, since=month, limit=LONGEST))
    return visit.page(
        "account.html",
        status,
        account=account,
        ledger=ledger,
        older=bool(lines.after),
        tokens=held,
        month=month,
        spent={str(line.token_id): line.charge_micros for line in spent.data},
        groups=list(visit.desk.config.groups),
        form=visit.form if opened else Form({}),
        problem=problem,
        opened=opened,
        once=secrets.token_urlsafe(12),
        transaction=f"page-{secrets.token_hex(6)}",
        **more,
    )


async def credit(visit: Visit) -> web.StreamResponse:
    """Add to the balance."""

    async def work(form: Form) -> str:
        given = body(NewCredit, transaction=form["transaction"], amount_micros=form.micros("amount"))
        booked = await money.credit(visit.desk, account_in(visit), body=given)
        return "credited-before" if booked.booked_before else "credited"

    return await attempt(visit, "credit", work(visit.form))


async def adjust(visit: Visit) -> web.StreamResponse:
    """Correct the balance."""

    async def work(form: Form) -> str:
        given = body(
            NewAdjustment,
            transaction=form["transaction"],
            amount_micros=form.micros("amount"),
            reason=form["reason"],
        )
        booked = await money.adjust(visit.desk, account_in(visit), body=given)
        return "credited-before" if booked.booked_before else "adjusted"

    return await attempt(visit, "adjust", work(visit.form))


async def change(visit: Visit) -> web.StreamResponse:
    """Change the group, the credit line, the external id, the budgets and the limits. An empty field takes away what was there.

    Who may not change the credit line has no field for it.
    """

    async def work(form: Form) -> str:
        budgets = {f"{name}_micros": (form.micros(name) if form[name] else None) for name in WINDOWS}
        budgets["requests"] = form.number("requests") if form["requests"] else None
        limits = {name: (form.number(name) if form[name] else None) for name in AccountLimits.__struct_fields__}
        given = body(
            AccountChange,
            group=form["group"],
            external_id=form["external_id"] or None,
            **({"credit_line_micros": _credit_line(form)} if form["credit_line"] or visit.may(Scope.MONEY) else {}),
            models=[name for part in form["models"].split(",") if (name := part.strip())],
            budgets=budgets,
            limits=limits,
        )
        await accounts.change(visit.desk, account_in(visit), body=given)
        return "changed"

    return await attempt(visit, "change", work(visit.form))


async def suspend(visit: Visit) -> web.StreamResponse:
    """Refuse the account's requests."""
    return await _set_status(visit, "suspended", "suspended")


async def resume(visit: Visit) -> web.StreamResponse:
    """Serve the account again."""
    return await _set_status(visit, "active", "resumed")


async def close(visit: Visit) -> web.StreamResponse:
    """Close the account for good."""

    async def work(form: Form) -> str:
        check_sure(form)
        await accounts.close(visit.desk, account_in(visit))
        return "closed"

    return await attempt(visit, "close", work(visit.form))


async def attempt(visit: Visit, action: str, work: Awaitable[str]) -> web.StreamResponse:
    """Do something about an account, and go back to its page. What is refused is said there, above the form that asked for it."""
    try:
        done = await work
    except GatewayError as error:
        shown = problem_of(error)
        if shown.status in (403, 404):
            raise
        return await show(visit, shown.message, action, shown.status)
    return visit.go(f"/accounts/{account_in(visit)}", done)


def problem_of(error: GatewayError) -> Refused:
    """Return an error as it is shown. Raises `StoreAway`, which no page can be shown for."""
    if isinstance(error, StoreAway):
        raise error
    return error if isinstance(error, Refused) else refused(error)


def check_sure(form: Form) -> None:
    """Raise `Refused` where somebody did not say that it is meant."""
    if form["sure"] != "yes":
        raise Refused(400, "invalid_request", "Say that you mean it: tick the box.", param="sure")


def account_in(visit: Visit) -> str:
    """Return the account of the address. Raises `Refused` (404) for what is none."""
    name = visit.path["account"]
    if not ACCOUNT_ID.fullmatch(name):
        raise Refused(404, "not_found", "There is no such account.")
    return name


async def _set_status(visit: Visit, status: str, done: str) -> web.StreamResponse:
    async def work() -> str:
        await accounts.change(visit.desk, account_in(visit), body=body(AccountChange, status=status))
        return done

    return await attempt(visit, "status", work())


def _credit_line(form: Form) -> int:
    return form.micros("credit_line") if form["credit_line"] else 0


def _searched(asked: Asked) -> dict[str, object]:
    return {name: value for name in ("q", "status", "group") if (value := getattr(asked, name))}


PAGES: Final[tuple[tuple[str, str, Page], ...]] = (
    ("GET", "/accounts", index),
    ("POST", "/accounts", create),
    ("GET", "/accounts/{account}", show),
    ("POST", "/accounts/{account}/credit", credit),
    ("POST", "/accounts/{account}/adjust", adjust),
    ("POST", "/accounts/{account}/change", change),
    ("POST", "/accounts/{account}/suspend", suspend),
    ("POST", "/accounts/{account}/resume", resume),
    ("POST", "/accounts/{account}/close", close),
)

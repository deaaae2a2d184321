"""Accounts: the list with its search, and one account with its money, budgets and tokens, and the actions on it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from aiohttp import web

from gateway.admin.actions import accounts, money, requests, tokens, usage
from gateway.admin.actions.accounts import AccountChange, AccountQuery, ListedAccount, NewAccount
from gateway.admin.actions.action import Scope
from gateway.admin.actions.money import LedgerLines, NewAdjustment, NewCredit, NewRefund
from gateway.admin.actions.requests import Requests
from gateway.admin.actions.tokens import TokenList
from gateway.admin.actions.usage import SumsQuery
from gateway.admin.http.api import refused
from gateway.admin.pages.view import Form, Page, Sorting, View, attempt, body
from gateway.base.errors import GatewayError, Refused, StoreAway
from gateway.base.text import names_in
from gateway.config.schema import ACCOUNT_ID
from gateway.domain.facts import AccountLimits
from gateway.usage.database import month_before

LISTED: Final = 50
LINES: Final = 25
SORTED: Final = 1000
"""Accounts that are read, of all that are searched for, to show the first of them in another order than that of their ids."""
SORTS: Final[Mapping[str, Sequence[str]]] = {
    "Account": (),
    "Status": ("status",),
    "Group": ("group",),
    "Balance": ("balance", "-balance"),
    "Held": ("-held",),
    "Budget used": ("-budget",),
    "Credit line": ("-credit_line",),
}
"""Headings that sort, and the orders that they lead to."""
KEYS: Final[Mapping[str, Callable[[ListedAccount], Any]]] = {
    "status": lambda account: account.status,
    "group": lambda account: account.group,
    "balance": lambda account: account.balance_micros,
    "held": lambda account: account.held_micros,
    "budget": lambda account: account.fullest.share if account.fullest else -1,
    "credit_line": lambda account: account.credit_line_micros,
}
LAST: Final = 10
TOKENS: Final = 200
LONGEST: Final = 10_000
"""Tokens whose spending is read."""
MONTHS: Final = 3
"""Months of statements that have a button."""
WINDOWS: Final = ("day", "week", "month", "total", "session")


async def index(view: View, problem: str | None = None, status: int = 200) -> web.Response:
    """Show the accounts that are searched for, and the form for a new one."""
    search, sorting = view.search(AccountQuery), Sorting(view.request.query, SORTS)
    limit = SORTED if sorting.asked else LISTED
    page = await accounts.list_(view.client, query=body(AccountQuery, limit=limit, **search.asked))
    too_many = bool(sorting.asked) and page.has_more
    if sorting.asked and not too_many:
        page.data[:] = sorting.sorted(page.data, KEYS)
    return view.page(
        "accounts.html",
        status,
        page=page,
        search=search,
        sorting=sorting,
        listed=LISTED,
        too_many=f"More than {SORTED:,} accounts are not sorted: search for fewer, or choose a group."
        if too_many
        else "",
        groups=list(view.client.config.groups),
        form=view.form,
        problem=problem,
        once=secrets.token_urlsafe(12),
    )


async def create(view: View) -> web.StreamResponse:
    """Create an account."""
    form = view.form
    try:
        new = body(
            NewAccount,
            id=form["id"],
            group=form["group"],
            external_id=form["external_id"],
            name=form["name"],
            credit_line_micros=_credit_line(form),
        )
        made = await accounts.create(view.client, body=new)
    except GatewayError as error:
        shown = refused(error)
        if isinstance(error, StoreAway) or shown.status == 403:
            raise
        return await index(view, shown.message, shown.status)
    return view.go(f"/accounts/{made.id}", "created")


async def show(
    view: View, problem: str | None = None, opened: str = "", status: int = 200, **more: Any
) -> web.Response:
    """Show one account."""
    name = account_in(view)
    account = await accounts.read(view.client, name)
    lines = view.search(LedgerLines).asked
    ledger = await money.ledger(view.client, name, query=body(LedgerLines, limit=LINES, **lines))
    held = await tokens.list_(view.client, name, query=TokenList(limit=TOKENS))
    last = await requests.list_(view.client, query=body(Requests, account=account.id, limit=LAST))
    month = time.strftime("%Y-%m", time.gmtime())
    spent = await usage.summary(
        view.client, query=body(SumsQuery, by="token", account=name, since=month, limit=LONGEST)
    )
    return view.page(
        "account.html",
        status,
        account=account,
        ledger=ledger,
        older="after" in lines,
        kind=lines.get("kind", ""),
        refunded=await money.refunded(
            view.client, name, [str(line.transaction) for line in ledger.data if line.kind == "credit"]
        ),
        last=last,
        tokens=held,
        month=month,
        spent={str(line.token_id): line.charge_micros for line in spent.data},
        groups=list(view.client.config.groups),
        form=view.form if opened else Form({}),
        problem=problem,
        opened=opened,
        once=secrets.token_urlsafe(12),
        transaction=f"page-{secrets.token_hex(6)}",
        **more,
    )


async def statement(view: View) -> web.Response:
    """Show what an account was charged in a month, by model, as a page to print."""
    name, today = account_in(view), datetime.now(UTC).date()
    account = await accounts.read(view.client, name)
    month = view.request.query.get("month", f"{today:%Y-%m}")
    try:
        first = date.fromisoformat(f"{month}-01")
    except ValueError:
        raise Refused(400, "invalid_request", "This is no month: write it as 2026-11.", param="month") from None
    wanted = body(SumsQuery, by="model", account=name, since=month, until=month, limit=LONGEST)
    found = await usage.summary(view.client, query=wanted)
    last = (first + timedelta(days=31)).replace(day=1) - timedelta(days=1)
    return view.page(
        "statement.html",
        account=account,
        month=month,
        months=[month_before(f"{today:%Y-%m}", back) for back in range(MONTHS)],
        first=first,
        last=last,
        unfinished=last >= today,
        found=found,
        lines=[*((line, line.model or "none") for line in found.data if line.charge_micros), (found.total, "Total")],
    )


def _attempt(action: str) -> Callable[[Callable[[View], Awaitable[str]]], Page]:
    """Make a page of what does something about an account. What is refused is said above the form that asked for it.

    `action` names that form, with fields of it in braces.
    """

    async def refuse(view: View, refused: Refused) -> web.Response:
        return await show(view, refused.message, action.format_map(view.form), refused.status)

    return attempt(refuse, lambda view: f"/accounts/{account_in(view)}")


@_attempt("credit")
async def credit(view: View) -> str:
    """Add to the balance."""
    given = body(NewCredit, transaction=view.form["transaction"], amount_micros=view.form.micros("amount"))
    booked = await money.credit(view.client, account_in(view), body=given)
    return "credited-before" if booked.booked_before else "credited"


@_attempt("adjust")
async def adjust(view: View) -> str:
    """Correct the balance."""
    form = view.form
    amount = form.micros("amount")
    given = body(NewAdjustment, transaction=form["transaction"], amount_micros=amount, reason=form["reason"])
    booked = await money.adjust(view.client, account_in(view), body=given)
    return "credited-before" if booked.booked_before else "adjusted"


@_attempt("refund {credit}")
async def refund(view: View) -> str:
    """Take a credit back, or a part of it."""
    form = view.form
    amount = form.micros("amount") if form["amount"] else None
    given = body(NewRefund, amount_micros=amount, number=form.number("number"))
    booked = await money.refund(view.client, account_in(view), form["credit"], body=given)
    return "credited-before" if booked.booked_before else "refunded"


@_attempt("change")
async def change(view: View) -> str:
    """Change the settings, the budgets and the limits. An empty field takes away what was there.

    Who may not change the credit line has no field for it.
    """
    form = view.form
    budgets = {f"{name}_micros": (form.micros(name) if form[name] else None) for name in WINDOWS}
    budgets |= {name: form.number(name) if form[name] else None for name in ("requests", "session_requests")}
    limits = {name: (form.number(name) if form[name] else None) for name in AccountLimits.__struct_fields__}
    given = body(
        AccountChange,
        group=form["group"],
        external_id=form["external_id"] or None,
        name=form["name"] or None,
        **({"credit_line_micros": _credit_line(form)} if form["credit_line"] or view.may(Scope.MONEY) else {}),
        models=names_in(form["models"]),
        budgets=budgets,
        limits=limits,
    )
    await accounts.change(view.client, account_in(view), body=given)
    return "changed"


@_attempt("status")
async def suspend(view: View) -> str:
    """Refuse the account's requests."""
    await accounts.change(view.client, account_in(view), body=AccountChange(status="suspended"))
    return "suspended"


@_attempt("status")
async def resume(view: View) -> str:
    """Serve the account again."""
    await accounts.change(view.client, account_in(view), body=AccountChange(status="active"))
    return "resumed"


@_attempt("close")
async def close(view: View) -> str:
    """Close the account for good."""
    check_sure(view.form)
    await accounts.close(view.client, account_in(view))
    return "closed"


def check_sure(form: Form) -> None:
    """Raise `Refused` where somebody did not say that it is meant."""
    if form["sure"] != "yes":
        raise Refused(400, "invalid_request", "Say that you mean it: tick the box.", param="sure")


def account_in(view: View) -> str:
    """Return the account of a caller, or that of the address. Raises `Refused` (404) for what is none."""
    name = view.user.account or view.path["account"]
    if not ACCOUNT_ID.fullmatch(name):
        raise Refused(404, "not_found", "There is no such account.")
    return name


def _credit_line(form: Form) -> int:
    return form.micros("credit_line") if form["credit_line"] else 0


PAGES: Final[tuple[tuple[str, str, Page], ...]] = (
    ("GET", "/accounts", index),
    ("POST", "/accounts", create),
    ("GET", "/accounts/{account}", show),
    ("GET", "/accounts/{account}/statement", statement),
    ("POST", "/accounts/{account}/credit", credit),
    ("POST", "/accounts/{account}/adjust", adjust),
    ("POST", "/accounts/{account}/refund", refund),
    ("POST", "/accounts/{account}/change", change),
    ("POST", "/accounts/{account}/suspend", suspend),
    ("POST", "/accounts/{account}/resume", resume),
    ("POST", "/accounts/{account}/close", close),
)

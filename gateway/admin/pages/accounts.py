"""Accounts: the list with its search, and one account with its money, budgets and tokens, and the actions on it.

Tokens are made, replaced, refused and deleted from the account's page. A text is shown once.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Awaitable
from typing import Any, Final
from urllib.parse import quote

import msgspec
from aiohttp import web

from gateway.admin.actions import accounts, money, tokens, usage
from gateway.admin.actions.accounts import AccountChange, AccountQuery, NewAccount
from gateway.admin.actions.action import Scope
from gateway.admin.actions.money import LedgerLines, NewAdjustment, NewCredit
from gateway.admin.actions.tokens import MadeToken, NewToken, Rotation, TokenList
from gateway.admin.actions.usage import SumsQuery
from gateway.admin.http.api import refused
from gateway.admin.pages.view import Form, Page, View, body
from gateway.base.errors import GatewayError, Refused, StoreAway
from gateway.config.schema import ACCOUNT_ID
from gateway.domain.facts import AccountLimits
from gateway.store.accounts import AccountStatus

LISTED: Final = 50
LINES: Final = 25
TOKENS: Final = 200
LONGEST: Final = 10_000
"""Tokens whose spending is read."""
WINDOWS: Final = ("day", "week", "month", "total")

HOUR_S: Final = 3600
DAY_S: Final = 86_400
_ID: Final = re.compile(r"[a-z0-9]{1,64}")


class AccountFilter(msgspec.Struct, frozen=True):
    """Which accounts are asked for."""

    q: str = ""
    status: AccountStatus | None = None
    group: str | None = None
    after: str = ""


class Lines(msgspec.Struct, frozen=True):
    """Which part of a ledger is asked for."""

    after: str = ""


async def index(view: View, problem: str | None = None, status: int = 200) -> web.Response:
    """Show the accounts that are searched for, and the form for a new one."""
    asked = view.query(AccountFilter) if view.request.method == "GET" else AccountFilter()
    query = body(AccountQuery, limit=LISTED, q=asked.q, status=asked.status, group=asked.group, after=asked.after)
    page = await accounts.list_(view.client, query=query)
    kept = "".join(f"{name}={quote(str(text))}&" for name, text in _searched(asked).items())
    return view.page(
        "accounts.html",
        status,
        page=page,
        asked=asked,
        searched=bool(_searched(asked) or asked.after),
        next_page=f"/accounts?{kept}",
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
            credit_line_micros=_credit_line(form),
        )
        await accounts.create(view.client, body=new)
    except GatewayError as error:
        shown = problem_of(error)
        if shown.status == 403:
            raise
        return await index(view, shown.message, shown.status)
    return view.go(f"/accounts/{form['id']}", "created")


async def show(
    view: View, problem: str | None = None, opened: str = "", status: int = 200, **more: Any
) -> web.Response:
    """Show one account."""
    name = account_in(view)
    account = await accounts.read(view.client, name)
    lines = view.query(Lines) if view.request.method == "GET" else Lines()
    ledger = await money.ledger(view.client, name, query=body(LedgerLines, limit=LINES, after=lines.after))
    held = await tokens.list_(view.client, name, query=TokenList(limit=TOKENS))
    month = time.strftime("%Y-%m", time.gmtime())
    spent = await usage.summary(
        view.client, query=body(SumsQuery, by="token", account=name, since=month, limit=LONGEST)
    )
    return view.page(
        "account.html",
        status,
        account=account,
        ledger=ledger,
        older=bool(lines.after),
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


async def credit(view: View) -> web.StreamResponse:
    """Add to the balance."""

    async def work(form: Form) -> str:
        given = body(NewCredit, transaction=form["transaction"], amount_micros=form.micros("amount"))
        booked = await money.credit(view.client, account_in(view), body=given)
        return "credited-before" if booked.booked_before else "credited"

    return await attempt(view, "credit", work(view.form))


async def adjust(view: View) -> web.StreamResponse:
    """Correct the balance."""

    async def work(form: Form) -> str:
        given = body(
            NewAdjustment,
            transaction=form["transaction"],
            amount_micros=form.micros("amount"),
            reason=form["reason"],
        )
        booked = await money.adjust(view.client, account_in(view), body=given)
        return "credited-before" if booked.booked_before else "adjusted"

    return await attempt(view, "adjust", work(view.form))


async def change(view: View) -> web.StreamResponse:
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
            **({"credit_line_micros": _credit_line(form)} if form["credit_line"] or view.may(Scope.MONEY) else {}),
            models=[name for part in form["models"].split(",") if (name := part.strip())],
            budgets=budgets,
            limits=limits,
        )
        await accounts.change(view.client, account_in(view), body=given)
        return "changed"

    return await attempt(view, "change", work(view.form))


async def suspend(view: View) -> web.StreamResponse:
    """Refuse the account's requests."""
    return await _set_status(view, "suspended", "suspended")


async def resume(view: View) -> web.StreamResponse:
    """Serve the account again."""
    return await _set_status(view, "active", "resumed")


async def close(view: View) -> web.StreamResponse:
    """Close the account for good."""

    async def work(form: Form) -> str:
        check_sure(form)
        await accounts.close(view.client, account_in(view))
        return "closed"

    return await attempt(view, "close", work(view.form))


async def attempt(view: View, action: str, work: Awaitable[str]) -> web.StreamResponse:
    """Do something about an account, and go back to its page. What is refused is said there, above the form that asked for it."""
    try:
        done = await work
    except GatewayError as error:
        shown = problem_of(error)
        if shown.status in (403, 404):
            raise
        return await show(view, shown.message, action, shown.status)
    return view.go(f"/accounts/{account_in(view)}", done)


def problem_of(error: GatewayError) -> Refused:
    """Return an error as it is shown. Raises `StoreAway`, which no page can be shown for."""
    if isinstance(error, StoreAway):
        raise error
    return error if isinstance(error, Refused) else refused(error)


def check_sure(form: Form) -> None:
    """Raise `Refused` where somebody did not say that it is meant."""
    if form["sure"] != "yes":
        raise Refused(400, "invalid_request", "Say that you mean it: tick the box.", param="sure")


def account_in(view: View) -> str:
    """Return the account of the address. Raises `Refused` (404) for what is none."""
    name = view.path["account"]
    if not ACCOUNT_ID.fullmatch(name):
        raise Refused(404, "not_found", "There is no such account.")
    return name


async def _set_status(view: View, status: str, done: str) -> web.StreamResponse:
    async def work() -> str:
        await accounts.change(view.client, account_in(view), body=body(AccountChange, status=status))
        return done

    return await attempt(view, "status", work())


def _credit_line(form: Form) -> int:
    return form.micros("credit_line") if form["credit_line"] else 0


def _searched(asked: AccountFilter) -> dict[str, object]:
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


async def create_token(view: View) -> web.StreamResponse:
    """Make a token, and show its text."""
    form = view.form
    try:
        given: dict[str, Any] = {
            "name": form["name"],
            "models": _names(form["models"]),
            "addresses": _names(form["addresses"]),
        }
        if form["days"]:
            given["expires_at"] = int(time.time()) + form.number("days") * DAY_S
        if form["day"]:
            given["budgets"] = {"day_micros": form.micros("day")}
        made = await tokens.create(view.client, account_in(view), body=body(NewToken, **given))
    except GatewayError as error:
        return await _refused(view, error, "token")
    return _made(view, made, "")


async def rotate(view: View) -> web.StreamResponse:
    """Replace a token, and show the text of the new one."""
    try:
        overlap = view.form.number("hours") * HOUR_S
        made = await tokens.rotate(view.client, _token_in(view), body=body(Rotation, overlap_s=overlap))
    except GatewayError as error:
        return await _refused(view, error, f"rotate {_token_in(view)}")
    return _made(view, made, _token_in(view))


async def disable(view: View) -> web.StreamResponse:
    """Refuse requests with a token."""

    async def work() -> str:
        await tokens.disable(view.client, _token_in(view))
        return "token-disabled"

    return await attempt(view, "tokens", work())


async def enable(view: View) -> web.StreamResponse:
    """Accept a token again."""

    async def work() -> str:
        await tokens.enable(view.client, _token_in(view))
        return "token-enabled"

    return await attempt(view, "tokens", work())


async def delete(view: View) -> web.StreamResponse:
    """Delete a token for good."""

    async def work(form: Form) -> str:
        check_sure(form)
        await tokens.delete(view.client, _token_in(view))
        return "token-deleted"

    return await attempt(view, f"delete {_token_in(view)}", work(view.form))


def _made(view: View, made: MadeToken, replaced: str) -> web.Response:
    account = account_in(view)
    return view.page("token.html", 201, made=made, replaced=replaced, account=account, home=f"/accounts/{account}")


async def _refused(view: View, error: GatewayError, action: str) -> web.StreamResponse:
    shown = problem_of(error)
    if shown.status in (403, 404):
        raise error
    return await show(view, shown.message, action, shown.status)


def _token_in(view: View) -> str:
    """Return the id of the token of the address, which is one of the account of the address. Raises `Refused` (404)."""
    short = view.path["token"]
    if not _ID.fullmatch(short):
        raise Refused(404, "not_found", "There is no such token.")
    return f"{account_in(view)}-{short}"


def _names(text: str) -> list[str]:
    return [name for part in text.split(",") if (name := part.strip())]

TOKEN_PAGES: Final[tuple[tuple[str, str, Page], ...]] = (
    ("POST", "/accounts/{account}/tokens", create_token),
    ("POST", "/accounts/{account}/tokens/{token}/rotate", rotate),
    ("POST", "/accounts/{account}/tokens/{token}/disable", disable),
    ("POST", "/accounts/{account}/tokens/{token}/enable", enable),
    ("POST", "/accounts/{account}/tokens/{token}/delete", delete),
)

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
from gateway.admin.pages.view import Form, Page, Visit, body
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


async def index(visit: Visit, problem: str | None = None, status: int = 200) -> web.Response:
    """Show the accounts that are searched for, and the form for a new one."""
    asked = visit.query(AccountFilter) if visit.request.method == "GET" else AccountFilter()
    query = body(AccountQuery, limit=LISTED, q=asked.q, status=asked.status, group=asked.group, after=asked.after)
    page = await accounts.list_(visit.client, query=query)
    kept = "".join(f"{name}={quote(str(text))}&" for name, text in _searched(asked).items())
    return visit.page(
        "accounts.html",
        status,
        page=page,
        asked=asked,
        searched=bool(_searched(asked) or asked.after),
        next_page=f"/accounts?{kept}",
        groups=list(visit.client.config.groups),
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
        await accounts.create(visit.client, body=new)
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
    account = await accounts.read(visit.client, name)
    lines = visit.query(Lines) if visit.request.method == "GET" else Lines()
    ledger = await money.ledger(visit.client, name, query=body(LedgerLines, limit=LINES, after=lines.after))
    held = await tokens.list_(visit.client, name, query=TokenList(limit=TOKENS))
    month = time.strftime("%Y-%m", time.gmtime())
    spent = await usage.summary(
        visit.client, query=body(SumsQuery, by="token", account=name, since=month, limit=LONGEST)
    )
    return visit.page(
        "account.html",
        status,
        account=account,
        ledger=ledger,
        older=bool(lines.after),
        tokens=held,
        month=month,
        spent={str(line.token_id): line.charge_micros for line in spent.data},
        groups=list(visit.client.config.groups),
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
        booked = await money.credit(visit.client, account_in(visit), body=given)
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
        booked = await money.adjust(visit.client, account_in(visit), body=given)
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
        await accounts.change(visit.client, account_in(visit), body=given)
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
        await accounts.close(visit.client, account_in(visit))
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
        await accounts.change(visit.client, account_in(visit), body=body(AccountChange, status=status))
        return done

    return await attempt(visit, "status", work())


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


async def create_token(visit: Visit) -> web.StreamResponse:
    """Make a token, and show its text."""
    form = visit.form
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
        made = await tokens.create(visit.client, account_in(visit), body=body(NewToken, **given))
    except GatewayError as error:
        return await _refused(visit, error, "token")
    return _made(visit, made, "")


async def rotate(visit: Visit) -> web.StreamResponse:
    """Replace a token, and show the text of the new one."""
    try:
        overlap = visit.form.number("hours") * HOUR_S
        made = await tokens.rotate(visit.client, _token_in(visit), body=body(Rotation, overlap_s=overlap))
    except GatewayError as error:
        return await _refused(visit, error, f"rotate {_token_in(visit)}")
    return _made(visit, made, _token_in(visit))


async def disable(visit: Visit) -> web.StreamResponse:
    """Refuse requests with a token."""

    async def work() -> str:
        await tokens.disable(visit.client, _token_in(visit))
        return "token-disabled"

    return await attempt(visit, "tokens", work())


async def enable(visit: Visit) -> web.StreamResponse:
    """Accept a token again."""

    async def work() -> str:
        await tokens.enable(visit.client, _token_in(visit))
        return "token-enabled"

    return await attempt(visit, "tokens", work())


async def delete(visit: Visit) -> web.StreamResponse:
    """Delete a token for good."""

    async def work(form: Form) -> str:
        check_sure(form)
        await tokens.delete(visit.client, _token_in(visit))
        return "token-deleted"

    return await attempt(visit, f"delete {_token_in(visit)}", work(visit.form))


def _made(visit: Visit, made: MadeToken, replaced: str) -> web.Response:
    account = account_in(visit)
    return visit.page("token.html", 201, made=made, replaced=replaced, account=account, home=f"/accounts/{account}")


async def _refused(visit: Visit, error: GatewayError, action: str) -> web.StreamResponse:
    shown = problem_of(error)
    if shown.status in (403, 404):
        raise error
    return await show(visit, shown.message, action, shown.status)


def _token_in(visit: Visit) -> str:
    """Return the id of the token of the address, which is one of the account of the address. Raises `Refused` (404)."""
    short = visit.path["token"]
    if not _ID.fullmatch(short):
        raise Refused(404, "not_found", "There is no such token.")
    return f"{account_in(visit)}-{short}"


def _names(text: str) -> list[str]:
    return [name for part in text.split(",") if (name := part.strip())]


TOKEN_PAGES: Final[tuple[tuple[str, str, Page], ...]] = (
    ("POST", "/accounts/{account}/tokens", create_token),
    ("POST", "/accounts/{account}/tokens/{token}/rotate", rotate),
    ("POST", "/accounts/{account}/tokens/{token}/disable", disable),
    ("POST", "/accounts/{account}/tokens/{token}/enable", enable),
    ("POST", "/accounts/{account}/tokens/{token}/delete", delete),
)

"""Tokens of an account: made, replaced, refused and deleted from the account's page. A text is shown once."""

from __future__ import annotations

import re
import time
from typing import Any, Final

from aiohttp import web

from gateway.admin.pages.accounts import account_in, attempt, check_sure, problem_of, show
from gateway.admin.pages.forms import Form, body
from gateway.admin.pages.visit import Page, Visit
from gateway.errors import GatewayError, Refused
from gateway.management import tokens
from gateway.management.tokens import MadeToken, NewToken, Rotation

HOUR_S: Final = 3600
DAY_S: Final = 86_400
_ID: Final = re.compile(r"[a-z0-9]{1,64}")


async def create(visit: Visit) -> web.StreamResponse:
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
        made = await tokens.create(visit.desk, account_in(visit), body=body(NewToken, **given))
    except GatewayError as error:
        return await _refused(visit, error, "token")
    return _made(visit, made, "")


async def rotate(visit: Visit) -> web.StreamResponse:
    """Replace a token, and show the text of the new one."""
    try:
        overlap = visit.form.number("hours") * HOUR_S
        made = await tokens.rotate(visit.desk, _token_in(visit), body=body(Rotation, overlap_s=overlap))
    except GatewayError as error:
        return await _refused(visit, error, f"rotate {_token_in(visit)}")
    return _made(visit, made, _token_in(visit))


async def disable(visit: Visit) -> web.StreamResponse:
    """Refuse requests with a token."""

    async def work() -> str:
        await tokens.disable(visit.desk, _token_in(visit))
        return "token-disabled"

    return await attempt(visit, "tokens", work())


async def enable(visit: Visit) -> web.StreamResponse:
    """Accept a token again."""

    async def work() -> str:
        await tokens.enable(visit.desk, _token_in(visit))
        return "token-enabled"

    return await attempt(visit, "tokens", work())


async def delete(visit: Visit) -> web.StreamResponse:
    """Delete a token for good."""

    async def work(form: Form) -> str:
        check_sure(form)
        await tokens.delete(visit.desk, _token_in(visit))
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


PAGES: Final[tuple[tuple[str, str, Page], ...]] = (
    ("POST", "/accounts/{account}/tokens", create),
    ("POST", "/accounts/{account}/tokens/{token}/rotate", rotate),
    ("POST", "/accounts/{account}/tokens/{token}/disable", disable),
    ("POST", "/accounts/{account}/tokens/{token}/enable", enable),
    ("POST", "/accounts/{account}/tokens/{token}/delete", delete),
)
